"""Timelines: what a run and its thread did at which time, as bands on one axis.

A run waits in the queue, is claimed, gets a graph host, and executes nodes, which call models and tools. Each earlier
attempt has a band with the reason of its loss. A run that asks a question is followed by a person's band, until the run
that answers starts.

The graph host reports the spans of an attempt at its end (`workers/graph_host/spans.py`, column `run.spans`). The nodes
of a run without spans are derived from its checkpoints: while it runs, and if its host died or did not answer.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

from sqlalchemy import Connection

from shared.errors import NotFound
from shared.infra.postgres import Row
from shared.models import LIVE_RUN_STATUSES, RunStatus
from shared.records import ID, TEXT, TEXT_OR_NULL, TIME, TIME_OR_NULL, listed, one_of, record
from shared.runs import queue_position
from shared.sql import part, statement
from shared.threads import records

MAX_BANDS = 600  # of a run
MAX_RUNS = 50  # of a thread's timeline
MAX_TEXT = 500
KINDS = ("queue", "claim", "host_start", "attempt", "node", "model", "tool", "person")
CALLS = ("node", "model", "tool")
STATUSES = ("waiting", "running", "success", "error", "timeout", "interrupted", "lost")
BAND = record(
    "TimelineBand",
    id=TEXT,
    parent=TEXT_OR_NULL,
    kind=one_of(*KINDS),
    name=TEXT,
    started_at=TIME,
    ended_at=TIME_OR_NULL,
    status=one_of(*STATUSES),
    detail=TEXT_OR_NULL,
    run_id=ID,
    checkpoint_id=TEXT_OR_NULL,
    checkpoint_ns=TEXT_OR_NULL,
)
TIMELINE = record("Timeline", (), **{"from": TIME, "until": TIME_OR_NULL, "bands": listed(BAND)})

_PARTS = {"columns": part("timeline.columns"), "source": part("timeline.source")}
_RUN = statement("timeline.run", **_PARTS)
_THREAD = statement("timeline.thread", **_PARTS)
_STEPS = statement("timeline.steps")
_WRITES = statement("timeline.writes")
_GREGORIAN = datetime(1582, 10, 15, tzinfo=UTC)  # UUIDs of version 6 count from here
_PULL = "~__pregel_pull, "
_BRANCH = "branch:to:"
_QUEUE = "Waits in the queue"
_ENDS = {"__error__": "error", "__interrupt__": "interrupted"}
_INTERRUPTED = ("interrupted", "CancelledError", "GraphInterrupt")


@dataclass(frozen=True, slots=True)
class Band:
    """A period of a run. `ended_at` is None while it lasts."""

    id: str
    kind: str
    name: str
    started_at: datetime
    ended_at: datetime | None
    status: str = "success"
    parent: str | None = None
    detail: str | None = None
    checkpoint_id: str | None = None
    checkpoint_ns: str | None = None
    run_id: str = ""

    def show(self) -> dict[str, Any]:
        detail = None if self.detail is None else self.detail[:MAX_TEXT]
        return {**asdict(self), "name": self.name[:MAX_TEXT], "detail": detail}


@dataclass(frozen=True, slots=True)
class Step:
    """A checkpoint, and the tasks of the step after it: `(task id, path, channels)`."""

    ns: str
    checkpoint_id: str
    parent_id: str | None
    is_own: bool  # this run wrote the checkpoint
    tasks: Sequence[tuple[str, str, frozenset[str]]] = field(default=())


def of_run(conn: Connection, deployment_id: UUID, thread_id: UUID, run_id: UUID) -> dict[str, Any]:
    """Return the timeline of a run. Raises NotFound if it is missing or belongs to another thread."""
    row = _RUN.row(conn, deployment_id=deployment_id, thread_id=thread_id, run_id=run_id)
    if row is None:
        raise NotFound("Not Found")
    return _shown([row], _bands_of_run(conn, row))


def of_thread(conn: Connection, deployment_id: UUID, thread_id: UUID, *, limit: int) -> dict[str, Any]:
    """Return the timeline of a thread's newest runs, the oldest run first. Raises NotFound if the thread is missing."""
    rows = _THREAD.rows(conn, deployment_id=deployment_id, thread_id=thread_id, limit=limit)
    if not rows:
        records.require(conn, deployment_id, thread_id)
        now = datetime.now(UTC)
        return {"from": now, "until": now, "bands": []}
    bands = {band.id: band for row in reversed(rows) for band in _bands_of_run(conn, row)}
    return _shown(rows, bands.values())


