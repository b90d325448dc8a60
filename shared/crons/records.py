"""Records of crons: create, read, change, search, delete. All times are the database's."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from sqlalchemy import Connection, RowMapping, text
from uuid_utils.compat import uuid7

from shared import assistants
from shared.crons import schedule as schedules
from shared.deployments.deployments import DeploymentRef
from shared.errors import Invalid, NotFound, TooMany
from shared.infra import encryption
from shared.infra.postgres import dumps
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
OWN = ("schedule", "timezone", "end_time", "on_run_completed", "enabled")
MAX_PER_DEPLOYMENT = 10_000


INSERT = text("""
INSERT INTO cron (cron_id, deployment_id, assistant_id, thread_id, user_id, end_time, schedule, timezone,
                  payload, next_run_date, metadata, on_run_completed, enabled, auth_user)
VALUES (:cron_id, :deployment_id, :assistant_id, :thread_id, :user_id, :end_time, :schedule, :timezone,
        CAST(:payload AS json), :next_run_date, CAST(:metadata AS jsonb), :on_run_completed, :enabled, :auth_user)
""")


def create(
    conn: Connection,
    deployment: DeploymentRef,
    asked: Mapping[str, Any],
    *,
    thread_id: UUID | None,
    cron_id: UUID | None = None,
    user: Mapping[str, Any] | None = None,
    of_assistants: Filter | None = None,
    of_threads: Filter | None = None,
    min_seconds: float = 0,
) -> RowMapping:
    """Insert a cron from a request body. Raises NotFound (assistant, thread), Invalid (schedule, time zone), TooMany.

    `user` is the document of the deployment's user who made the request; the cron's runs act for this user. Objects
    hidden by the filters count as missing.
    """
    assistant_id = _assistant(conn, deployment, asked["assistant_id"], of_assistants)
    if thread_id is not None:
        _require_thread(conn, deployment.id, thread_id, of_threads)
    if count(conn, deployment.id) >= MAX_PER_DEPLOYMENT:
        raise TooMany(
            f"This deployment has {MAX_PER_DEPLOYMENT} crons already: delete some.", retry_after_seconds=60
        )
    cron_id = cron_id or uuid7()
    end_time = _moment(asked.get("end_time"))
    _refuse_past(conn, end_time)
    conn.execute(
        INSERT,
        {
            "cron_id": cron_id,
            "deployment_id": deployment.id,
            "assistant_id": assistant_id,
            "thread_id": thread_id,
            "user_id": "" if user is None else user["identity"],
            "auth_user": None if user is None else encryption.encrypt(dumps(user)),
            "end_time": end_time,
            "schedule": asked["schedule"],
            "timezone": asked.get("timezone"),
            "payload": dumps(_payload(asked, cron_id, assistant_id)),
            "next_run_date": _first(conn, asked["schedule"], asked.get("timezone"), min_seconds),
            "metadata": dumps(asked.get("metadata") or {}),
            "on_run_completed": None if thread_id else asked.get("on_run_completed") or "delete",
            "enabled": asked.get("enabled", True),
        },
    )
    return get(conn, deployment.id, cron_id)


def _first(conn: Connection, schedule: str, timezone: str | None, min_seconds: float) -> datetime:
    """Return the first due time of a schedule. Raises Invalid if it is due twice within `min_seconds`."""
    first = schedules.next_after(schedule, timezone, _now(conn))
    schedules.refuse_closer(schedule, min_seconds)
    return first


def _assistant(conn: Connection, deployment: DeploymentRef, named: str, visible: Filter | None) -> UUID:
    try:
        found = assistants.resolve(conn, deployment, named).assistant_id
        filters.require_assistant(conn, deployment.id, found, visible)
        return found
    except (NotFound, Invalid):
        raise NotFound(f"Assistant '{named}' not found") from None


def _require_thread(conn: Connection, deployment_id: UUID, thread_id: UUID, visible: Filter | None) -> None:
    try:
        records.require(conn, deployment_id, thread_id)
        filters.require_thread(conn, deployment_id, thread_id, visible)
    except NotFound:
        raise NotFound(f"Thread with ID '{thread_id}' not found. Create it first.") from None


def payload(asked: Mapping[str, Any], cron_id: UUID) -> dict[str, Any]:
    """Return the request that each run is created from: the body as sent, with the cron's id in its `configurable`."""
    config = asked.get("config") or {}
    configurable = {**(config.get("configurable") or {}), "cron_id": str(cron_id)}
    return {**asked, "config": {**config, "configurable": configurable}}


def _payload(asked: Mapping[str, Any], cron_id: UUID, assistant_id: UUID) -> dict[str, Any]:
    return {**payload(asked, cron_id), "assistant_id": str(assistant_id)}


def _moment(sent: str | None) -> datetime | None:
    return None if sent is None else schedules.moment_of(sent)


def _refuse_past(conn: Connection, end_time: datetime | None) -> None:
    """Raise Invalid for an end time in the past, with which the cron would never fire."""
    if end_time is not None and end_time <= _now(conn):
        raise Invalid("end_time: must be in the future", loc=("body", "end_time"))


def _now(conn: Connection) -> datetime:
    return conn.execute(text("SELECT now()")).scalar_one()


