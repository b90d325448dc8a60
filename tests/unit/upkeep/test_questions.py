"""Upkeep of questions: webhooks that announce and remind, and questions that expire."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from uuid import UUID, uuid4

import gevent
import orjson
import pytest
from gevent.event import Event
from sqlalchemy import text

from shared import audit, thread_updates
from shared.deployments.deployments import DeploymentRef
from shared.errors import Conflict, Unanswered
from shared.inbox import expiry
from shared.infra.postgres import connection, database_time
from shared.runs import webhook_records, webhooks
from shared.settings import Settings
from shared.threads import state
from tests.support import asking, factories
from tests.support.abandoning import notified, upkeep
from tests.support.asking import ask, deliveries, move, question, runs_of
from workers.upkeep import webhook_deliveries
from workers.upkeep.questions import Questions
from workers.upkeep.upkeep import POOLS_EVERY, Upkeep

__all__ = ["notified", "upkeep"]

pytestmark = pytest.mark.usefixtures("db", "redis")

URL = "https://receiver.example/hook"
PAST = "now() - interval '1 second'"
EXPIRING = {"webhook": URL, "expire_after_seconds": 3600}
AUTH = {"auth": {"parameters": ["headers"], "handlers": [["*", "*"]]}}
ANN = {"identity": "ann", "permissions": []}


@pytest.fixture
def questions(settings: Settings) -> Questions:
    return Questions(settings)


@pytest.fixture
def ends(monkeypatch: pytest.MonkeyPatch) -> list[UUID]:
    """Replace the graph host that ends threads and its runner: the thread becomes idle. Returns the ended threads."""
    ended: list[UUID] = []

    def apply(
        deployment: DeploymentRef, thread_id: UUID, *args: Any, cancels: Mapping[str, str], **kwargs: Any
    ) -> None:
        ended.append(thread_id)
        answer = {"written": [], "state": {"next": []}, "interrupts": {}}
        with connection() as conn:
            key = (deployment.id, thread_id, uuid4())
            state.store_update(conn, *key, answer, b"{}", [], from_newest=False, cancels=cancels)

    monkeypatch.setattr(thread_updates, "apply", apply)
    return ended


def expire(questions: Questions) -> None:
    questions.begin_expiries()
    questions.join()


def events() -> list[str]:
    return [row["status"] for row in deliveries()]


TITLE = "<!here>\n@all [yes](https://evil.example)"


def body_of(row: Mapping[str, Any]) -> Any:
    """Return the body of a delivery, as it is sent."""
    with connection() as conn:
        conn.execute(text("UPDATE webhook_delivery SET due_at = now(), owner = NULL"))
        (delivery,) = [
            one for one in webhooks.claim(conn, owner="a", limit=10) if one.delivery_id == row["delivery_id"]
        ]
    assert delivery.is_of_question
    assert webhook_deliveries.headers(delivery, b"", database_time())["Webhook-Id"] == str(row["delivery_id"])
    return orjson.loads(webhook_deliveries.question_content(delivery, "https://run.example"))


def test_a_question_is_announced_once_with_its_record(
    questions: Questions, deployment: DeploymentRef
) -> None:
    question_id = ask(deployment, rules={"webhook": URL}, metadata={"title": TITLE})
    questions.send_webhooks()
    questions.send_webhooks()

    (row,) = deliveries()
    asked = question(question_id)
    assert (row["url"], row["run_id"], row["status"]) == (URL, asked["run_id"], "question.asked")
    body = body_of(row)
    assert body["type"] == "question.asked"
    assert body["url"] == f"https://run.example/o/#/d/app/threads/{asked['thread_id']}"
    assert (
        body["text"]
        == f"app: “‹!here› ＠all ［yes］(https://evil.example)” is waiting for an answer. {body['url']}"
    )
    assert body["question"]["id"] == str(question_id)
    assert body["question"]["value"] == {"question": "May I?"}
    assert body["question"]["metadata"]["title"] == TITLE
    with connection() as conn:
        (found,), total = webhook_records.search(conn, deployment.id, limit=10, offset=0)
    shown = webhook_records.RECORD.show(found)
    assert (total, shown["type"], shown["thread_id"]) == (1, "question.asked", asked["thread_id"])


def test_without_a_webhook_nothing_is_sent(questions: Questions, deployment: DeploymentRef) -> None:
    ask(deployment)
    removed = ask(deployment, rules={"webhook": URL, "remind_after_seconds": 1})
    asking.set_rules(deployment, {})
    questions.send_webhooks()

    assert deliveries() == []
    assert question(removed)["webhook_due_at"] is None


def test_the_address_is_that_of_the_time_of_sending(questions: Questions, deployment: DeploymentRef) -> None:
    ask(deployment, rules={"webhook": URL})
    asking.set_rules(deployment, {"webhook": f"{URL}/2"})
    questions.send_webhooks()

    assert [row["url"] for row in deliveries()] == [f"{URL}/2"]


def test_the_rules_of_the_revision_apply_to_a_deployment_without_rules(
    questions: Questions, deployment: DeploymentRef
) -> None:
    with connection() as conn:
        conn.execute(
            text("UPDATE revision SET manifest = CAST(:manifest AS json) WHERE id = :id"),
            {
                "manifest": orjson.dumps({"inbox": {"webhook": URL}}).decode(),
                "id": deployment.active_revision_id,
            },
        )
    ask(deployment)
    questions.send_webhooks()
    ask(deployment, rules={})
    questions.send_webhooks()

    assert [row["url"] for row in deliveries()] == [URL]


def test_a_question_is_announced_also_if_the_clock_is_put_back(
    upkeep: Upkeep, deployment: DeploymentRef
) -> None:
    ask(deployment, rules={"webhook": URL})
    move(ask(deployment), webhook_due_at="now() + interval '1 hour'")
    for _ in range(POOLS_EVERY + 1):
        upkeep.tick()

    assert events() == ["question.asked"] * 2


def test_an_open_question_is_reminded_of_once(questions: Questions, deployment: DeploymentRef) -> None:
    question_id = ask(deployment, rules={"webhook": URL, "remind_after_seconds": 3600})
    questions.send_webhooks()
    due = question(question_id)["webhook_due_at"]
    assert (due - question(question_id)["asked_at"]).total_seconds() == 3600

    move(question_id, webhook_due_at=PAST)
    questions.send_webhooks()
    questions.send_webhooks()

    assert events() == ["question.asked", "question.reminder"]
    assert question(question_id)["webhook_due_at"] is None


def test_a_snoozed_question_is_reminded_of_when_the_snooze_ends(
    questions: Questions, deployment: DeploymentRef
) -> None:
    question_id = ask(deployment, rules={"webhook": URL, "remind_after_seconds": 3600})
    questions.send_webhooks()
    move(question_id, webhook_due_at=PAST, snoozed_until="now() + interval '1 hour'")
    questions.send_webhooks()
    assert events() == ["question.asked"]

    move(question_id, snoozed_until=PAST)
    questions.send_webhooks()
    assert events() == ["question.asked", "question.reminder"]


def test_an_answered_question_is_not_reminded_of(questions: Questions, deployment: DeploymentRef) -> None:
    question_id = ask(deployment, rules={"webhook": URL, "remind_after_seconds": 3600})
    questions.send_webhooks()
    move(question_id, webhook_due_at=PAST, closed_at="now()")
    questions.send_webhooks()

    assert events() == ["question.asked"]


def test_a_question_that_another_process_has_claimed_is_not_waited_for(
    questions: Questions, deployment: DeploymentRef
) -> None:
    first = ask(deployment, rules={"webhook": URL})
    ask(deployment)
    with connection() as conn:
        conn.execute(text("SELECT FROM question WHERE question_id = :id FOR UPDATE"), {"id": first})
        with gevent.Timeout(10):
            questions.send_webhooks()
        assert len(deliveries()) == 1
    questions.send_webhooks()
    assert len(deliveries()) == 2


def test_a_question_is_answered_with_the_default(questions: Questions, deployment: DeploymentRef) -> None:
    rules = {**EXPIRING, "on_expiry": {"action": "answer", "answer": {"ok": False}}}
    question_id = ask(deployment, rules=rules, context={"tenant": 7})
    expire(questions)
    assert question(question_id)["answered_at"] is None, "its time is not over"

    move(question_id, expires_at=PAST, webhook_due_at="NULL")
    expire(questions)
    expire(questions)

    found = question(question_id)
    _, run = runs_of(question_id)
    assert (found["answer"], found["answered_by"], found["answered_from"]) == (
        {"ok": False},
        "expiry",
        "expiry",
    )
    assert found["answer_run_id"] == run["run_id"]
    assert run["kwargs"]["command"] == {"resume": {"q": {"ok": False}}}
    assert run["kwargs"]["context"] == {"tenant": 7}
    (row,) = deliveries()
    body = body_of(row)
    assert (body["type"], body["question"]["status"]) == ("question.expired", "expired")
    assert body["text"].startswith("app: “Refund” was not answered in time.")


def test_a_breakpoint_continues_with_null_and_takes_no_other_answer(
    questions: Questions, deployment: DeploymentRef
) -> None:
    continued = ask(deployment, None, rules={**EXPIRING, "on_expiry": {"action": "answer", "answer": None}})
    refused = ask(deployment, None, rules={**EXPIRING, "on_expiry": {"action": "answer", "answer": 1}})
    for question_id in (continued, refused):
        move(question_id, expires_at=PAST, webhook_due_at="NULL")
    expire(questions)
    expire(questions)

    assert question(continued)["answered_by"] == "expiry"
    assert (question(refused)["closed_at"], len(runs_of(refused))) == (None, 1)
    assert question(refused)["expired_at"] is not None
    assert events() == ["question.expired"] * 2
    with connection() as conn:
        (line,) = conn.execute(text("SELECT message FROM log_line")).scalars()
    assert line.startswith(f"question {refused}: its expiry failed and it stays open: A breakpoint takes no")


def test_an_expired_question_is_left_open_and_can_be_answered(
    questions: Questions, deployment: DeploymentRef
) -> None:
    question_id = ask(deployment, rules=EXPIRING)
    move(question_id, expires_at=PAST, webhook_due_at="NULL")
    expire(questions)
    expire(questions)

    found = question(question_id)
    assert (found["closed_at"], found["answered_from"]) == (None, None)
    assert found["expired_at"] is not None
    assert events() == ["question.expired"]


def test_the_thread_of_an_expired_question_is_cancelled(
    questions: Questions, deployment: DeploymentRef, ends: list[UUID]
) -> None:
    question_id = ask(deployment, rules={**EXPIRING, "on_expiry": {"action": "cancel"}})
    move(question_id, expires_at=PAST, webhook_due_at="NULL")
    expire(questions)
    expire(questions)

    found = question(question_id)
    assert ends == [found["thread_id"]]
    assert found["closed_at"] is not None
    assert (found["answered_at"], found["answered_from"]) == (None, "expiry")
    assert events() == ["question.expired"]
    with connection() as conn:
        (entry,) = audit.search(conn, deployment.organization_id, action="question", limit=9, offset=0)
    assert (entry["action"], entry["actor"], entry["address"]) == ("question.cancelled", None, None)
    assert entry["detail"]["question_id"] == str(question_id)


def test_a_cancellation_whose_process_died_is_completed(
    questions: Questions, deployment: DeploymentRef, ends: list[UUID], monkeypatch: pytest.MonkeyPatch
) -> None:
    question_id = ask(deployment, rules={**EXPIRING, "on_expiry": {"action": "cancel"}})
    move(question_id, expires_at=PAST, webhook_due_at="NULL")
    end_thread = thread_updates.apply

    def die(*args: Any, **kwargs: Any) -> None:
        end_thread(*args, **kwargs)
        raise gevent.GreenletExit

    with monkeypatch.context() as patch:
        patch.setattr(thread_updates, "apply", die)
        expire(questions)
    assert (events(), question(question_id)["expired_at"]) == ([], None)
    expire(questions)

    assert len(ends) == 1
    assert question(question_id)["answered_from"] == "expiry"
    assert events() == ["question.expired"]


def test_an_expiry_without_an_answer_of_a_host_is_repeated_until_it_is_an_hour_late(
    deployment: DeploymentRef, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    question_id = ask(deployment, rules={**EXPIRING, "on_expiry": {"action": "cancel"}})
    move(question_id, expires_at=PAST, webhook_due_at="NULL")
    calls: list[UUID] = []

    def fail(deployment: DeploymentRef, thread_id: UUID, *args: Any, **kwargs: Any) -> None:
        calls.append(thread_id)
        raise Unanswered

    monkeypatch.setattr(thread_updates, "apply", fail)
    for _ in range(2):
        expire(Questions(settings))
    assert (len(calls), question(question_id)["expired_at"]) == (2, None)

    move(question_id, expires_at="now() - interval '2 hours'")
    expire(Questions(settings))
    expire(Questions(settings))
    found = question(question_id)
    assert (len(calls), found["closed_at"], found["answered_from"]) == (3, None, None)
    assert found["expired_at"] is not None


def test_a_question_that_a_run_closes_while_its_cancellation_waits_has_not_expired(
    questions: Questions, deployment: DeploymentRef, monkeypatch: pytest.MonkeyPatch
) -> None:
    question_id = ask(deployment, rules={**EXPIRING, "on_expiry": {"action": "cancel"}})
    move(question_id, expires_at=PAST, webhook_due_at="NULL")

    def refuse(*args: Any, **kwargs: Any) -> None:
        raise Conflict("Thread is busy")

    monkeypatch.setattr(thread_updates, "apply", refuse)
    expire(questions)
    with connection() as conn:
        conn.execute(text("UPDATE thread SET status = 'idle', interrupts = '{}'"))
    expire(questions)

    found = question(question_id)
    assert (found["closed_at"] is not None, found["answered_from"], found["expired_at"]) == (True, None, None)
    assert events() == []


def test_the_deployments_own_authorization_does_not_decide_about_an_expiry(questions: Questions) -> None:
    guarded = factories.deployment("guarded", user_code=AUTH)
    rules = {**EXPIRING, "on_expiry": {"action": "answer", "answer": 1}}
    question_id = ask(guarded, rules=rules, user=ANN)
    move(question_id, expires_at=PAST)
    expire(questions)

    assert question(question_id)["answer"] == 1
    _, run = runs_of(question_id)
    assert run["kwargs"]["config"]["configurable"]["langgraph_auth_user"] == ANN, (
        "the user of the run that asked"
    )


def test_a_question_answered_at_the_last_moment_does_not_expire(
    questions: Questions, deployment: DeploymentRef, monkeypatch: pytest.MonkeyPatch
) -> None:
    rules = {**EXPIRING, "on_expiry": {"action": "answer", "answer": 1}}
    question_id = ask(deployment, rules=rules)
    move(question_id, expires_at=PAST, webhook_due_at="NULL")
    questions.begin_expiries()
    move(question_id, closed_at="now()", answered_at="now()", answered_by="'ann'")
    questions.join()

    assert (question(question_id)["answered_by"], len(runs_of(question_id)), deliveries()) == ("ann", 1, [])


def test_two_processes_expire_each_question_once(deployment: DeploymentRef, settings: Settings) -> None:
    rules = {**EXPIRING, "on_expiry": {"action": "answer", "answer": 1}}
    ids = [ask(deployment, rules=rules) for _ in range(6)]
    for question_id in ids:
        move(question_id, expires_at=PAST, webhook_due_at="NULL")
    processes = [Questions(settings) for _ in range(3)]
    for process in processes:
        process.begin_expiries()
    for process in processes:
        process.join()

    assert [len(runs_of(question_id)) for question_id in ids] == [2] * 6
    assert events() == ["question.expired"] * 6


def test_many_questions_of_one_deployment_expire_at_once_and_do_not_delay_another(
    questions: Questions, deployment: DeploymentRef, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(expiry, "READ_AT_ONCE", 5)
    thread_id = question(ask(deployment, rules=EXPIRING))["thread_id"]
    many = [
        factories.question(deployment, thread_id, interrupt_id=str(number), expires_at=database_time())
        for number in range(expiry.READ_AT_ONCE + 1)
    ]
    other = factories.deployment("other")
    one = ask(other, rules={**EXPIRING, "on_expiry": {"action": "cancel"}})
    move(one, expires_at=PAST)

    answers = Event()  # of the graph host of `other`
    monkeypatch.setattr(thread_updates, "apply", lambda *args, **kwargs: answers.wait())
    questions.begin_expiries()
    with gevent.Timeout(60):
        while question(many[-1])["expired_at"] is None:
            gevent.sleep(0.01)
    assert question(one)["expired_at"] is None
    answers.set()
    questions.join()
    assert question(one)["expired_at"] is not None


def test_expiries_that_wait_for_a_retry_do_not_block_later_ones(
    questions: Questions, deployment: DeploymentRef, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(expiry, "READ_AT_ONCE", 5)
    thread_id = factories.thread(deployment.id)
    at = database_time()
    for number in range(expiry.READ_AT_ONCE + 1):
        factories.question(
            deployment, thread_id, interrupt_id=str(number), expires_at=at, on_expiry={"action": "cancel"}
        )
    last = ask(deployment, rules=EXPIRING)

    def fail(*args: Any, **kwargs: Any) -> None:
        raise Unanswered

    monkeypatch.setattr(thread_updates, "apply", fail)
    move(last, expires_at="now()")
    expire(questions)
    assert question(last)["expired_at"] is not None


def test_questions_of_a_deleted_deployment_are_neither_announced_nor_expired(
    questions: Questions, deployment: DeploymentRef
) -> None:
    rules = {**EXPIRING, "on_expiry": {"action": "answer", "answer": 1}}
    question_id = ask(deployment, rules=rules)
    move(question_id, expires_at=PAST)
    with connection() as conn:
        conn.execute(text("UPDATE deployment SET deleted_at = now()"))
    questions.send_webhooks()
    expire(questions)

    assert (deliveries(), question(question_id)["answered_at"]) == ([], None)
