"""Limits of one key in a web process: requests, streams, and streams only while the key is valid."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from itertools import islice
from uuid import UUID

import pytest
from flask import Flask
from prometheus_client import Gauge
from werkzeug.test import TestResponse

import tests.support.factories as make
from shared.access import api_keys
from shared.access.api_keys import DEFAULT_ORGANIZATION_ID, Caller
from shared.errors import TooMany
from shared.infra.postgres import connection
from shared.settings import Settings
from tests.contract.conftest import ADMIN_KEY, Api, MakeApp, caller, new_key
from web.gate.limits import Buckets, Streams
from web.http import sse

Open = Callable[[Api], TestResponse]


@pytest.fixture
def bounded(app_with: MakeApp) -> MakeApp:
    """Function that makes the app with these limits."""
    return partial(app_with, heartbeat_seconds=0.05)


def test_a_bucket_holds_a_burst_and_fills_at_its_rate() -> None:
    buckets = Buckets(rate=2, burst=3)
    assert [buckets.take("a", 0.0) for _ in range(4)] == [0, 0, 0, 0.5]
    assert buckets.take("b", 0.0) == 0, "each key has its own"
    assert buckets.take("a", 0.25) == 0.25
    assert buckets.take("a", 0.5) == 0
    assert [buckets.take("a", 100.0) for _ in range(4)] == [0, 0, 0, 0.5], "it never holds more than a burst"


def test_a_key_that_asks_too_often_gets_a_retry_after(bounded: MakeApp) -> None:
    busy = bounded(requests_per_second=0.1, requests_burst=3)
    friend, other = caller(busy, new_key("run")), caller(busy, new_key("run"))
    assert [friend.get("/v2/deployments").status_code for _ in range(4)] == [200, 200, 200, 429]
    refused = friend.get("/v2/deployments")
    assert refused.json == {"detail": "This API key sends too many requests: see Retry-After"}
    assert 1 <= int(refused.headers["Retry-After"]) <= 10
    assert friend.get("/ok").status_code == 200
    assert other.get("/v2/deployments").status_code == 200
    operator = caller(busy, ADMIN_KEY)
    assert {operator.get("/v2/deployments").status_code for _ in range(5)} == {200}
    unbounded = caller(bounded(requests_per_second=0, requests_burst=1), new_key("run"))
    assert {unbounded.get("/v2/deployments").status_code for _ in range(5)} == {200}


@pytest.fixture
def open_stream(api: Api) -> Iterator[Open]:
    """Function that opens a stream of a run that does not start."""
    run_id = make.run(api.deployment, kwargs={"resumable": False})
    opened: list[TestResponse] = []

    def open_one(who: Api) -> TestResponse:
        opened.append(who.get(f"/runs/{run_id}/stream"))
        return opened[-1]

    yield open_one
    for response in opened:
        response.close()


def test_a_key_has_so_many_streams_and_no_more(api: Api, bounded: MakeApp, open_stream: Open) -> None:
    busy = bounded(streams_per_key=2)
    friend, other = (Api(caller(busy, new_key("run")), api.deployment) for _ in range(2))
    first, second, refused = (open_stream(friend) for _ in range(3))
    assert (first.status_code, second.status_code) == (200, 200)
    assert (refused.status_code, refused.headers["Retry-After"]) == (429, "5")
    assert "2 open streams" in refused.text
    assert open_stream(other).status_code == 200
    before = friend.post("/threads/count").json
    assert friend.post("/runs/stream", {"assistant_id": "agent"}).status_code == 429
    assert friend.post("/threads/count").json == before, "no run without its follower"

    first.close()
    assert open_stream(friend).status_code == 200


def test_a_process_has_so_many_streams_and_no_more(api: Api, bounded: MakeApp, open_stream: Open) -> None:
    busy = bounded(max_streams=1)
    friend, operator = (Api(caller(busy, text), api.deployment) for text in (new_key("run"), ADMIN_KEY))
    first = open_stream(friend)
    for _ in range(20):
        refused = open_stream(operator)
        assert (refused.status_code, refused.headers["Retry-After"]) == (503, "2")
    assert sse.HEARTBEAT in islice(first.iter_encoded(), 5), "it goes on beside them"
    first.close()
    assert open_stream(operator).status_code == 200


@pytest.mark.parametrize("role", ["run", "operator"])
def test_one_key_leaves_streams_to_the_others(
    api: Api, bounded: MakeApp, open_stream: Open, role: str
) -> None:
    busy = bounded(max_streams=10)
    greedy = Api(caller(busy, ADMIN_KEY if role == "operator" else new_key("run")), api.deployment)
    opened = [open_stream(greedy) for _ in range(10)]

    assert [response.status_code for response in opened] == [200] * 8 + [429] * 2
    assert opened[-1].headers["Retry-After"] == "5"
    assert "8 open streams" in opened[-1].text
    others = [Api(caller(busy, new_key("run")), api.deployment) for _ in range(2)]
    assert [open_stream(other).status_code for other in others] == [200, 200]

    opened[0].close()
    assert open_stream(greedy).status_code == 429, "what it gives back is for others now"
    assert open_stream(others[0]).status_code == 429, "also those who have one"
    assert open_stream(Api(caller(busy, new_key("run")), api.deployment)).status_code == 200


def test_a_stream_is_left_however_many_callers_take_what_they_can() -> None:
    for most in (2, 3, 10, 100):
        for callers in (1, 2, 3):
            streams = Streams(Settings(max_streams=most), Gauge("shown", "", registry=None))
            several = [Caller(UUID(int=0), "", f"k{n}", "operator") for n in range(min(callers, most - 1))]
            for _ in range(most):
                for who in several:
                    with suppress(TooMany):
                        streams.open(who)

            assert streams.count < most, callers
            streams.open(Caller(UUID(int=0), "", "late", "run"))


def test_what_is_refused_takes_no_slot(api: Api, bounded: MakeApp) -> None:
    busy = bounded(max_streams=1)
    friend = Api(caller(busy, new_key("run")), api.deployment)
    run_id = make.run(api.deployment)
    streams: Streams = busy.extensions["runyard_streams"]
    for path in (
        f"/runs/{run_id}/stream?cancel_on_disconnect=maybe",
        "/runs/00000000/stream",
        "/nowhere/stream",
    ):
        for _ in range(3):
            assert friend.get(path).status_code in (404, 422), path
        assert (path, streams.count) == (path, 0)


@pytest.mark.parametrize("ending", ["stream", "join", "ag-ui"])
def test_a_stream_ends_with_the_key_it_was_opened_with(
    app: Flask, api: Api, monkeypatch: pytest.MonkeyPatch, ending: str
) -> None:
    monkeypatch.setattr(sse, "KEY_CHECK_SECONDS", 0.0)
    text = new_key("run")
    friend = Api(caller(app, text), api.deployment)
    thread_id = make.thread(api.deployment.id)
    run_id = make.run(
        api.deployment, thread_id, kwargs={"resumable": False, "stream_mode": [], "subgraphs": False}
    )
    path = f"/ag-ui/agent?threadId={thread_id}" if ending == "ag-ui" else f"/runs/{run_id}/{ending}"
    response = friend.get(path)
    body = response.iter_encoded()
    next(body)
    with connection() as conn:
        api_keys.revoke(conn, DEFAULT_ORGANIZATION_ID, text.split("_")[1])
    if ending == "stream":
        assert b"".join(body).replace(sse.HEARTBEAT, b"") == b""
    elif ending == "ag-ui":  # its clients take a stream without a last event for one that is not over
        assert b'"RUN_ERROR"' in list(body)[-1]
    else:  # a missing answer must not look like an empty one
        with pytest.raises(ConnectionResetError):
            list(body)
    response.close()
    assert app.extensions["runyard_streams"].count == 0
