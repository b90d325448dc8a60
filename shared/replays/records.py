"""Records of replays and their cases, and their creation, search, cancellation and removal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any
from uuid import UUID

from sqlalchemy import Connection, text
from uuid_utils.compat import uuid7

from shared.audit import Actor
from shared.errors import Invalid, NotFound
from shared.infra.arrays import uuids
from shared.infra.postgres import Row, dumps
from shared.models import RevisionStatus
from shared.records import (
    BOOLEAN,
    COUNT,
    COUNT_OR_NULL,
    ID,
    ID_OR_NULL,
    OBJECT,
    OBJECT_OR_NULL,
    TEXT,
    TEXT_OR_NULL,
    TIME,
    TIME_OR_NULL,
    JsonSchema,
    Record,
    RecordField,
    listed,
    mapped,
    one_of,
    or_null,
    record,
)
from shared.replays import benches
from shared.replays.comparison import Outcome
from shared.replays.summary import Verdict
from shared.sql import part, statement

REMOVED_AT_ONCE = 20
RECORDED, LIVE = "recorded", "live"


class Status(StrEnum):
    PREPARING = "preparing"
    RUNNING = "running"
    DONE = "done"
    CANCELLED = "cancelled"
    STOPPED = "stopped"
    FAILED = "failed"


AMOUNT_OR_NULL: JsonSchema = {"type": ["number", "null"], "minimum": 0}
COUNTS = ("total", "waiting", "running", *map(str, Outcome))
REPLAY = Record(
    "Replay",
    {
        "id": RecordField(ID),
        "deployment_id": RecordField(ID),
        "revision_id": RecordField(ID),
        "revision_number": RecordField({"description": "Null if the revision is removed", **COUNT_OR_NULL}),
        "preview": RecordField(TEXT_OR_NULL),
        "bench": RecordField(
            {"description": "Name of the hidden deployment with the threads of the cases", **TEXT_OR_NULL}
        ),
        "address": RecordField(
            {"description": "URL of the hidden deployment", **TEXT_OR_NULL}, shown="added"
        ),
        "status": RecordField(one_of(*Status)),
        "reason": RecordField({"description": "Why the replay ended early", **TEXT_OR_NULL}),
        "verdict": RecordField(or_null(one_of(*Verdict))),
        "fail_on": RecordField(TEXT_OR_NULL, ("rule",), lambda row: row["rule"]),
        "sample": RecordField(COUNT),
        "seed": RecordField({"type": "integer"}),
        "where": RecordField(OBJECT, ("criteria",), lambda row: row["criteria"]),
        "tools": RecordField(one_of(RECORDED, LIVE)),
        "live_tools": RecordField(listed(TEXT)),
        "models": RecordField(one_of(RECORDED, LIVE)),
        "network": RecordField(BOOLEAN),
        "concurrency": RecordField(COUNT),
        "max_tokens": RecordField(COUNT_OR_NULL),
        "max_cost": RecordField(AMOUNT_OR_NULL),
        "max_minutes": RecordField(AMOUNT_OR_NULL),
        "counts": RecordField(
            record("ReplayCounts", **dict.fromkeys(COUNTS, COUNT)),
        ),
        "summary": RecordField({"description": "Null until the replay has ended", **OBJECT_OR_NULL}),
        "created_by": RecordField(or_null(record(key_id=TEXT, name=TEXT))),
        "created_at": RecordField(TIME),
        "ended_at": RecordField(TIME_OR_NULL),
    },
    table="p",
    expressions={
        "revision_number": "r.number",
        "bench": "b.name",
        "pool": "b.pool",
        "mount_prefix": "r.manifest #>> '{http,mount_prefix}'",
        "counts": "coalesce(p.counts, counted.counts)",
    },
    internal=["bench_id", "mount_prefix", "pool"],
)
_CASE_FIELDS = {
    "position": RecordField(COUNT),
    "run_id": RecordField({"description": "The past run", **ID}),
    "thread_id": RecordField({"description": "The thread of the past run", **ID}),
    "case_run_id": RecordField({"description": "The run of the case at the bench", **ID_OR_NULL}),
    "case_thread_id": RecordField(ID_OR_NULL),
    "outcome": RecordField({"description": "Null while the case waits or runs", **or_null(one_of(*Outcome))}),
    "reason": RecordField({"description": "Why the case was skipped or failed", **TEXT_OR_NULL}),
    "comparison": RecordField(OBJECT_OR_NULL),
    "ended_at": RecordField(TIME_OR_NULL),
    "feedback": RecordField(
        {
            "description": "Mean score of the feedback on the past run by key. Null without feedback",
            **or_null(mapped({"type": ["number", "null"]})),
        }
    ),
}
_FEEDBACK = {"feedback": part("feedback.scores")}
CASE = Record("ReplayCase", _CASE_FIELDS, expressions=_FEEDBACK)
LISTED_CASE = Record(
    "ListedReplayCase",
    {
        **_CASE_FIELDS,
        "comparison": RecordField(
            {
                "description": "Status and figures of both sides, and the first difference: see the case for all of it",
                **OBJECT_OR_NULL,
            }
        ),
    },
    expressions={"comparison": "figures", **_FEEDBACK},
)

_COUNTS = part("replays.counts")
_CREATE = statement("replays.create")
_FIND_REVISION = statement("replays.find_revision")
_SEARCH = statement("replays.search", columns=REPLAY.select, counts=_COUNTS)
_CASES = statement("replays.cases", columns=LISTED_CASE.select)
_CASE = statement("replays.case", columns=CASE.select)
_FINISH = statement("replays.finish", counts=_COUNTS)
_OLD = statement("replays.old")
_REMOVE = statement("replays.remove")


@dataclass(frozen=True, kw_only=True)
class Request:
    """A validated request for a replay. `where` are the filters of the past runs: see `cases.select`."""

    where: Mapping[str, Any]
    sample: int
    seed: int
    preview: str | None = None
    tools: str = RECORDED
    live_tools: Sequence[str] = field(default_factory=list)
    models: str = LIVE
    network: bool = False
    concurrency: int = 2
    max_tokens: int | None = None
    max_cost: float | None = None
    max_minutes: float | None = None
    rule: str | None = None


def find_revision(
    conn: Connection,
    deployment_id: UUID,
    *,
    revision_id: UUID | None = None,
    number: int | None = None,
    preview: str | None = None,
) -> Row:
    """Return id and number of the revision that a request names, with the tools that its project permits.

    Without a name, it is the latest one. Raises Invalid, which names the field, if it is missing or not DEPLOYED.
    """
    loc = (
        "body",
        "preview" if preview is not None and revision_id is None and number is None else "revision",
    )
    row = _FIND_REVISION.row(
        conn, deployment_id=deployment_id, revision_id=revision_id, number=number, preview=preview
    )
    if row is None:
        raise Invalid("the deployment has no such revision", loc=loc)
    if row["status"] != RevisionStatus.DEPLOYED:
        raise Invalid(f"the revision is {row['status']}, not DEPLOYED", loc=loc)
    return row


def create(
    conn: Connection, deployment_id: UUID, name: str, revision_id: UUID, request: Request, *, by: Actor
) -> UUID:
    """Insert a replay with its bench. `name` is the deployment's name. Upkeep selects the runs."""
    replay_id = uuid7()
    bench_id = benches.create(
        conn,
        deployment_id,
        name,
        replay_id,
        revision_id,
        concurrency=request.concurrency,
        max_tokens=request.max_tokens,
    )
    _CREATE.count(
        conn,
        id=replay_id,
        deployment_id=deployment_id,
        bench_id=bench_id,
        revision_id=revision_id,
        preview=request.preview,
        criteria=dumps(request.where),
        sample=request.sample,
        seed=request.seed,
        tools=request.tools,
        live_tools=dumps(request.live_tools),
        models=request.models,
        network=request.network,
        concurrency=request.concurrency,
        max_tokens=request.max_tokens,
        max_cost=request.max_cost,
        max_minutes=request.max_minutes,
        rule=request.rule,
        created_by=dumps(by.identity),
    )
    return replay_id


