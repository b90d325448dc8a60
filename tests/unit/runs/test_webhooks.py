"""Webhooks: every way a run ends leaves a word in the outbox, and what is in it reaches the receiver."""

from __future__ import annotations

import base64
import hashlib
import hmac
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import orjson
import pytest
from sqlalchemy import text

from shared.deployments import secrets
from shared.deployments.deployments import DeploymentRef
from shared.errors import Fenced, Invalid
from shared.infra import egress, encryption
from shared.infra.postgres import connection, driver, dumps
from shared.models import RunStatus, ThreadStatus
from shared.removal import deletion
from shared.runs import cancel, claims, create, end_event, read, webhook_records, webhooks
from shared.runs.claims import Claimed, Terms
from shared.runs.finish import Finish, finish_runs, roll_back
from shared.threads import records
from tests.support import factories
from tests.support.receiver import Receiver, receiving
from tests.support.waiting import wait_until
from workers.upkeep import webhook_deliveries as delivering
from workers.upkeep.webhook_deliveries import Deliveries

SERVICE = "http://127.0.0.1:1"
URL = "https://hooks.example/run?token=x"
KWARGS = {"config": {"configurable": {"nul": "\0"}}, "webhook": URL}
FAILED = {"error": "ValueError", "message": "no"}
ROLLED_BACK = {"error": "UserRollback", "message": "enough"}


def pending(deployment: DeploymentRef, url: str | None = URL, **columns: Any) -> UUID:
    values = {"kwargs": {**KWARGS, "webhook": url}, "webhook": url, "input": {"a": 1}, **columns}
    return factories.run(deployment, **values)


def claimed(deployment: DeploymentRef, url: str | None = URL, **columns: Any) -> Claimed:
    with driver() as conn:
        [(run, _)] = claims.claim(conn, [pending(deployment, url, **columns)], Terms("a", 30.0, 3600.0))
    return run


def finish(run: Claimed, status: RunStatus = RunStatus.SUCCESS, **fields: Any) -> None:
    end = Finish(run, status, ThreadStatus.IDLE, **fields)
    with driver() as conn, conn.transaction():
        records.lock_all(conn, [(run.deployment_id, run.thread_id)])
        assert finish_runs(conn, [end], owner="a").keys() == {run.run_id}


def outbox() -> list[Any]:
    with connection() as conn:
        query = text("SELECT * FROM webhook_delivery ORDER BY created_at, delivery_id")
        return list(conn.execute(query).mappings())


def thread_of(run_id: UUID) -> UUID:
    with connection() as conn:
        return conn.execute(text("SELECT thread_id FROM run WHERE run_id = :id"), {"id": run_id}).scalar_one()


# The outbox: one case for each way a run may end


def succeeds(deployment: DeploymentRef) -> None:
    finish(claimed(deployment), values='{"done": 1}')


def succeeds_and_goes(deployment: DeploymentRef) -> None:
    finish(claimed(deployment, temporary=True), values='{"done": 1}')


def fails(deployment: DeploymentRef) -> None:
    finish(claimed(deployment), RunStatus.ERROR, error=FAILED)


def fails_and_goes(deployment: DeploymentRef) -> None:
    finish(claimed(deployment, temporary=True), RunStatus.ERROR, error=FAILED)


def takes_too_long(deployment: DeploymentRef) -> None:
    finish(claimed(deployment), RunStatus.TIMEOUT, error=FAILED, values='{"done": 1}')


def is_interrupted(deployment: DeploymentRef) -> None:
    finish(claimed(deployment), RunStatus.INTERRUPTED, error=end_event.cancel_error("interrupt", "enough"))


def is_rolled_back(deployment: DeploymentRef) -> None:
    with connection() as conn:
        roll_back(conn, claimed(deployment), error=ROLLED_BACK)


def is_rolled_back_and_goes(deployment: DeploymentRef) -> None:
    run = claimed(deployment, temporary=True)
    with connection() as conn:
        cancel.cancel_run(conn, deployment.id, run.thread_id, run.run_id, action="rollback", reason="enough")
    finish(run, RunStatus.INTERRUPTED, values='{"done": 1}')


def cancelled(deployment: DeploymentRef, action: str, **columns: Any) -> None:
    run_id = pending(deployment, **columns)
    thread_id = thread_of(run_id)
    with connection() as conn:
        cancel.cancel_run(conn, deployment.id, thread_id, run_id, action=action, reason="enough")


