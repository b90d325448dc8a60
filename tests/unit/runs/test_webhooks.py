"""Webhooks: every way a run ends leaves one delivery in the outbox."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from uuid import UUID

import pytest
from sqlalchemy import text

from shared.deployments.deployments import DeploymentRef
from shared.errors import Fenced, Invalid
from shared.infra.postgres import connection
from shared.models import RunStatus, ThreadStatus
from shared.runs import cancel, end_event, webhooks
from shared.runs.drafts import RunRequest
from shared.runs.finish import Finish, finish_runs, roll_back
from tests.support.creating import insert_run
from tests.support.hooked import KWARGS, URL, claimed, finish, loses_its_deployment, outbox, pending

FAILED = {"error": "ValueError", "message": "no"}
ROLLED_BACK = {"error": "UserRollback", "message": "enough"}


def thread_of(run_id: UUID) -> UUID:
    with connection() as conn:
        return conn.execute(text("SELECT thread_id FROM run WHERE run_id = :id"), {"id": run_id}).scalar_one()


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
    request = RunRequest(assistant_id="agent", multitask_strategy="interrupt")
    thread_id = thread_of(pending(deployment))
    with connection() as conn:
        insert_run(conn, deployment, request, thread_id=thread_id)


def is_deleted(deployment: DeploymentRef) -> None:
    run = claimed(deployment)
    with connection() as conn:
        cancel.delete_run(conn, deployment.id, run.thread_id, run.run_id)


def loses_its_thread(deployment: DeploymentRef) -> None:
    run = claimed(deployment)
    with connection() as conn:
        cancel.delete_thread(conn, deployment.id, run.thread_id)


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

    finish(claimed(deployment, None))
    finish(claimed(deployment, None, temporary=True))
    with connection() as conn:
        roll_back(conn, claimed(deployment, None), error=ROLLED_BACK)

    assert outbox() == []


# Allowed webhook addresses


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("", "Invalid webhook hostname ''"),
        ("mailto:a@example.com", "Invalid webhook hostname ''"),
        ("https://exa\0mple.com/", "Invalid webhook URL"),
        ("https://[::1", "Invalid webhook URL"),
        ("http://example.com/", "Webhook must use https"),
        ("ftp://example.com/", "Webhook must use https"),
        ("https://localhost/", "Webhook host blocked: localhost address"),
        ("https://127.0.0.1/", "Webhook host blocked: loopback IP range"),
        ("https://10.0.0.1/", "Webhook host blocked: private or reserved IP range"),
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
    return webhooks.deployment_url("http://127.0.0.1:8080/", "chat", path)


LOOPS = {"disable_loopback": False}


def test_a_path_is_the_deployments_own_where_project_and_operator_allow_it(lenient: None) -> None:
    assert own("/hook?x=1") == "http://127.0.0.1:8080/d/chat/hook?x=1"
    webhooks.check("/hook?x=1", LOOPS, url_of=own)
    webhooks.check("/hook", {**LOOPS, "allowed_domains": ["a.example"], "allowed_ports": [443]}, url_of=own)
    for rules in ({}, {"disable_loopback": True}):
        with pytest.raises(Invalid, match="Invalid webhook hostname ''"):
            webhooks.check("/hook", rules, url_of=own)


def test_a_path_is_not_called_where_only_the_project_allows_it() -> None:
    with pytest.raises(Invalid, match="Webhook must use https"):
        webhooks.check("/hook", LOOPS, url_of=own)


STEPS = ["/..", "/../../v2/keys", "/a/%2e%2E/b", "/.%2e/x", "/a%2f..%2fb", "/a\\..\\b", "/./x"]


@pytest.mark.parametrize("path", STEPS)
def test_a_path_stays_in_its_deployment(lenient: None, path: str) -> None:
    with pytest.raises(Invalid, match="Webhook path must not"):
        webhooks.check(path, LOOPS, url_of=own)


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