def get(conn: Connection, deployment_id: UUID, replay_id: UUID) -> Row:
    """Return a replay with its counts. Raises NotFound."""
    rows = _SEARCH.rows(conn, deployment_id=deployment_id, id=replay_id, limit=1, offset=0)
    if not rows:
        raise NotFound(f"Replay {replay_id} not found.")
    return rows[0]


def search(conn: Connection, deployment_id: UUID, *, limit: int, offset: int) -> Sequence[Row]:
    """Return the deployment's replays, newest first."""
    return _SEARCH.rows(conn, deployment_id=deployment_id, id=None, limit=limit, offset=offset)


def cases(
    conn: Connection, replay_id: UUID, *, outcome: str | None, limit: int, offset: int
) -> Sequence[Row]:
    """Return the cases of a replay in the order in which they are executed, as rows of LISTED_CASE."""
    return _CASES.rows(conn, replay_id=replay_id, outcome=outcome, limit=limit, offset=offset)


def case(conn: Connection, replay_id: UUID, position: int) -> Row:
    """Return one case of a replay with its whole comparison. Raises NotFound."""
    row = _CASE.row(conn, replay_id=replay_id, position=position)
    if row is None:
        raise NotFound(f"The replay has no case {position}.")
    return row


def lock(conn: Connection, deployment_id: UUID, replay_id: UUID) -> Row:
    """Lock a replay until the transaction ends, and return it with its counts. Raises NotFound."""
    conn.execute(text("SELECT FROM replay WHERE id = :id FOR NO KEY UPDATE"), {"id": replay_id})
    return get(conn, deployment_id, replay_id)


def finish(
    conn: Connection,
    replay_id: UUID,
    status: Status,
    *,
    reason: str | None = None,
    verdict: str | None = None,
    summary: Mapping[str, Any] | None = None,
) -> None:
    """End a replay. An ended replay is unchanged. The caller stops the runs of its bench."""
    _FINISH.count(
        conn,
        id=replay_id,
        status=status,
        reason=reason,
        verdict=verdict,
        summary=None if summary is None else dumps(summary),
    )


def remove(conn: Connection, replay_ids: Sequence[UUID]) -> list[UUID]:
    """Hide replays with their benches, whose rows upkeep removes. Returns the benches, whose runs the caller stops."""
    return [row["id"] for row in _REMOVE.rows(conn, ids=uuids(replay_ids))]


def remove_old(conn: Connection, *, days: float) -> int:
    """Delete replays that ended more than `days` days ago. Returns the number of deleted replays."""
    old = [row["id"] for row in _OLD.rows(conn, days=days, limit=REMOVED_AT_ONCE)]
    if old:
        remove(conn, old)
    return len(old)