def is_cancelled_before_it_starts(deployment: DeploymentRef) -> None:
    cancelled(deployment, "interrupt")


def is_rolled_back_before_it_starts(deployment: DeploymentRef) -> None:
    cancelled(deployment, "rollback")


def is_cancelled_before_it_starts_and_goes(deployment: DeploymentRef) -> None:
    cancelled(deployment, "interrupt", temporary=True)


def is_superseded(deployment: DeploymentRef) -> None:
    request = create.RunRequest(assistant_id="agent", multitask_strategy="interrupt")
    thread_id = thread_of(pending(deployment))
    with connection() as conn:
        create.create_run(conn, deployment, request, thread_id=thread_id)


def is_deleted(deployment: DeploymentRef) -> None:
    run = claimed(deployment)
    with connection() as conn:
        cancel.delete_run(conn, deployment.id, run.thread_id, run.run_id)


def loses_its_thread(deployment: DeploymentRef) -> None:
    run = claimed(deployment)
    with connection() as conn:
        cancel.delete_thread(conn, deployment.id, run.thread_id)


def loses_its_deployment(deployment: DeploymentRef) -> None:
    pending(deployment)
    with connection() as conn:
        deletion.delete(conn, deployment.organization_id, deployment.id)
        deletion.stop_runs(conn, deployment.id)


VALUES = {"done": 1}
CASES: list[tuple[Callable[[DeploymentRef], None], str, Any, str | None]] = [
    (succeeds, "success", VALUES, None),
    (succeeds_and_goes, "success", VALUES, None),
    (fails, "error", None, "ValueError: no"),
    (fails_and_goes, "error", None, "ValueError: no"),
    (takes_too_long, "timeout", VALUES, "ValueError: no"),
    (is_interrupted, "interrupted", None, "UserInterrupt: enough"),
    (is_rolled_back, "rollback", None, "UserRollback: enough"),
    (is_rolled_back_and_goes, "rollback", None, "UserRollback: enough"),
    (is_cancelled_before_it_starts, "interrupted", None, "UserInterrupt: enough"),
    (is_rolled_back_before_it_starts, "rollback", None, "UserRollback: enough"),
    (is_cancelled_before_it_starts_and_goes, "interrupted", None, "UserInterrupt: enough"),
    (is_superseded, "interrupted", None, "UserInterrupt: superseded by run"),
    (is_deleted, "rollback", None, "UserRollback: the run was deleted"),
    (loses_its_thread, "rollback", None, "UserRollback: the thread was deleted"),
    (loses_its_deployment, "interrupted", None, "UserInterrupt: the deployment was deleted"),
]


@pytest.mark.parametrize(
    ("end", "status", "values", "error"), CASES, ids=lambda case: getattr(case, "__name__", "")
)
def test_every_end_of_a_run_has_one_delivery(
    deployment: DeploymentRef,
    end: Callable[[DeploymentRef], None],
    status: str,
    values: Any,
    error: str | None,
) -> None:
    end(deployment)

    [row] = outbox()
    assert (row["status"], row["values"], row["url"], row["attempt"]) == (status, values, URL, 0)
    told = "{error}: {message}".format(**row["error"]) if row["error"] else None
    assert told == error or (error is not None and told is not None and told.startswith(error))
    assert row["run"]["input"] == {"a": 1}


def test_a_run_that_has_ended_has_no_delivery_when_it_is_deleted(deployment: DeploymentRef) -> None:
    run = claimed(deployment)
    finish(run)
    with connection() as conn:
        cancel.delete_thread(conn, deployment.id, run.thread_id)

    assert [row["status"] for row in outbox()] == ["success"]


def test_the_tokens_it_used_are_delivered_of_a_run_that_stays_and_of_one_that_goes(
    deployment: DeploymentRef,
) -> None:
    for is_temporary in (False, True):
        finish(claimed(deployment, temporary=is_temporary), usage='{"large":{"total_tokens":3}}')

    assert [row["run"]["usage"] for row in outbox()] == [{"large": {"total_tokens": 3}}] * 2
    assert [row["run"]["kwargs"]["config"] for row in outbox()] == [KWARGS["config"]] * 2


def test_what_is_refused_to_a_zombie_is_not_delivered(deployment: DeploymentRef) -> None:
    kept, gone = claimed(deployment), claimed(deployment, temporary=True)
    with connection() as conn:
        conn.execute(text("UPDATE run SET attempt = attempt + 1"))
        ends = [Finish(run, RunStatus.SUCCESS, ThreadStatus.IDLE) for run in (kept, gone)]
        assert finish_runs(conn, ends, owner="a") == {}
    with pytest.raises(Fenced), connection() as conn:
        roll_back(conn, kept, error=ROLLED_BACK)

    assert outbox() == []