def _shown(rows: Sequence[Row], bands: Iterable[Band]) -> dict[str, Any]:
    ends = [_end_of(row) for row in rows]
    known = [end for end in ends if end is not None]
    return {
        "from": rows[-1]["created_at"],
        "until": max(known) if len(known) == len(ends) else None,
        "bands": [band.show() for band in bands],
    }


def _end_of(row: Row) -> datetime | None:
    return None if row["status"] in LIVE_RUN_STATUSES else row["ended_at"] or row["updated_at"]


def _bands_of_run(conn: Connection, row: Row) -> list[Band]:
    queue = None
    if row["status"] == RunStatus.PENDING:
        queue = queue_position.of_many(conn, row["deployment_id"], [row]).get(row["run_id"])
    steps: Sequence[Step] = ()
    if row["attempt"] and not _spans_of(row):
        steps = _read_steps(conn, row)
    return bands_of(row, queue=queue, steps=steps)


def bands_of(row: Row, *, queue: Mapping[str, Any] | None = None, steps: Sequence[Step] = ()) -> list[Band]:
    """Return the bands of a run: its waits, its attempts, and the nodes and calls of the last attempt.

    `queue` says why a pending run waits. `steps` are the checkpoints of a run without spans.
    """
    run, ended_at = str(row["run_id"]), _end_of(row)
    bands, waits_since, number = _before(row), row["created_at"], 0
    for lost in row["attempts"] or ():
        id, number = f"{run}/{lost['attempt']}", lost["attempt"]
        started_at, lost_at = (datetime.fromisoformat(lost[name]) for name in ("started_at", "ended_at"))
        name, reason = f"Attempt {number}", lost["reason"]
        bands += [
            Band(f"{id}/queue", "queue", _QUEUE, waits_since, started_at, run_id=run),
            Band(id, "attempt", name, started_at, lost_at, "lost", detail=reason, run_id=run),
        ]
        waits_since = lost_at
    has_waited_only = row["status"] == RunStatus.PENDING or row["attempt"] == number
    if has_waited_only:  # it waits, or was cancelled while it waited
        status = "waiting" if ended_at is None else "interrupted"
        detail = row["cancel_reason"] if queue is None else queue["reason"]
        id = f"{run}/{number + 1}/queue"
        return [*bands, Band(id, "queue", _QUEUE, waits_since, ended_at, status, detail=detail, run_id=run)]
    id = f"{run}/{row['attempt']}"
    started_at = _attempt_start(row, waits_since, ended_at)
    status = "running" if ended_at is None else str(row["status"])
    name = f"Attempt {row['attempt']}"
    attempt = Band(id, "attempt", name, started_at, ended_at, status, detail=_failure(row), run_id=run)
    bands += [Band(f"{id}/queue", "queue", _QUEUE, waits_since, started_at, run_id=run), attempt]
    spans = _spans_of(row)
    inner = _of_spans(attempt, spans) if spans else _of_steps(attempt, steps)
    return [*bands, *_clipped(attempt, inner)[:MAX_BANDS], *_after(row, ended_at)]


def _before(row: Row) -> list[Band]:
    """Return the band of the person who answered the question of the thread's previous run."""
    asked_at = row["previous_ended_at"]
    if asked_at is None:
        return []
    until = max(asked_at, row["created_at"])
    detail = _closed(row["previous_answered_at"], row["previous_answered_by"])
    return [_person(row["previous_run_id"], row["run_id"], asked_at, until, "success", detail)]


def _after(row: Row, ended_at: datetime | None) -> list[Band]:
    """Return the band of the person who was asked a question by the run."""
    if ended_at is None or row["asked_kind"] is None:
        return []
    closed_at = row["next_created_at"] or row["asked_closed_at"]
    if closed_at is not None:
        until = max(ended_at, closed_at)
        detail = _closed(row["asked_answered_at"], row["asked_answered_by"])
        return [_person(row["run_id"], row["next_run_id"], ended_at, until, "success", detail)]
    is_breakpoint = row["asked_kind"] == "breakpoint"
    detail = "stopped at a breakpoint" if is_breakpoint else "not answered yet"
    return [_person(row["run_id"], None, ended_at, None, "waiting", detail)]


