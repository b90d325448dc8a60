"""Records of crons: create, read, change, search, delete. All times are the database's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from sqlalchemy import Connection, text
from uuid_utils.compat import uuid7

from shared import assistants
from shared.crons import schedule as schedules
from shared.deployments.deployments import DeploymentRef
from shared.errors import Invalid, NotFound, TooMany
from shared.infra import encryption
from shared.infra.postgres import Row, dumps
from shared.records import (
    BOOLEAN,
    ID,
    ID_OR_NULL,
    OBJECT,
    TEXT,
    TEXT_OR_NULL,
    TIME,
    TIME_OR_NULL,
    Record,
    RecordField,
)
from shared.sql import pages, statement
from shared.threads import records
from shared.user_code import filters
from shared.user_code.filters import Filter

RECORD = Record(
    "Cron",
    {
        "cron_id": RecordField(ID),
        "assistant_id": RecordField(ID),
        "thread_id": RecordField(ID_OR_NULL),
        "user_id": RecordField(TEXT_OR_NULL),
        "end_time": RecordField(
            TIME_OR_NULL,
            ("payload", "end_time"),
            lambda row: row["payload"].get("end_time", row["end_time"]),  # as it was sent
        ),
        "schedule": RecordField(TEXT),
        "timezone": RecordField(TEXT_OR_NULL),
        "payload": RecordField(OBJECT),
        "next_run_date": RecordField(TIME_OR_NULL),
        "metadata": RecordField(OBJECT),
        "on_run_completed": RecordField(TEXT_OR_NULL),
        "enabled": RecordField(BOOLEAN),
        "created_at": RecordField(TIME),
        "updated_at": RecordField(TIME),
    },
)
SORTABLE = (
    "cron_id", "assistant_id", "thread_id", "next_run_date", "end_time", "created_at", "updated_at",
)  # fmt: skip
FIELDS = ("schedule", "timezone", "end_time", "on_run_completed", "enabled")
MAX_PER_DEPLOYMENT = 10_000


_INSERT = statement("crons.insert")
_GET = statement("crons.get", columns=RECORD.select, lock="")
_LOCK = statement("crons.get", columns=RECORD.select, lock="FOR UPDATE")
_UPDATE = statement("crons.update")


def create(
    conn: Connection,
    deployment: DeploymentRef,
    body: Mapping[str, Any],
    *,
    thread_id: UUID | None,
    cron_id: UUID | None = None,
    user: Mapping[str, Any] | None = None,
    of_assistants: Filter | None = None,
    of_threads: Filter | None = None,
    min_seconds: float = 0,
) -> Row:
    """Insert a cron from a request body. Raises NotFound (assistant, thread), Invalid (schedule, time zone), TooMany.

    `user` is the document of the deployment's user who made the request; the cron's runs act for this user. Objects
    hidden by the filters count as missing.
    """
    assistant_id = _assistant(conn, deployment, body["assistant_id"], of_assistants)
    if thread_id is not None:
        _require_thread(conn, deployment.id, thread_id, of_threads)
    if count(conn, deployment.id) >= MAX_PER_DEPLOYMENT:
        raise TooMany(
            f"This deployment has {MAX_PER_DEPLOYMENT} crons already: delete some.", retry_after_seconds=60
        )
    cron_id = cron_id or uuid7()
    end_time = _end_time(body.get("end_time"))
    _refuse_past(conn, end_time)
    _INSERT.count(
        conn,
        cron_id=cron_id,
        deployment_id=deployment.id,
        assistant_id=assistant_id,
        thread_id=thread_id,
        user_id="" if user is None else user["identity"],
        auth_user=None if user is None else encryption.encrypt(dumps(user)),
        end_time=end_time,
        schedule=body["schedule"],
        timezone=body.get("timezone"),
        payload=dumps(_payload(body, cron_id, assistant_id)),
        next_run_date=_first_run(conn, body["schedule"], body.get("timezone"), min_seconds),
        metadata=dumps(body.get("metadata") or {}),
        on_run_completed=None if thread_id else body.get("on_run_completed") or "delete",
        enabled=body.get("enabled", True),
    )
    return get(conn, deployment.id, cron_id)


def _first_run(conn: Connection, schedule: str, timezone: str | None, min_seconds: float) -> datetime:
    """Return the first due time of a schedule. Raises Invalid if it is due twice within `min_seconds`."""
    first = schedules.next_after(schedule, timezone, _database_time(conn))
    schedules.refuse_closer(schedule, min_seconds)
    return first


def _assistant(conn: Connection, deployment: DeploymentRef, named: str, visible: Filter | None) -> UUID:
    try:
        assistant_id = assistants.resolve(conn, deployment, named).assistant_id
        filters.require_assistant(conn, deployment.id, assistant_id, visible)
        return assistant_id
    except (NotFound, Invalid):
        raise NotFound(f"Assistant '{named}' not found") from None


def _require_thread(conn: Connection, deployment_id: UUID, thread_id: UUID, visible: Filter | None) -> None:
    try:
        records.require(conn, deployment_id, thread_id)
        filters.require_thread(conn, deployment_id, thread_id, visible)
    except NotFound:
        raise NotFound(f"Thread with ID '{thread_id}' not found. Create it first.") from None


def payload(body: Mapping[str, Any], cron_id: UUID) -> dict[str, Any]:
    """Return the request that each run is created from: the body as sent, with the cron's id in its `configurable`."""
    config = body.get("config") or {}
    configurable = {**(config.get("configurable") or {}), "cron_id": str(cron_id)}
    return {**body, "config": {**config, "configurable": configurable}}


