"""Streams of runs as clients read them: created or joined, as bytes or as event names."""

from __future__ import annotations

from typing import Any

import orjson
from werkzeug.test import TestResponse

from tests.contract.conftest import Api

HEARTBEAT = ": heartbeat\r\n\r\n"
FAILURE = {"error": "ValueError", "message": "boom"}


# stream modes of the runs in tests
MODES = {"stream_mode": ["values", "updates", "custom"], "stream_subgraphs": True}


def start(api: Api, thread_id: str, **body: Any) -> str:
    asked = {"assistant_id": "agent", **MODES, **body}
    return api.post(f"/threads/{thread_id}/runs", asked).json["run_id"]


def stream(api: Api, thread_id: str, **body: Any) -> tuple[TestResponse, str]:
    """Create a run and stream it. Returns the open response and the run's id."""
    path = f"/threads/{thread_id}/runs/stream"
    response = api.post(path, {"assistant_id": "agent", **MODES, **body}, buffered=False)
    assert response.status_code == 200, response.text
    return response, api.get(f"/threads/{thread_id}/runs").json[0]["run_id"]


def text_of(response: TestResponse) -> str:
    """Read the rest of a stream without its heartbeats."""
    return response.text.replace(HEARTBEAT, "")


def sse(name: str, data: Any, id: int | None = None) -> str:
    tail = "" if id is None else f"id: {id}\r\n"
    return f"event: {name}\r\ndata: {orjson.dumps(data).decode()}\r\n{tail}\r\n"


def first(run_id: str, attempt: int = 1, id: int | None = None) -> str:
    return sse("metadata", {"run_id": run_id, "attempt": attempt}, id)


def join(api: Api, run_id: str, last: str | None = None, query: str = "") -> TestResponse:
    headers = {} if last is None else {"Last-Event-ID": last}
    response = api.get(f"/runs/{run_id}/stream{query}", headers=headers, buffered=False)
    assert response.status_code == 200, response.text
    return response


ALL = [("metadata", 1), ("values", 2), ("updates", 3)]


def names(response: TestResponse) -> list[tuple[str, int]]:
    """Return `(name, id)` of a resumable stream's events."""
    events = [event.split("\r\n") for event in text_of(response).split("\r\n\r\n") if event]
    return [(lines[0].removeprefix("event: "), int(lines[2].removeprefix("id: "))) for lines in events]