def _person(
    asking: UUID,
    answering: UUID | None,
    started_at: datetime,
    ended_at: datetime | None,
    status: str,
    detail: str,
) -> Band:
    """Return the band between two runs. Its id contains both, and is the same in the timelines of both."""
    id = f"{asking}/person/{answering or ''}"
    name = "Waits for a person"
    return Band(id, "person", name, started_at, ended_at, status, detail=detail, run_id=str(asking))


def _closed(answered_at: datetime | None, by: str | None) -> str:
    """Return how a question ended. `by` of a question without an answer is who cancelled it."""
    how = "closed without an answer" if answered_at is None else "answered"
    return f"{how} by {by}" if by else how


def _failure(row: Row) -> str | None:
    error = row["error"]
    if isinstance(error, Mapping):
        return f"{error.get('error')}: {error.get('message')}"
    return row["cancel_reason"]


def _attempt_start(row: Row, waits_since: datetime, ended_at: datetime | None) -> datetime:
    """Return the start of the last attempt. Only that of the first one is stored after its end."""
    if not row["attempts"]:
        return row["started_at"]
    if ended_at is None:
        return row["updated_at"]  # the time of the claim while an attempt runs
    lasted_ms = _number(row["spans"].get("attempt_ms")) if isinstance(row["spans"], Mapping) else None
    started_at = waits_since if lasted_ms is None else ended_at - timedelta(milliseconds=lasted_ms)
    return max(started_at, waits_since)


# Spans of a graph host. A host runs the project's code, so their content may be anything.


def _spans_of(row: Row) -> Mapping[str, Any] | None:
    spans = row["spans"]
    return spans if isinstance(spans, Mapping) and isinstance(spans.get("spans"), list) else None


def _of_spans(attempt: Band, document: Mapping[str, Any]) -> list[Band]:
    """Return the claim, the start of the host, and the spans that the host reported."""
    attempt_ms = _number(document.get("attempt_ms")) or 0.0
    began_ms = max(attempt_ms - (_number(document.get("lasted_ms")) or 0.0), 0.0)
    claimed_ms = min(_number(document.get("claimed_ms")) or 0.0, began_ms)

    def at(milliseconds: float) -> datetime:
        return attempt.started_at + timedelta(milliseconds=milliseconds)

    bands = [
        _inside(attempt, "claim", "Claim", at(0), at(claimed_ms)),
        _inside(attempt, "host_start", "Graph host", at(claimed_ms), at(began_ms)),
    ]
    spans = [span for span in document["spans"] if _is_span(span)]
    known = {span["id"] for span in spans}
    for span in spans:
        until = _number(span.get("until"))
        error = span.get("error")
        tokens = _number(span.get("tokens"))
        status = "success" if error is None else "interrupted" if error in _INTERRUPTED else "error"
        if until is None:
            status = "interrupted" if attempt.status == "success" else attempt.status
        detail = str(error) if status == "error" and error else f"{tokens:.0f} tokens" if tokens else None
        within = _text(span.get("within"))
        bands.append(
            Band(
                f"{attempt.id}/{span['id']}",
                span["kind"],
                span["name"],
                at(began_ms + span["from"]),
                attempt.ended_at if until is None else at(began_ms + until),
                status,
                f"{attempt.id}/{within}" if within in known and within != span["id"] else attempt.id,
                detail,
                _text(span.get("checkpoint")),
                _text(span.get("ns")) or "",
                attempt.run_id,
            )
        )
    return bands


def _inside(attempt: Band, kind: str, name: str, started_at: datetime, ended_at: datetime) -> Band:
    return Band(
        f"{attempt.id}/{kind}", kind, name, started_at, ended_at, parent=attempt.id, run_id=attempt.run_id
    )


def _is_span(span: Any) -> bool:
    return (
        isinstance(span, Mapping)
        and isinstance(span.get("id"), str)
        and isinstance(span.get("name"), str)
        and span.get("kind") in CALLS
        and _number(span.get("from")) is not None
    )