def test_runs_without_a_webhook_leave_no_delivery(deployment: DeploymentRef) -> None:
    finish(claimed(deployment, None))
    finish(claimed(deployment, None, temporary=True))
    with connection() as conn:
        roll_back(conn, claimed(deployment, None), error=ROLLED_BACK)

    assert outbox() == []


# What may be named


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("", "Invalid webhook hostname ''"),
        ("/relative", "Invalid webhook hostname ''"),
        ("https://", "Invalid webhook hostname ''"),
        ("https:///path", "Invalid webhook hostname ''"),
        ("mailto:a@example.com", "Invalid webhook hostname ''"),
        ("https://exa\0mple.com/", "Invalid webhook URL"),
        ("https://[::1", "Invalid webhook URL"),
        ("http://example.com/", "Webhook must use https"),
        ("ftp://example.com/", "Webhook must use https"),
        ("https://localhost/", "Webhook host blocked: localhost address"),
        ("https://a.LOCALHOST./", "Webhook host blocked: localhost address"),
        ("https://127.0.0.1/", "Webhook host blocked: loopback IP range"),
        ("https://2130706433/", "Webhook host blocked: loopback IP range"),
        ("https://[::1]:8443/", "Webhook host blocked: loopback IP range"),
        ("https://[::ffff:127.0.0.1]/", "Webhook host blocked: loopback IP range"),
        ("https://10.0.0.1/", "Webhook host blocked: private or reserved IP range"),
        ("https://169.254.169.254/", "Webhook host blocked: private or reserved IP range"),
        ("https://nowhere.invalid/", "Webhook host blocked: DNS resolution failed"),
        ("https://me:secret@example.com/", "Webhook must be a URL without user name, password and fragment"),
        ("https://example.com:22/", "Webhook host blocked: 22 is not a port this service may call"),
        ("https://example.com/" + "a" * 3000, "Webhook must be a valid URL"),
    ],
)
def test_an_address_that_may_not_be_called_is_refused(url: str, message: str) -> None:
    with pytest.raises(Invalid) as caught:
        webhooks.check(url, {})
    assert caught.value.message.startswith(message)
    assert "secret" not in caught.value.message


def own(path: str) -> str:
    return webhooks.own_url("http://127.0.0.1:8080/", "chat", path)


LOOPS = {"disable_loopback": False}


def test_a_path_is_the_deployments_own_where_project_and_operator_allow_it(lenient: None) -> None:
    assert own("/hook?x=1") == "http://127.0.0.1:8080/d/chat/hook?x=1"
    webhooks.check("/hook?x=1", LOOPS, own=own)
    webhooks.check("/hook", {**LOOPS, "allowed_domains": ["a.example"], "allowed_ports": [443]}, own=own)
    for rules in ({}, {"disable_loopback": True}):
        with pytest.raises(Invalid, match="Invalid webhook hostname ''"):
            webhooks.check("/hook", rules, own=own)


def test_a_path_is_not_called_where_only_the_project_allows_it() -> None:
    with pytest.raises(Invalid, match="Webhook must use https"):
        webhooks.check("/hook", LOOPS, own=own)


STEPS = ["/..", "/../../v2/keys", "/a/%2e%2E/b", "/.%2e/x", "/a%2f..%2fb", "/a\\..\\b", "/./x"]


@pytest.mark.parametrize("path", STEPS)
def test_a_path_stays_in_its_deployment(lenient: None, path: str) -> None:
    with pytest.raises(Invalid, match="Webhook path must not"):
        webhooks.check(path, LOOPS, own=own)


def test_what_the_operator_allows_may_be_named(lenient: None) -> None:
    webhooks.check("http://127.0.0.1:8080/hook", {})
    with pytest.raises(Invalid, match="private or reserved"):
        webhooks.check("http://10.0.0.1/hook", {})


