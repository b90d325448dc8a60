"""Polling a revision, and waiting for the next lines of a deployment's log."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import UTC, datetime
from typing import Any
from uuid import UUID, uuid4

import pytest
from flask.testing import FlaskClient
from redis import Redis
from sqlalchemy import Engine
from werkzeug.test import TestResponse

from shared.deployments import logs, revision_events, revisions
from shared.deployments.logs import DEPLOY, Line
from shared.eventlog.events import channel
from shared.eventlog.hub import hub
from shared.infra import postgres, redis
from shared.infra.postgres import connection
from tests.contract.conftest import ADMIN_KEY, ControlPlane, caller
from tests.support.waiting import wait_until


def address(deployment: Any) -> str:
    return f"/v2/deployments/{deployment['id']}/revisions/{deployment['latest_revision_id']}"


def get(control: ControlPlane, path: str, held: str | None = None, **query: Any) -> TestResponse:
    headers = {} if held is None else {"If-None-Match": held}
    return control.call("GET", path, query_string=query, headers=headers)


def interrupt(control: ControlPlane, deployment: Any) -> None:
    assert control.post(f"{address(deployment)}/interrupt").status_code == 200


class Poller:
    """A caller that waits in another thread."""

    def __init__(self, client: FlaskClient, pool: ThreadPoolExecutor) -> None:
        self._control, self._pool = ControlPlane(client), pool

    def get(self, path: str, held: str | None = None, *, wait: int) -> Future[TestResponse]:
        """Start a request that waits. Returns its future once the web process waits for a notification."""
        asked = self._pool.submit(get, self._control, path, held, wait=wait)
        id = UUID(path.rpartition("/")[2])
        wait_until(lambda: _is_followed(id) or asked.done(), 10, what="the caller to wait")
        return asked


def _is_followed(id: UUID) -> bool:
    return any(reader.confirmed for reader in hub()._readers.get(channel(id), ()))


@pytest.fixture
def poller(control: ControlPlane) -> Iterator[Poller]:
    with ThreadPoolExecutor() as pool:
        yield Poller(caller(control.client.application, ADMIN_KEY), pool)


@pytest.mark.parametrize("what", ["deployment", "revision"])
def test_a_record_one_holds_already_is_not_sent_again(
    control: ControlPlane, deployed: Any, what: str
) -> None:
    path = address(deployed) if what == "revision" else f"/v2/deployments/{deployed['id']}"
    first = get(control, path)
    assert first.status_code == 200
    assert first.headers["Cache-Control"] == "private, no-cache"
    tag = first.headers["ETag"]
    assert tag.startswith('"')

    for held in (tag, f'"other", {tag}', f"W/{tag}", "*"):
        again = get(control, path, held)
        assert (again.status_code, again.data) == (304, b""), held
        assert again.headers["ETag"] == tag
        assert "Content-Type" not in again.headers

    interrupt(control, deployed)
    if what == "deployment":
        control.change(deployed, display_name="Another")
    changed = get(control, path, tag)
    assert changed.status_code == 200
    assert changed.headers["ETag"] != tag


def test_who_waits_learns_of_the_end_at_once(control: ControlPlane, deployed: Any, poller: Poller) -> None:
    asked = poller.get(address(deployed), wait=25)
    assert not asked.done()
    interrupt(control, deployed)
    answer = asked.result(timeout=10)
    assert answer.json["status"] == "INTERRUPTED"  # type: ignore[index]
    assert answer.headers["ETag"]


def test_who_holds_a_record_learns_of_its_change(
    control: ControlPlane, deployed: Any, poller: Poller
) -> None:
    held = get(control, address(deployed)).headers["ETag"]
    asked = poller.get(address(deployed), held, wait=25)
    id = UUID(deployed["latest_revision_id"])
    with connection() as conn:
        assert revisions.claim(conn, id, owner="a builder", lease_seconds=30)
        moved = revisions.Transition(id, "BUILDING", None, 1_000, 1_000)
    revision_events.announce([moved])
    answer = asked.result(timeout=10)
    assert answer.json["status"] == "BUILDING"  # type: ignore[index]


def test_what_nobody_announced_is_found_too(
    control: ControlPlane, deployed: Any, poller: Poller, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(revision_events, "LOOK_SECONDS", 0.05)
    asked = poller.get(address(deployed), wait=25)
    with connection() as conn:
        revisions.interrupt(conn, UUID(deployed["id"]), UUID(deployed["latest_revision_id"]), reason="")
    assert asked.result(timeout=10).json["status"] == "INTERRUPTED"  # type: ignore[index]


def test_a_wait_ends_with_what_there_is_and_is_none_when_there_is_news(
    control: ControlPlane, deployed: Any
) -> None:
    assert get(control, address(deployed), wait=1).json["status"] == "AWAITING_BUILD"  # type: ignore[index]
    held = get(control, address(deployed)).headers["ETag"]
    assert get(control, address(deployed), held, wait=1).status_code == 304
    assert get(control, address(deployed), '"older"', wait=25).status_code == 200
    interrupt(control, deployed)
    assert get(control, address(deployed), wait=9_999).json["status"] == "INTERRUPTED"  # type: ignore[index]


def test_a_deployment_that_goes_ends_the_wait(control: ControlPlane, deployed: Any, poller: Poller) -> None:
    asked = poller.get(address(deployed), wait=25)
    assert control.call("DELETE", f"/v2/deployments/{deployed['id']}").status_code == 204
    assert asked.result(timeout=10).status_code == 404


def test_many_wait_at_once_and_hold_no_connection(
    control: ControlPlane, deployed: Any, db: Engine, redis: Redis
) -> None:
    with ThreadPoolExecutor(40) as pool:
        pollers = [Poller(caller(control.client.application, ADMIN_KEY), pool) for _ in range(40)]
        asked = [poller.get(address(deployed), wait=25) for poller in pollers]
        wait_until(lambda: _waiting(deployed) == 40, 10, what="all to wait")
        assert postgres._quick is not None
        wait_until(lambda: postgres._quick.pool.checkedout() == 0, 10, what="no connection to be held")  # type: ignore[union-attr, attr-defined]
        interrupt(control, deployed)
        answers = [future.result(timeout=20).json for future in asked]
    assert {answer["status"] for answer in answers} == {"INTERRUPTED"}  # type: ignore[index]


def _waiting(deployment: Any) -> int:
    return len(hub()._readers.get(channel(UUID(deployment["latest_revision_id"])), ()))


def test_a_hub_that_closes_ends_the_wait(control: ControlPlane, deployed: Any, poller: Poller) -> None:
    asked = poller.get(address(deployed), wait=25)
    for reader in hub()._all():
        reader.close()
    answer = asked.result(timeout=10)
    assert answer.json["status"] == "AWAITING_BUILD"  # type: ignore[index]


def test_one_look_finds_what_is_missing(control: ControlPlane, stranger: ControlPlane, deployed: Any) -> None:
    path = address(deployed)
    nobody = uuid4()
    wrong = get(control, path.replace(deployed["latest_revision_id"], str(nobody)))
    assert (wrong.status_code, wrong.json) == (404, {"detail": f"Revision ID {nobody} not found."})
    for control_plane, at in ((stranger, path), (control, path.replace(deployed["id"], str(nobody)))):
        missing = get(control_plane, at, wait=5)
        assert missing.status_code == 404
        assert missing.json["detail"].startswith("Deployment ID")  # type: ignore[index]


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
