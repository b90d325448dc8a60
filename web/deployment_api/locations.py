"""Where a run can be read and followed, as the headers of answers say it.

Paths begin at the deployment's own root: clients join them to the base address they know.
"""

from __future__ import annotations

from uuid import UUID


def run_path(thread_id: UUID | None, run_id: UUID, suffix: str = "") -> str:
    root = "" if thread_id is None else f"/threads/{thread_id}"
    return f"{root}/runs/{run_id}{suffix}"


def stream_headers(thread_id: UUID | None, run_id: UUID) -> dict[str, str]:
    """Of a run's event stream: where a client that lost it joins it again."""
    return _headers(thread_id, run_id, "/stream")


def join_headers(thread_id: UUID, run_id: UUID) -> dict[str, str]:
    """Of an answer with a run's output: where a client that lost it waits for it again."""
    return _headers(thread_id, run_id, "/join")


def _headers(thread_id: UUID | None, run_id: UUID, suffix: str) -> dict[str, str]:
    return {"Location": run_path(thread_id, run_id, suffix), "Content-Location": run_path(thread_id, run_id)}