def _payload(body: Mapping[str, Any], cron_id: UUID, assistant_id: UUID) -> dict[str, Any]:
    return {**payload(body, cron_id), "assistant_id": str(assistant_id)}


def _end_time(sent: str | None) -> datetime | None:
    return None if sent is None else schedules.moment_of(sent)


def _refuse_past(conn: Connection, end_time: datetime | None) -> None:
    """Raise Invalid for an end time in the past, with which the cron would never fire."""
    if end_time is not None and end_time <= _database_time(conn):
        raise Invalid("end_time: must be in the future", loc=("body", "end_time"))


def _database_time(conn: Connection) -> datetime:
    return conn.execute(text("SELECT now()")).scalar_one()


def get(conn: Connection, deployment_id: UUID, cron_id: UUID, *, lock: bool = False) -> Row:
    """Return a cron. Raises NotFound."""
    row = (_LOCK if lock else _GET).row(conn, deployment_id=deployment_id, cron_id=cron_id)
    if row is None:
        raise NotFound("Not Found")
    return row


def firings(conn: Connection, deployment_id: UUID, cron_id: UUID, *, count: int) -> list[datetime]:
    """Return the times of a cron's next runs as of now. Empty if it is disabled or has ended. Raises NotFound."""
    row = get(conn, deployment_id, cron_id)
    if not row["enabled"]:
        return []
    now = _database_time(conn)
    first = max(row["next_run_date"], now)
    later = schedules.firings(row["schedule"], row["timezone"], first, count=count)
    return [at for at in [first, *later][:count] if row["end_time"] is None or at <= row["end_time"]]


