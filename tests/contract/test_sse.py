"""Streams over HTTP: bytes, headers, heartbeats, and the effects of a disconnected client."""

from __future__ import annotations

from collections.abc import Iterator
from uuid import UUID

from tests.contract.conftest import Api
from tests.contract.statements import execute
from tests.contract.streaming import HEARTBEAT, first, sse, start, stream, text_of
from tests.support.acting import Actor, act


def test_a_stream_is_the_contracts_sample(api: Api, thread_id: str) -> None:
    response, run_id = stream(api, thread_id)
    actor = Actor(run_id)
    actor.emit("values", {"q": "é\u2028\n", "log": []})
    actor.emit("updates|child:1|inner:2", {"pre": None})
    actor.finish({"q": ""})

    path = f"/threads/{thread_id}/runs/{run_id}"
    assert response.headers["Location"] == f"{path}/stream"
    assert response.headers["Content-Location"] == path
    assert response.headers["Cache-Control"] == "no-store"
    assert response.headers["X-Accel-Buffering"] == "no"
    assert response.headers["Content-Type"] == "text/event-stream; charset=utf-8"
    assert text_of(response) == (
        first(run_id)
        + 'event: values\r\ndata: {"q":"é\u2028\\n","log":[]}\r\n\r\n'
        + 'event: updates|child:1|inner:2\r\ndata: {"pre":null}\r\n\r\n'
    )


def test_a_stream_without_a_thread_names_the_run_alone(api: Api) -> None:
    response = api.post("/runs/stream", {"assistant_id": "agent"}, buffered=False)
    path = response.headers["Content-Location"]
    run_id = path.removeprefix("/runs/")
    assert str(UUID(run_id)) == run_id
    assert response.headers["Location"] == f"{path}/stream"
    act(run_id, {"a": 1})
    assert text_of(response) == first(run_id) + sse("values", {"a": 1})


def test_headers_go_out_before_there_is_anything_to_send(api: Api, thread_id: str) -> None:
    api.set(heartbeat_seconds=3600)
    run_id = start(api, thread_id)
    runs, body = f"/threads/{thread_id}/runs", {"assistant_id": "agent"}
    for method, path, sent in (
        ("GET", f"{runs}/{run_id}/stream", None),
        ("GET", f"{runs}/{run_id}/join", None),
        ("GET", f"/threads/{thread_id}/stream", None),
        ("POST", f"{runs}/stream", body),
        ("POST", f"{runs}/wait", body),
    ):
        response = api.call(method, path, sent, buffered=False)
        assert not next(response.iter_encoded()), path
        response.close()


def test_heartbeats_are_comments_and_go_on_between_events(api: Api, thread_id: str) -> None:
    response, run_id = stream(api, thread_id, stream_resumable=True)
    chunks = response.iter_encoded()

    def beats(chunks: Iterator[bytes], wanted: int) -> list[bytes]:
        return [
            chunk for chunk in (next(chunks) for _ in range(wanted)) if chunk.endswith(HEARTBEAT.encode())
        ]

    assert next(chunks).startswith(b"event: metadata")
    assert beats(chunks, 3) == [HEARTBEAT.encode()] * 3
    actor = Actor(run_id)
    actor.emit("values", {"a": 1})
    while b"event: values" not in next(chunks):
        pass
    assert beats(chunks, 2) == [HEARTBEAT.encode()] * 2
    actor.finish({})
    assert b"".join(chunks).replace(HEARTBEAT.encode(), b"") == b""
    response.close()


def test_heartbeats_do_not_wait_for_a_quiet_spell(api: Api, thread_id: str) -> None:
    response, run_id = stream(api, thread_id)
    actor = Actor(run_id)
    chunks = response.iter_encoded()
    seen, number = b"", 0
    while HEARTBEAT.encode() not in seen:
        actor.emit("custom", number)
        number += 1
        seen += next(chunks)
    actor.finish({})
    assert b"event: custom" in seen + b"".join(chunks)
    response.close()


def test_another_attempt_says_so_under_higher_ids(api: Api, thread_id: str) -> None:
    response, run_id = stream(api, thread_id, stream_resumable=True)
    actor = Actor(run_id)
    actor.emit("values", {"a": 1})
    execute("UPDATE run SET status = 'pending', owner = NULL, not_before = NULL")
    again = Actor(run_id, owner="another")
    again.finish({"a": 2})
    assert text_of(response) == (
        first(run_id, id=1) + sse("values", {"a": 1}, 2) + first(run_id, attempt=2, id=501)
    )


def test_a_client_that_stays_to_the_end_cancels_nothing(api: Api, thread_id: str) -> None:
    response, run_id = stream(api, thread_id, on_disconnect="cancel")
    act(run_id, {})
    assert text_of(response) == first(run_id) + sse("values", {})
    assert api.get(f"/threads/{thread_id}/runs/{run_id}").json["status"] == "success"
