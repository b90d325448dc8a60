"""A stream that is cut at one web process resumes at another, from the last id that its client has seen."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from itertools import islice
from typing import Any
from uuid import uuid4

import httpx
import orjson
import pytest
from langgraph_sdk.schema import StreamPart
from langgraph_sdk.sse import SSEDecoder, iter_lines_raw

import tests.support.factories as make
from shared.access.api_keys import DEFAULT_ORGANIZATION_ID
from shared.infra import encryption
from tests.contract.conftest import Api
from tests.support.acting import Actor
from tests.support.web_process import KEY, started
from workers.graph_host import serialization

AWKWARD = [
    "line\r\nfeed\rreturn\n\nempty line",
    "line separator\u2028paragraph separator\u2029next line\x85form feed\x0c",
    "data: a\nevent: end\nid: 999\n: comment\n\n",
    "nul\x00 bell\x07 delete\x7f byte order mark\ufeff",
    "emoji 🙂 and combining e\u0301",
]
LONE_SURROGATE = "half \ud83d of a pair"


@pytest.fixture(scope="module")
def processes(
    database: str, redis_url: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[str, str]]:
    """URLs of two web processes of one platform."""
    shared = {"REDIS_URL": redis_url, "RUNYARD_ENCRYPTION_KEYS": encryption.new_key()}
    with ExitStack() as running:
        data_dir = tmp_path_factory.mktemp("data")
        one, other = (running.enter_context(started(database, data_dir, **shared)) for _ in range(2))
        yield one[1], other[1]


@pytest.fixture
def run(api: Api) -> tuple[str, Actor]:
    """Path of a running resumable run's stream, and the runner that executes the run."""
    # The name is unique because the web processes cache deployments by name for a moment.
    deployment = make.deployment(organization_id=DEFAULT_ORGANIZATION_ID, name=f"chat-{uuid4().hex[:8]}")
    body = {"assistant_id": "agent", "stream_resumable": True, "stream_mode": ["custom"]}
    made: Any = Api(api.client, deployment).post("/runs", {**body, "on_completion": "keep"}).json
    return f"/d/{deployment.name}/runs/{made['run_id']}/stream", Actor(made["run_id"])


@contextmanager
def parts(base: str, path: str, last: str | None) -> Iterator[Iterator[StreamPart]]:
    """Yield an iterator of the stream's parts as the Python client reads them."""
    headers = {"x-api-key": KEY, "last-event-id": last or "-1"}
    with httpx.stream("GET", base + path, headers=headers, timeout=30) as response:
        assert response.status_code == 200
        decoder = SSEDecoder()
        decoded = (decoder.decode(bytes(line)) for line in iter_lines_raw(response))
        yield (part for part in decoded if part is not None and part.event == "custom")


def test_a_stream_goes_on_at_another_process(processes: tuple[str, str], run: tuple[str, Actor]) -> None:
    path, actor = run
    seen: list[Any] = []
    last = None
    for turn in range(6):
        for number in range(10):
            actor.emit("custom", 10 * turn + number)
        with parts(processes[turn % 2], path, last) as stream:
            for part in islice(stream, 7):
                seen.append(part.data)
                last = part.id
    actor.finish({})
    with parts(processes[0], path, last) as stream:
        seen += [part.data for part in stream]
    assert seen == list(range(60))


def test_both_have_the_same_ids(processes: tuple[str, str], run: tuple[str, Actor]) -> None:
    path, actor = run
    with parts(processes[0], path, None) as one, parts(processes[1], path, None) as other:
        for number in range(20):
            actor.emit("custom", number)
        actor.finish({})
        assert list(one) == list(other)


def test_text_of_any_characters_comes_as_it_was_written(
    processes: tuple[str, str], run: tuple[str, Actor]
) -> None:
    path, actor = run
    for text in (*AWKWARD, LONE_SURROGATE):
        actor.emit("custom", serialization.dumps({"text": text}))
    actor.finish({})
    with parts(processes[0], path, None) as stream:
        read = [part.data["text"] for part in stream]
    assert read[:-1] == AWKWARD
    assert read[-1].startswith("half ")
    assert read[-1].endswith(" of a pair")
    assert orjson.dumps(read[-1]), "it is proper text by now"
