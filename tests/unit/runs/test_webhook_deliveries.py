"""Deliveries in the outbox reach the receiver, signed, with retries, and under one id each."""

from __future__ import annotations

import base64
import hashlib
import hmac
from collections.abc import Iterator
from datetime import UTC, datetime

import orjson
import pytest
from sqlalchemy import text

from shared.deployments import secrets
from shared.deployments.deployments import DeploymentRef
from shared.infra import egress, encryption
from shared.infra.postgres import connection, dumps
from shared.removal import deletion
from shared.runs import read, webhook_records, webhooks
from shared.runs.read import RUN
from tests.support import factories
from tests.support.hooked import SERVICE, claimed, finish, loses_its_deployment, outbox, pending
from tests.support.receiver import Receiver, receiving
from tests.support.waiting import wait_until
from workers.upkeep import webhook_deliveries as delivering
from workers.upkeep.webhook_deliveries import Deliveries


@pytest.fixture
def receiver(lenient: None) -> Iterator[Receiver]:
    with receiving() as receiver:
        yield receiver


def take(limit: int = 10) -> list[webhooks.Delivery]:
    with connection() as conn:
        return webhooks.claim(conn, owner="a", limit=limit)


def make_due() -> None:
    """Make all open deliveries due now."""
    with connection() as conn:
        conn.execute(text("UPDATE webhook_delivery SET due_at = now() WHERE ended_at IS NULL"))


def test_a_receiver_is_sent_the_run_as_it_ended(deployment: DeploymentRef, receiver: Receiver) -> None:
    run = claimed(deployment, receiver.url)
    with connection() as conn:
        record = RUN.show(read.get(conn, deployment.id, run.run_id))
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


def whsec(*keys: bytes) -> str:
    return " ".join(f"whsec_{base64.b64encode(key).decode()}" for key in keys)


@pytest.mark.parametrize(
    ("secret", "keys"),
    [
        ("a plain secret", [b"a plain secret"]),
        (whsec(b"thirty-two bytes"), [b"thirty-two bytes"]),
        (whsec(b"the new secret", b"the old secret"), [b"the new secret", b"the old secret"]),
    ],
)
def test_it_is_signed_with_each_secret_of_what_serves(
    deployment: DeploymentRef, receiver: Receiver, own_key: None, secret: str, keys: list[bytes]
) -> None:
    assert deployment.active_revision_id is not None
    with connection() as conn:
        secrets.replace(conn, deployment.active_revision_id, [{"name": delivering.SECRET, "value": secret}])
    finish(claimed(deployment, receiver.url))
    delivering.deliver(*take(), SERVICE)

    [call] = receiver.calls
    signed = f"{call.headers['Webhook-Id']}.{call.headers['Webhook-Timestamp']}.".encode() + call.body
    expected = [base64.b64encode(hmac.digest(key, signed, hashlib.sha256)).decode() for key in keys]
    assert call.headers["Webhook-Signature"] == " ".join(f"v1,{signature}" for signature in expected)


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
    make_due()  # the lease expires
    [again] = take()
    delivering.deliver(again, SERVICE)
    delivering.deliver(lost, SERVICE)  # the first process wakes up again

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
            webhook_records.deliver_again(conn, deployment.id, delivery.delivery_id)
    [again] = take()
    with connection() as conn:
        webhook_records.deliver_again(conn, deployment.id, delivery.delivery_id)
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
