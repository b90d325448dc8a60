"""Paths of runs and of their streams, for the `Location` and `Content-Location` headers of answers.

Paths begin at the deployment's own root. Clients append them to the base address that they know.
"""

from __future__ import annotations

from uuid import UUID

from shared.records import JsonSchema

RUN_HEADERS = ("Content-Location",)
FOLLOWED_HEADERS = ("Location", "Content-Location")
OUTPUT: JsonSchema = {
    "description": "The thread's values, with `__interrupt__` if the graph waits for an answer. Only `__error__` if the run"
    " failed. White space precedes the JSON if the run takes long."
}


def run_path(thread_id: UUID | None, run_id: UUID, suffix: str = "") -> str:
    root = "" if thread_id is None else f"/threads/{thread_id}"
    return f"{root}/runs/{run_id}{suffix}"


def stream_headers(thread_id: UUID | None, run_id: UUID) -> dict[str, str]:
    """Return the headers of a run's event stream. `Location` is where a client rejoins a stream that it lost."""
    return _headers(thread_id, run_id, "/stream")


def join_headers(thread_id: UUID, run_id: UUID) -> dict[str, str]:
    """Return the headers of an answer with a run's output. `Location` is where a client that lost it waits again."""
    return _headers(thread_id, run_id, "/join")


def _headers(thread_id: UUID | None, run_id: UUID, suffix: str) -> dict[str, str]:
    return {"Location": run_path(thread_id, run_id, suffix), "Content-Location": run_path(thread_id, run_id)}
