"""Contributions of graph hosts to a replay: the recording of a past run, scores of an output, the report of a case.

`workers/graph_host/queries.py` describes the operations `recording` and `score`.
"""

from __future__ import annotations

from typing import Any
from uuid import UUID

import orjson
from sqlalchemy import Connection

from shared.hosts import calls
from shared.hosts.pending_calls import HostCall
from shared.sql import statement

_KEEP_REPORT = statement("replays.keep_report")

RECORDING_SECONDS = 60.0  # for a ready host: it reads all checkpoints of the run
SCORE_SECONDS = 30.0  # the host gives up a scorer after 20


def recording(
    deployment_id: UUID,
    revision_id: UUID,
    pool: str,
    *,
    graph_id: str,
    thread_id: UUID,
    run_id: UUID,
    checkpoint_id: str | None,
) -> dict[str, Any]:
    """Return the recording of a past run, for `recording` in the `replay` of a run's kwargs.

    `deployment_id` and `thread_id` are those of the past run. `checkpoint_id` names the newest root checkpoint before it,
    None if it began a thread. Raises as `shared.hosts.calls.call` does: TooLarge, or HostError if a checkpoint cannot be
    read by this revision.
    """
    document = {
        "op": "recording",
        "graph_id": graph_id,
        "thread_id": str(thread_id),
        "run_id": str(run_id),
        "checkpoint_id": checkpoint_id,
    }
    call = HostCall(
        deployment_id=deployment_id,
        revision_id=revision_id,
        pool=pool,
        document=document,
        thread_id=thread_id,
        timeout_seconds=RECORDING_SECONDS,
        total_seconds=2 * RECORDING_SECONDS,
    )
    return orjson.loads(calls.call(call))


def score(
    deployment_id: UUID,
    revision_id: UUID,
    pool: str,
    *,
    input: Any,
    reference: Any,
    output: Any,
    run: dict[str, Any],
) -> dict[str, Any]:
    """Call the project's scorer. Returns {"scores": {name: number}}, or {"error": text, "traceback": text | None}.

    `reference` is the output of the past run, `output` that of the case. Raises as `shared.hosts.calls.call` does. The call
    is not repeated if its host dies, because the scorer may have caused that.
    """
    document = {"op": "score", "input": input, "reference": reference, "output": output, "run": run}
    call = HostCall(
        deployment_id=deployment_id,
        revision_id=revision_id,
        pool=pool,
        document=document,
        timeout_seconds=SCORE_SECONDS,
        total_seconds=2 * SCORE_SECONDS,
        is_repeatable=False,
    )
    return orjson.loads(calls.call(call))


def keep_report(conn: Connection, case_run_id: UUID, report: str) -> None:
    """Store the report of a case's run, as JSON. Does nothing for a run that belongs to no case."""
    _KEEP_REPORT.count(conn, case_run_id=case_run_id, report=report)
