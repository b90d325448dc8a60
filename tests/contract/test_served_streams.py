"""Streams and WebSockets served by gunicorn: streams that resume elsewhere, clients that leave, the memory of an idle one.

Heartbeats are an hour apart, so the server cannot notice a disconnected client by a failed write. The process of the tests
is a second web process of the same platform.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from itertools import islice
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import httpx
import orjson
import psutil
import pytest
from langgraph_sdk.schema import StreamPart
from langgraph_sdk.sse import SSEDecoder, iter_lines_raw

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
from workers.graph_host import serialization

MOST_BYTES = 30_000  # per socket
SOCKETS = 150
WARMING = 30  # sockets until all one-time allocations are done
BODY = {"assistant_id": "agent", "on_disconnect": "cancel"}
READERS = {
    "stream": ("POST", "runs/stream", BODY),
    "wait": ("POST", "runs/wait", BODY),
    "join": ("GET", "runs/{run_id}/join?cancel_on_disconnect=true", None),
    "joined stream": ("GET", "runs/{run_id}/stream?cancel_on_disconnect=true", None),
}


AWKWARD = [
    "line\r\nfeed\rreturn\n\nempty line",
    "line separator\u2028paragraph separator\u2029next line\x85form feed\x0c",
    "data: a\nevent: end\nid: 999\n: comment\n\n",
    "nul\x00 bell\x07 delete\x7f byte order mark\ufeff",
    "emoji 🙂 and combining e\u0301",
]
LONE_SURROGATE = "half \ud83d of a pair"


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


@pytest.fixture
def run(chat: Api) -> tuple[str, Actor]:
    """Path of a running resumable run's stream, and the runner that executes the run."""
    body = {"assistant_id": "agent", "stream_resumable": True, "stream_mode": ["custom"]}
    made: Any = chat.post("/runs", {**body, "on_completion": "keep"}).json
    return f"/d/{chat.deployment.name}/runs/{made['run_id']}/stream", Actor(made["run_id"])


@contextmanager
def parts(
    path: str, last: str | None, *, base: str = "", api: Api | None = None
) -> Iterator[Iterator[StreamPart]]:
    """Yield an iterator of the stream's parts as the Python client reads them, from one of the two processes."""
    headers = {"x-api-key": KEY, "last-event-id": last or "-1"}
    with ExitStack() as held:
        if api is None:
            response: Any = held.enter_context(httpx.stream("GET", base + path, headers=headers, timeout=30))
        else:
            answer = api.client.get(path, headers=headers, buffered=False)
            held.callback(answer.close)
            response = SimpleNamespace(status_code=answer.status_code, iter_bytes=answer.iter_encoded)
        assert response.status_code == 200
        decoder = SSEDecoder()
        decoded = (decoder.decode(bytes(line)) for line in iter_lines_raw(response))
        yield (part for part in decoded if part is not None and part.event == "custom")


def test_a_stream_goes_on_at_another_process_with_the_same_ids(
    served: tuple[psutil.Process, str], chat: Api, run: tuple[str, Actor]
) -> None:
    path, actor = run
    seen: list[Any] = []
    last = None
    for turn in range(4):
        for number in range(10):
            actor.emit("custom", 10 * turn + number)
        with parts(path, last, base=served[1], api=chat if turn % 2 else None) as stream:
            for part in islice(stream, 7):
                seen.append(part.data)
                last = part.id
    actor.finish({})
    with parts(path, last, base=served[1]) as stream:
        seen += [part.data for part in stream]
    assert seen == list(range(40))
    with parts(path, None, base=served[1]) as one, parts(path, None, api=chat) as other:
        assert list(one) == list(other)


def test_text_of_any_characters_comes_as_it_was_written(
    served: tuple[psutil.Process, str], run: tuple[str, Actor]
) -> None:
    path, actor = run
    for text in (*AWKWARD, LONE_SURROGATE):
        actor.emit("custom", serialization.dumps({"text": text}))
    actor.finish({})
    with parts(path, None, base=served[1]) as stream:
        read = [part.data["text"] for part in stream]
    assert read[:-1] == AWKWARD
    assert read[-1].startswith("half ")
    assert read[-1].endswith(" of a pair")
    assert orjson.dumps(read[-1]), "it is proper text by now"


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
    for _ in range(10):
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