@pytest.mark.parametrize(
    ("rules", "url", "message"),
    [
        ({"require_https": True}, "http://127.0.0.1:8080/", "must use https"),
        ({"allowed_ports": [80]}, "http://127.0.0.1:8080/", "port 8080 is not allowed"),
        ({"allowed_ports": [8080]}, "http://127.0.0.1/", "port 80 is not allowed"),
        ({"max_url_length": 20}, "http://127.0.0.1:8080/", "longer than 20 characters"),
        ({"allowed_domains": ["a.example"]}, "http://127.0.0.1:8080/", "host '127.0.0.1' is not allowed"),
        ({"allowed_domains": ["*.a.example"]}, "http://a.example/", "host 'a.example' is not allowed"),
        ({"allowed_domains": ["*.a.example"]}, "http://evil-a.example/", "is not allowed"),
        ({"allowed_domains": ["*.a.example"]}, "http://x.a.example/", "DNS resolution failed"),
        ({"allowed_domains": ["b", "127.0.0.1"], "allowed_ports": [8080]}, "http://127.0.0.1:8080/", None),
    ],
)
def test_a_project_has_rules_of_its_own(lenient: None, rules: Any, url: str, message: str | None) -> None:
    if message is None:
        webhooks.check(url, rules)
        return
    with pytest.raises(Invalid, match=message):
        webhooks.check(url, rules)


# Deliveries


@pytest.fixture
def receiver(lenient: None) -> Iterator[Receiver]:
    with receiving() as receiver:
        yield receiver


def take(limit: int = 10) -> list[webhooks.Delivery]:
    with connection() as conn:
        return webhooks.claim(conn, owner="a", limit=limit)


def make_due() -> None:
    """As much time passes as is needed."""
    with connection() as conn:
        conn.execute(text("UPDATE webhook_delivery SET due_at = now() WHERE ended_at IS NULL"))


def test_a_receiver_is_sent_the_run_as_it_ended(deployment: DeploymentRef, receiver: Receiver) -> None:
    run = claimed(deployment, receiver.url)
    with connection() as conn:
        record = read.record(read.get(conn, deployment.id, run.run_id))
    finish(run, values='{"done": 1}')
    [delivery] = take()
    delivering.deliver(delivery, SERVICE)

    [call] = receiver.calls
    body, headers = call.document, call.headers
    assert headers["Content-Type"] == "application/json"
    assert headers["Webhook-Id"] == str(delivery.delivery_id)
    assert "Webhook-Signature" not in headers
    assert (body["status"], body["values"]) == ("success", {"done": 1})
    assert {"error", "interrupts", "attempts"}.isdisjoint(body)
    times = ("created_at", "run_started_at", "run_ended_at", "webhook_sent_at")
    assert sorted(times, key=lambda name: datetime.fromisoformat(body[name])) == list(times)
    same = ("run_id", "thread_id", "created_at", "kwargs", "metadata", "multitask_strategy", "cancel_reason")
    assert {name: body[name] for name in same} == {name: orjson.loads(dumps(record))[name] for name in same}
    [row] = outbox()
    assert row["ended_at"] is not None
    assert row["failure"] is None
    assert take() == []


def test_a_path_is_called_at_the_deployment_with_the_projects_headers_alone(
    deployment: DeploymentRef, receiver: Receiver
) -> None:
    manifest = {"webhooks": {"headers": {"X-Api-Key": "of the project"}}}
    with connection() as conn:
        conn.execute(text("UPDATE revision SET manifest = CAST(:m AS json)"), {"m": dumps(manifest)})
    finish(claimed(deployment, "/hook?x=1"))
    delivering.deliver(*take(), receiver.url.removesuffix("/hook"))

    [call] = receiver.calls
    assert call.path == f"/d/{deployment.name}/hook?x=1"
    assert call.headers["X-Api-Key"] == "of the project"


@pytest.mark.parametrize(
    "secret", ["a plain secret", "whsec_" + base64.b64encode(b"thirty-two bytes").decode()]
)
def test_it_is_signed_with_the_secret_of_what_serves(
    deployment: DeploymentRef, receiver: Receiver, own_key: None, secret: str
) -> None:
    assert deployment.active_revision_id is not None
    with connection() as conn:
        secrets.replace(conn, deployment.active_revision_id, [{"name": delivering.SECRET, "value": secret}])
    finish(claimed(deployment, receiver.url))
    delivering.deliver(*take(), SERVICE)

    [call] = receiver.calls
    body, headers = call.body, call.headers
    own = b"thirty-two bytes" if secret.startswith("whsec_") else secret.encode()
    signed = f"{headers['Webhook-Id']}.{headers['Webhook-Timestamp']}.".encode() + body
    expected = base64.b64encode(hmac.digest(own, signed, hashlib.sha256)).decode()
    assert headers["Webhook-Signature"] == f"v1,{expected}"


