"""Waiting for the next lines of a deployment's log."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import pytest
from werkzeug.test import TestResponse

from shared.deployments import logs
from shared.deployments.logs import DEPLOY, Line
from shared.eventlog.hub import hub
from shared.infra import redis
from shared.infra.postgres import connection
from tests.contract.conftest import ADMIN_KEY, ControlPlane, caller
from tests.support.waiting import wait_until


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor() as pool:
        yield pool


def say(deployment: Any, message: str) -> None:
    """Append a line to the deployment's log and notify readers, as a runner does."""
    line = Line(UUID(deployment["id"]), None, DEPLOY, datetime.now(UTC), "INFO", message)
    with connection() as conn:
        logs.append(conn, [line])
    logs.notify([line])


def ask(control: ControlPlane, deployment: Any, wait: int, **body: Any) -> TestResponse:
    path = f"/v1/projects/{deployment['id']}/deploy_logs"
    return control.call("POST", path, {"order": "asc", **body}, query_string={"wait": wait})


def waiting(control: ControlPlane, deployment: Any, pool: ThreadPoolExecutor, **body: Any) -> Future[Any]:
    """Start a request that waits for lines. Returns its future once the web process waits for a notification."""
    other = ControlPlane(caller(control.client.application, ADMIN_KEY))
    asked = pool.submit(ask, other, deployment, 25, **body)
    channel = logs.channel(UUID(deployment["id"]))
    wait_until(
        lambda: asked.done() or any(reader.confirmed for reader in hub()._readers.get(channel, ())),
        10,
        what="the reader to wait",
    )
    return asked


def test_a_reader_is_answered_when_a_line_is_said(
    control: ControlPlane, deployed: Any, pool: ThreadPoolExecutor
) -> None:
    asked = waiting(control, deployed, pool)
    assert not asked.done()
    say(deployed, "hello")
    first = asked.result(15).json
    assert [line["message"] for line in first["logs"]] == ["hello"]

    asked = waiting(control, deployed, pool, offset=first["next_offset"])
    say(deployed, "again")
    assert [line["message"] for line in asked.result(15).json["logs"]] == ["again"]


def test_a_stored_line_is_announced_to_the_readers_of_its_deployment_alone(deployed: Any) -> None:
    with redis.client().pubsub() as reader:
        reader.psubscribe(f"{redis.PREFIX}log:*")
        assert reader.get_message(timeout=10)
        say(deployed, "hello")
        say(deployed, "again")
        announced = [reader.get_message(timeout=10) for _ in range(2)]
    assert [message and message["channel"] for message in announced] == [
        logs.channel(UUID(deployed["id"]))
    ] * 2


def test_a_line_that_does_not_match_answers_nobody(
    control: ControlPlane, deployed: Any, pool: ThreadPoolExecutor
) -> None:
    asked = waiting(control, deployed, pool, level="ERROR")
    say(deployed, "hello")
    line = Line(UUID(deployed["id"]), None, DEPLOY, datetime.now(UTC), "ERROR", "broken")
    with connection() as conn:
        logs.append(conn, [line])
    logs.notify([line])
    assert [line["message"] for line in asked.result(15).json["logs"]] == ["broken"]


def test_without_a_line_the_answer_comes_in_time_and_is_empty(control: ControlPlane, deployed: Any) -> None:
    assert ask(control, deployed, 1).json == {"logs": [], "next_offset": None}
    assert ask(control, deployed, -1).status_code == 422