def update(
    conn: Connection,
    deployment_id: UUID,
    cron_id: UUID,
    changes: Mapping[str, Any],
    *,
    visible: Filter | None = None,
    stamped: Mapping[str, Any] | None = None,
    min_seconds: float = 0,
) -> Row:
    """Change the given fields. Metadata is merged; a new schedule or time zone starts from now.

    `stamped` is added to the metadata of the cron and of its runs and overrides equal keys. Raises NotFound, Invalid.
    """
    try:
        row = get(conn, deployment_id, cron_id, lock=True)
        filters.require_cron(conn, deployment_id, cron_id, visible)
    except NotFound:
        raise NotFound(f"Cron '{cron_id}' not found") from None
    fields = {name: changes.get(name, row[name]) for name in FIELDS}
    if "end_time" in changes:
        fields["end_time"] = _end_time(changes["end_time"])
        _refuse_past(conn, fields["end_time"])
    if row["thread_id"] is not None:
        fields["on_run_completed"] = None
    next_run_date = row["next_run_date"]
    if "schedule" in changes or "timezone" in changes:
        least = min_seconds if "schedule" in changes else 0
        next_run_date = _first_run(conn, fields["schedule"], fields["timezone"], least)
    payload = {**row["payload"], **changes}
    if stamped:
        payload["metadata"] = {**(payload.get("metadata") or {}), **stamped}
    _UPDATE.count(
        conn,
        **fields,
        deployment_id=deployment_id,
        cron_id=cron_id,
        next_run_date=next_run_date,
        payload=dumps(_payload(payload, cron_id, row["assistant_id"])),
        metadata=dumps({**row["metadata"], **(changes.get("metadata") or {}), **(stamped or {})}),
    )
    return get(conn, deployment_id, cron_id)


def delete(conn: Connection, deployment_id: UUID, cron_id: UUID) -> None:
    """Delete a cron. Its runs stay. Raises NotFound."""
    query = text("DELETE FROM cron WHERE deployment_id = :deployment_id AND cron_id = :cron_id")
    if conn.execute(query, {"deployment_id": deployment_id, "cron_id": cron_id}).rowcount == 0:
        raise NotFound("Not Found")


@dataclass(frozen=True, slots=True)
class Visible:
    """The filters of a caller: for crons, and for the threads of crons."""

    crons: Filter | None = None
    threads: Filter | None = None

    def condition(self) -> tuple[str, dict[str, Any]]:
        """Return the SQL condition on the crons that the caller may see, and its values."""
        of_crons, values = filters.condition(self.crons, "metadata")
        if not self.threads:
            return of_crons, values
        of_threads, others = filters.condition(self.threads, "t.metadata", prefix="t")
        threads = (
            "SELECT FROM thread AS t WHERE t.deployment_id = cron.deployment_id"
            f" AND t.thread_id = cron.thread_id AND {of_threads}"
        )
        return f"{of_crons} AND (thread_id IS NULL OR EXISTS ({threads}))", values | others


ALL = Visible()


def _matching(
    deployment_id: UUID, visible: Visible, criteria: Mapping[str, Any]
) -> tuple[str, dict[str, Any]]:
    """Return the SQL condition of a search and its values."""
    is_visible, values = visible.condition()
    conditions = ["deployment_id = :deployment_id", is_visible]
    conditions += [
        f"{name} = :{name}" for name in ("assistant_id", "thread_id", "enabled") if name in criteria
    ]
    values |= {"deployment_id": deployment_id, **criteria}
    if "metadata" in criteria:
        conditions.append("metadata @> CAST(:metadata AS jsonb)")
        values["metadata"] = dumps(criteria["metadata"])
    return " AND ".join(conditions), values


def search(
    conn: Connection,
    deployment_id: UUID,
    *,
    limit: int,
    offset: int,
    sort_by: str = "created_at",
    sort_order: str = "desc",
    visible: Visible = ALL,
    **criteria: Any,
) -> tuple[Sequence[Row], int]:
    """Return a page of the crons that match all criteria (`assistant_id`, `thread_id`, `enabled`, `metadata`).

    Also returns the number of matches as `pages` counts them.
    """
    assert sort_by in SORTABLE
    order = f"{sort_by} {'ASC' if sort_order == 'asc' else 'DESC'}"
    condition, values = _matching(deployment_id, visible, criteria)
    found = statement("crons.search", columns=RECORD.select, condition=condition, order=order)
    counted = statement("crons.count", condition=condition)
    return pages.statement_page(conn, found, counted, values, limit=limit, offset=offset)


def count(conn: Connection, deployment_id: UUID, *, visible: Visible = ALL, **criteria: Any) -> int:
    """Return the number of crons that match all criteria."""
    condition, values = _matching(deployment_id, visible, criteria)
    (counted,) = statement("crons.count", condition=condition).rows(conn, **values, most=None)
    return counted["n"]