def test_several_secrets_sign_it_while_one_takes_the_place_of_another(
    deployment: DeploymentRef, receiver: Receiver, own_key: None
) -> None:
    assert deployment.active_revision_id is not None
    own = [b"the new secret", b"the old secret"]
    value = " ".join(f"whsec_{base64.b64encode(one).decode()}" for one in own)
    with connection() as conn:
        secrets.replace(conn, deployment.active_revision_id, [{"name": delivering.SECRET, "value": value}])
    finish(claimed(deployment, receiver.url))
    delivering.deliver(*take(), SERVICE)

    [call] = receiver.calls
    signed = f"{call.headers['Webhook-Id']}.{call.headers['Webhook-Timestamp']}.".encode() + call.body
    expected = [base64.b64encode(hmac.digest(one, signed, hashlib.sha256)).decode() for one in own]
    assert call.headers["Webhook-Signature"] == f"v1,{expected[0]} v1,{expected[1]}"


def test_the_projects_headers_go_with_it(
    deployment: DeploymentRef, receiver: Receiver, own_key: None
) -> None:
    assert deployment.active_revision_id is not None
    wanted = {"Authorization": "Bearer ${{ env.LG_WEBHOOK_TOKEN }}", "X-From": "us"}
    with connection() as conn:
        query = text("UPDATE revision SET manifest = CAST(:manifest AS json)")
        conn.execute(query, {"manifest": dumps({"webhooks": {"headers": wanted}})})
    finish(claimed(deployment, receiver.url))
    delivering.deliver(*take(), SERVICE)
    assert outbox()[0]["failure"] == "the header Authorization needs the variable LG_WEBHOOK_TOKEN"

    with connection() as conn:
        variables = [{"name": "LG_WEBHOOK_TOKEN", "value": "s3cret"}, {"name": "OTHER", "value": "x"}]
        secrets.replace(conn, deployment.active_revision_id, variables)
    make_due()
    delivering.deliver(*take(), SERVICE)

    headers = receiver.calls[0].headers
    assert (headers["Authorization"], headers["X-From"]) == ("Bearer s3cret", "us")


def test_it_is_not_sent_unsigned_when_the_secret_cannot_be_read(
    deployment: DeploymentRef, receiver: Receiver, own_key: None
) -> None:
    assert deployment.active_revision_id is not None
    with connection() as conn:
        secrets.replace(conn, deployment.active_revision_id, [{"name": delivering.SECRET, "value": "old"}])
    encryption.configure([encryption.new_key()])
    finish(claimed(deployment, receiver.url))
    delivering.deliver(*take(), SERVICE)

    assert receiver.calls == []
    [row] = outbox()
    assert row["failure"]
    assert row["ended_at"] is None


def test_a_receiver_that_fails_is_called_again_under_the_same_id_and_then_given_up(
    deployment: DeploymentRef, receiver: Receiver
) -> None:
    receiver.statuses = [500, 301, 404, 503]
    run = claimed(deployment, receiver.url)
    finish(run)
    for attempt in range(1, webhooks.TRIES + 1):
        [delivery] = take()
        assert delivery.attempt == attempt
        delivering.deliver(delivery, SERVICE)
        assert take() == [], "not before its time"
        make_due()

    assert take() == []
    assert len({call.id for call in receiver.calls}) == 1
    assert len(receiver.calls) == webhooks.TRIES
    [row] = outbox()
    assert row["ended_at"] is not None
    assert row["failure"] == "the receiver answered 503"
    with connection() as conn:
        lines = conn.execute(text("SELECT level, message, run_id FROM log_line ORDER BY id")).all()
        status = read.get(conn, deployment.id, run.run_id)["status"]
    assert [line.level for line in lines] == ["WARNING"] * 4 + ["ERROR"]
    assert all(line.run_id == run.run_id and "own words" not in line.message for line in lines)
    assert status == "success"


def test_all_attempts_are_made_within_an_hour() -> None:
    assert len(webhooks.RETRY_SECONDS) == webhooks.TRIES - 1
    assert 1.1 * sum(webhooks.RETRY_SECONDS) + webhooks.LEASE_SECONDS <= 3600
    assert webhooks.LEASE_SECONDS > egress.TIMEOUT_SECONDS