def _number(value: Any) -> float | None:
    """Return a non-negative number of milliseconds below a year; None for anything else."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if is_number and math.isfinite(value) and 0 <= value < 3.2e10 else None


def _text(value: Any) -> str | None:
    return value[:1_000] if isinstance(value, str) else None


# Nodes from checkpoints


def _read_steps(conn: Connection, row: Row) -> list[Step]:
    """Return the checkpoints of a run, and the one at which it started, with the tasks that ran after each."""
    of = {"deployment_id": row["deployment_id"], "thread_id": row["thread_id"], "run_id": row["run_id"]}
    tasks: dict[tuple[str, str], list[tuple[str, str, frozenset[str]]]] = {}
    for each in _WRITES.rows(conn, **of, limit=MAX_BANDS):
        place = (each["checkpoint_ns"], each["checkpoint_id"])
        tasks.setdefault(place, []).append((each["task_id"], each["task_path"], frozenset(each["channels"])))
    steps = {
        (each["checkpoint_ns"], each["checkpoint_id"]): Step(
            each["checkpoint_ns"], each["checkpoint_id"], each["parent_checkpoint_id"], is_own=True
        )
        for each in _STEPS.rows(conn, **of, limit=MAX_BANDS)
    }
    for ns, id in tasks:
        steps.setdefault((ns, id), Step(ns, id, None, is_own=False))
    return [replace(step, tasks=tasks.get(place, ())) for place, step in steps.items()]


def _of_steps(attempt: Band, steps: Iterable[Step]) -> list[Band]:
    """Return the nodes of a run by its checkpoints. A node lasts from the checkpoint before its step to the next one.

    The nodes of a step that has not ended have written nothing. They are known by the edges that lead to them.
    """
    ordered = sorted(steps, key=lambda step: step.checkpoint_id)
    children = {(step.ns, step.parent_id): step for step in ordered if step.is_own and step.parent_id}
    by_place = {(step.ns, step.checkpoint_id): step for step in ordered}
    bands = []
    for step in ordered:
        started_at = max(_checkpoint_time(step.checkpoint_id, attempt.started_at), attempt.started_at)
        child = children.get((step.ns, step.checkpoint_id))
        ended_at = attempt.ended_at if child is None else _checkpoint_time(child.checkpoint_id, started_at)
        names = [
            (id, _node_of(path), next((end for name, end in _ENDS.items() if name in channels), "success"))
            for id, path, channels in step.tasks
            if not path.endswith("__start__")
        ]
        parent = by_place.get((step.ns, step.parent_id or ""))
        if not step.tasks and child is None and parent is not None and attempt.status != "success":
            names = [
                (f"{step.checkpoint_id}:{name}", name, attempt.status)
                for name in sorted({name for _, _, channels in parent.tasks for name in _next_of(channels)})
            ]
        for id, name, status in names:
            band = Band(
                f"{attempt.id}/{id}", "node", name, started_at, ended_at, status, _outer(attempt, step.ns)
            )
            bands.append(
                replace(band, checkpoint_id=step.checkpoint_id, checkpoint_ns=step.ns, run_id=attempt.run_id)
            )
    known = {band.id for band in bands}
    return [band if band.parent in known else replace(band, parent=attempt.id) for band in bands]


def _outer(attempt: Band, ns: str) -> str:
    """Return the id of the band around a subgraph's namespace, a list of `name:task`."""
    tasks = [part.rpartition(":")[2] for part in ns.split("|") if ":" in part]
    return f"{attempt.id}/{tasks[-1]}" if tasks else attempt.id


def _node_of(path: str) -> str:
    return path.removeprefix(_PULL) if path.startswith(_PULL) else "task"


def _next_of(channels: Iterable[str]) -> list[str]:
    return [name.removeprefix(_BRANCH) for name in channels if name.startswith(_BRANCH)]


def _checkpoint_time(checkpoint_id: str, default: datetime) -> datetime:
    """Return the time in a checkpoint's id, a UUID of version 6. Savers of other versions may use other ids."""
    try:
        id = UUID(checkpoint_id)
    except ValueError:
        return default
    if id.version != 6:
        return default
    ticks = (id.int >> 80) << 12 | (id.int >> 64) & 0xFFF
    return _GREGORIAN + timedelta(microseconds=ticks // 10)


def _clipped(attempt: Band, bands: Iterable[Band]) -> list[Band]:
    """Return bands within their attempt, by their start: the clocks of the host and of the database may differ."""
    last = attempt.ended_at or datetime.max.replace(tzinfo=UTC)

    def within(at: datetime) -> datetime:
        return min(max(at, attempt.started_at), last)

    clipped = [
        replace(band, started_at=within(band.started_at), ended_at=band.ended_at and within(band.ended_at))
        for band in bands
    ]
    return sorted(clipped, key=lambda band: band.started_at)