def get(conn: Connection, deployment_id: UUID, cron_id: UUID, *, lock: bool = False) -> RowMapping:
    """Return a cron. Raises NotFound."""
    query = text(
        f"SELECT {RECORD.select} FROM cron WHERE deployment_id = :deployment_id AND cron_id = :cron_id"
        + (" FOR UPDATE" if lock else "")
    )
    row = conn.execute(query, {"deployment_id": deployment_id, "cron_id": cron_id}).mappings().one_or_none()
    if row is None:
        raise NotFound("Not Found")
    return row


def firings(conn: Connection, deployment_id: UUID, cron_id: UUID, *, count: int) -> list[datetime]:
    """Return the times of a cron's next runs as of now. Empty if it is disabled or has ended. Raises NotFound."""
    row = get(conn, deployment_id, cron_id)
    if not row["enabled"]:
        return []
    now = _now(conn)
    first = max(row["next_run_date"], now)
    later = schedules.firings(row["schedule"], row["timezone"], first, count=count)
    return [at for at in [first, *later][:count] if row["end_time"] is None or at <= row["end_time"]]


UPDATE = text("""
UPDATE cron SET schedule = :schedule, timezone = :timezone, end_time = :end_time, enabled = :enabled,
    on_run_completed = :on_run_completed, next_run_date = :next_run_date, updated_at = now(),
    payload = CAST(:payload AS json), metadata = CAST(:metadata AS jsonb)
WHERE deployment_id = :deployment_id AND cron_id = :cron_id
""")


def update(
    conn: Connection,
    deployment_id: UUID,
    cron_id: UUID,
    changes: Mapping[str, Any],
    *,
    visible: Filter | None = None,
    stamped: Mapping[str, Any] | None = None,
    min_seconds: float = 0,
) -> RowMapping:
    """Change the given fields. Metadata is merged; a new schedule or time zone starts from now.

    `stamped` is added to the metadata of the cron and of its runs and overrides equal keys. Raises NotFound, Invalid.
    """
    try:
        row = get(conn, deployment_id, cron_id, lock=True)
        filters.require_cron(conn, deployment_id, cron_id, visible)
    except NotFound:
        raise NotFound(f"Cron '{cron_id}' not found") from None
    own = {name: changes.get(name, row[name]) for name in OWN}
    if "end_time" in changes:
        own["end_time"] = _moment(changes["end_time"])
        _refuse_past(conn, own["end_time"])
    if row["thread_id"] is not None:
        own["on_run_completed"] = None
    next_run_date = row["next_run_date"]
    if "schedule" in changes or "timezone" in changes:
        least = min_seconds if "schedule" in changes else 0
        next_run_date = _first(conn, own["schedule"], own["timezone"], least)
    payload = {**row["payload"], **changes}
    if stamped:
        payload["metadata"] = {**(payload.get("metadata") or {}), **stamped}
    conn.execute(
        UPDATE,
        {
            **own,
            "deployment_id": deployment_id,
            "cron_id": cron_id,
            "next_run_date": next_run_date,
            "payload": dumps(_payload(payload, cron_id, row["assistant_id"])),
            "metadata": dumps({**row["metadata"], **(changes.get("metadata") or {}), **(stamped or {})}),
        },
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
        of_crons, values = filters.condition(self.crons, "metadata")
        if not self.threads:
            return of_crons, values
        of_threads, others = filters.condition(self.threads, "t.metadata", prefix="t")
        own = (
            "SELECT FROM thread AS t WHERE t.deployment_id = cron.deployment_id"
            f" AND t.thread_id = cron.thread_id AND {of_threads}"
        )
        return f"{of_crons} AND (thread_id IS NULL OR EXISTS ({own}))", values | others


ALL = Visible()


def _matching(deployment_id: UUID, visible: Visible, wanted: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """Return the SQL condition of a search and its values."""
    is_visible, values = visible.condition()
    conditions = ["deployment_id = :deployment_id", is_visible]
    conditions += [f"{name} = :{name}" for name in ("assistant_id", "thread_id", "enabled") if name in wanted]
    values |= {"deployment_id": deployment_id, **wanted}
    if "metadata" in wanted:
        conditions.append("metadata @> CAST(:metadata AS jsonb)")
        values["metadata"] = dumps(wanted["metadata"])
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
    **wanted: Any,
) -> list[RowMapping]:
    """Return crons that match all criteria (`assistant_id`, `thread_id`, `enabled`, `metadata`)."""
    assert sort_by in SORTABLE
    order = "ASC" if sort_order == "asc" else "DESC"
    where, values = _matching(deployment_id, visible, wanted)
    query = text(
        f"SELECT {RECORD.select} FROM cron WHERE {where}"
        f" ORDER BY {sort_by} {order}, cron_id DESC LIMIT :limit OFFSET :offset"
    )
    return list(conn.execute(query, {**values, "limit": limit, "offset": offset}).mappings())


def count(conn: Connection, deployment_id: UUID, *, visible: Visible = ALL, **wanted: Any) -> int:
    """Return the number of crons that match all criteria."""
    where, values = _matching(deployment_id, visible, wanted)
    return conn.execute(text(f"SELECT count(*) FROM cron WHERE {where}"), values).scalar_one()