def test_an_attempt_that_a_process_took_to_its_grave_is_made_again(
    deployment: DeploymentRef, receiver: Receiver
) -> None:
    finish(claimed(deployment, receiver.url))
    [lost] = take()
    assert take() == [], "somebody has it"
    make_due()  # its lease is over
    [again] = take()
    delivering.deliver(again, SERVICE)
    delivering.deliver(lost, SERVICE)  # the dead rise

    assert [call.id for call in receiver.calls] == [str(lost.delivery_id)] * 2
    [row] = outbox()
    assert (row["attempt"], row["failure"]) == (2, None)
    with connection() as conn:
        webhooks.settle(conn, lost, "what it says counts no more")
    assert outbox() == [row]


def test_an_address_is_looked_at_again_before_it_is_called(deployment: DeploymentRef) -> None:
    finish(claimed(deployment, "https://127.0.0.1/hook"))
    delivering.deliver(*take(), SERVICE)

    [row] = outbox()
    assert row["failure"] == "127.0.0.1 is not an address this service may call"


def test_a_deployment_whose_receiver_is_slow_does_not_hold_up_others(deployment: DeploymentRef) -> None:
    other = factories.deployment("other", organization_id=deployment.organization_id)
    for _ in range(webhooks.AT_ONCE_PER_DEPLOYMENT + 2):
        finish(claimed(deployment))
    finish(claimed(other))

    taken = take(100)
    assert len(taken) == webhooks.AT_ONCE_PER_DEPLOYMENT + 1
    assert {delivery.deployment_id for delivery in taken} == {deployment.id, other.id}
    assert take(100) == []


def test_what_was_delivered_is_forgotten_after_a_while(deployment: DeploymentRef) -> None:
    for ago in ("6 days", "8 days"):
        finish(claimed(deployment))
        with connection() as conn:
            query = (
                "UPDATE webhook_delivery SET ended_at = now() - CAST(:ago AS interval) WHERE ended_at IS NULL"
            )
            conn.execute(text(query), {"ago": ago})
    finish(claimed(deployment))

    with connection() as conn:
        assert webhook_records.remove_old(conn) == 1
        assert webhook_records.remove_old(conn) == 0
    assert len(outbox()) == 2


def test_of_many_deliveries_of_a_deployment_the_newest_are_kept(
    deployment: DeploymentRef, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(webhook_records, "KEPT_OF_DEPLOYMENT", 2)
    other = factories.deployment("other")
    made = [factories.webhook_delivery(deployment, pending(deployment)) for _ in range(5)]
    theirs = factories.webhook_delivery(other, factories.run(other), ended_at=datetime.now(UTC))
    with connection() as conn:
        query = text("UPDATE webhook_delivery SET ended_at = now() WHERE delivery_id <> ALL(:waiting)")
        conn.execute(query, {"waiting": made[:1]})
        assert webhook_records.remove_old(conn) == 2
        assert webhook_records.remove_old(conn) == 0
    assert {row["delivery_id"] for row in outbox()} == {made[0], *made[3:], theirs}, "what waits stays too"


def test_one_that_is_made_again_comes_under_the_same_id(
    deployment: DeploymentRef, receiver: Receiver
) -> None:
    finish(claimed(deployment, receiver.url))
    [delivery] = take()
    delivering.deliver(delivery, SERVICE)
    for _ in range(2):
        with connection() as conn:
            webhook_records.make_again(conn, deployment.id, delivery.delivery_id)
    [again] = take()
    with connection() as conn:
        webhook_records.make_again(conn, deployment.id, delivery.delivery_id)
    assert take() == [], "it is being made"
    delivering.deliver(again, SERVICE)

    assert [call.headers["Webhook-Id"] for call in receiver.calls] == [str(delivery.delivery_id)] * 2
    [row] = outbox()
    assert (row["attempt"], row["response_status"], row["failure"]) == (1, 200, None)
    assert row["ended_at"] is not None


def test_a_deleted_deployment_stays_until_its_receivers_have_been_called(deployment: DeploymentRef) -> None:
    loses_its_deployment(deployment)
    with connection() as conn:
        assert deletion.purge(conn) == 0
    assert len(take()) == 1
    with connection() as conn:
        while deletion.purge(conn):
            pass
    assert outbox() == []


def test_the_loop_delivers_what_is_due(deployment: DeploymentRef, receiver: Receiver) -> None:
    for _ in range(3):
        finish(claimed(deployment, receiver.url))
    deliveries = Deliveries("a", SERVICE)
    deliveries._take()
    deliveries._pool.join(timeout=20)

    wait_until(lambda: all(row["ended_at"] for row in outbox()))
    assert len(receiver.calls) == 3
