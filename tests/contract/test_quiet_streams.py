"""Quiet streams and WebSockets, served by gunicorn: clients that leave them, and the memory of an idle one.

Heartbeats are an hour apart, so the server cannot notice a disconnected client by a failed write.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from uuid import UUID

import httpx
import psutil
import pytest

import tests.support.factories as make
from shared.infra.postgres import connection
from shared.runs import claims
from tests.contract.conftest import Api
from tests.support import open_connections
from tests.support.acting import Actor
from tests.support.protocol import ALL
from tests.support.sockets import TEXT, Raw, message
from tests.support.waiting import wait_until
from tests.support.web_process import KEY, started

MOST_BYTES = 30_000  # per socket
SOCKETS = 300
WARMING = 50  # sockets until all one-time allocations are done
BODY = {"assistant_id": "agent", "on_disconnect": "cancel"}
READERS = {
    "stream": ("POST", "runs/stream", BODY),
    "wait": ("POST", "runs/wait", BODY),
    "join": ("GET", "runs/{run_id}/join?cancel_on_disconnect=true", None),
    "joined stream": ("GET", "runs/{run_id}/stream?cancel_on_disconnect=true", None),
}


@pytest.fixture(scope="module")
def served(
    database: str, redis_url: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[psutil.Process, str]]:
    quiet = "tests.support.quiet_web:app"
    with started(database, tmp_path_factory.mktemp("data"), app=quiet, REDIS_URL=redis_url) as (
        arbiter,
        base,
    ):
        (worker,) = psutil.Process(arbiter.pid).children()
        yield worker, base


@contextmanager
def reading(base: str, chat: Api, thread_id: str, how: str, run_id: str) -> Iterator[httpx.Response]:
    """Yield a response whose headers the client has received."""
    method, path, body = READERS[how]
    url = f"{base}/d/{chat.deployment.name}/threads/{thread_id}/{path.format(run_id=run_id)}"
    with httpx.stream(method, url, json=body, headers={"x-api-key": KEY}, timeout=30) as response:
        assert response.status_code == 200
        yield response


def newest(chat: Api, thread_id: str) -> Any:
    return chat.get(f"/threads/{thread_id}/runs").json[0]


def is_to_stop(actor: Actor) -> bool:
    with connection() as conn:
        held = claims.renew(conn, [actor.run.run_id], owner=actor.run.owner, lease_seconds=30)
    return held[UUID(str(actor.run.run_id))].cancel_requested == "interrupt"


@pytest.mark.parametrize("how", READERS)
def test_a_silent_run_is_cancelled_when_its_client_leaves(
    served: tuple[psutil.Process, str], chat: Api, how: str
) -> None:
    thread_id = chat.post("/threads").json["thread_id"]
    run_id = "" if READERS[how][2] else chat.post(f"/threads/{thread_id}/runs", BODY).json["run_id"]
    with reading(served[1], chat, thread_id, how, run_id):
        actor = Actor(newest(chat, thread_id)["run_id"])
        assert not is_to_stop(actor)

    wait_until(lambda: is_to_stop(actor), timeout=30)


def test_nothing_is_left_of_clients_that_left(served: tuple[psutil.Process, str], chat: Api) -> None:
    base = served[1]
    thread_id = chat.post("/threads").json["thread_id"]
    before = open_connections.held(base)
    for _ in range(30):
        with reading(base, chat, thread_id, "stream", ""):
            run_id = newest(chat, thread_id)["run_id"]
        path = f"/threads/{thread_id}/runs/{run_id}"
        wait_until(lambda path=path: chat.get(path).json["status"] == "interrupted", timeout=30)
    wait_until(lambda: open_connections.held(base) <= before, timeout=30)


def test_an_idle_socket_takes_no_more_than_so_much(served: tuple[psutil.Process, str], chat: Api) -> None:
    worker, base = served
    deployment = chat.deployment
    with ExitStack() as held:

        def subscribe(count: int) -> None:
            for _ in range(count):
                raw = held.enter_context(Raw(base, deployment.name, str(make.thread(deployment.id)), KEY))
                raw.send(TEXT, message(1, "subscription.subscribe", channels=list(ALL)))
                assert raw.answer()["type"] == "success"

        subscribe(WARMING)
        before = worker.memory_info().rss
        subscribe(SOCKETS)
        assert (worker.memory_info().rss - before) / SOCKETS <= MOST_BYTES
