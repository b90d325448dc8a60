"""Firing of crons: each due time creates one run.

Upkeep reads every second which crons are due. A firing locks the cron, creates the run and advances `next_run_date` in
one transaction. Each due time therefore fires once, however many processes try. After downtime a cron fires once for
all missed times. All times are the database's.

If the deployment has its own authorization, its handlers are called first, for the user who created the cron. The call
may take seconds, so no lock is held meanwhile: the cron fires only if it is unchanged afterwards. If the run is
refused, this due time is skipped. Without an answer the cron stays due and is retried.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any
from uuid import UUID

import orjson
from sqlalchemy import Connection, text

from shared.crons import schedule
from shared.deployments import deployments
from shared.errors import Denied, Invalid, Refused, RunyardError
from shared.infra import encryption
from shared.infra.postgres import Row, connection
from shared.runs import creation
from shared.runs.create import Created
from shared.runs.drafts import Creator, RunRequest
from shared.settings import Settings
from shared.sql import statement
from shared.user_code import authorization
from shared.user_code.users import User, user_of

log = logging.getLogger(__name__)

FIRED_AT_ONCE = 50
NO_USER = "it was created before the deployment had its own authorization, and has no user"

_DUE = statement("crons.due")
_READ = statement("crons.one_due", lock="")
_LOCK = statement("crons.one_due", lock="FOR UPDATE OF c SKIP LOCKED")
ADVANCE = text("UPDATE cron SET next_run_date = :next, enabled = :enabled WHERE cron_id = :cron_id")


class _NotDue(RunyardError):
    """The cron is not due any more, is locked by another process, or has changed."""


def due(conn: Connection, *, guarded: bool, limit: int = FIRED_AT_ONCE) -> Sequence[UUID]:
    """Return the crons that are due, oldest first. `guarded`: those of deployments with their own authorization."""
    return [row["cron_id"] for row in _DUE.rows(conn, guarded=guarded, limit=limit)]


@dataclass(frozen=True, slots=True)
class Firing:
    """The part of a firing that is committed with the run: the cron, locked and advanced."""

    row: Row
    guarded: bool

    def begin(self, conn: Connection) -> None:
        """Lock and advance the cron. Raises _NotDue unless it is as it was when its run was drafted."""
        row = _lock(conn, self.row["cron_id"], guarded=self.guarded)
        if row is None or _content(row) != _content(self.row):
            raise _NotDue
        _advance(conn, row)

    def complete(self, conn: Connection, created: Sequence[Created]) -> None:
        """Do nothing: the run's metadata names the cron."""


def fire(cron_id: UUID, settings: Settings, *, guarded: bool) -> Created | None:
    """Create the run of a due cron. Returns None if there is no run this time.

    A refused run is skipped. Raises Unanswered, Unavailable if the authorization or a server does not answer: the cron
    stays due. The caller skips the run of a cron that raises any other error.
    """
    try:
        created = _fire(cron_id, settings, guarded=guarded)
    except _NotDue:
        return None
    except (Refused, Denied) as error:
        skip(cron_id, guarded=guarded, reason=error.message)
        return None
    log.info("cron %s: created run %s", cron_id, created.run_id)
    return created


def _fire(cron_id: UUID, settings: Settings, *, guarded: bool) -> Created:
    with connection() as conn:
        row = _READ.row(conn, cron_id=cron_id, guarded=guarded)
        deployment = None if row is None else deployments.resolve_by_id(conn, row["deployment_id"])
    if row is None or deployment is None:
        raise _NotDue
    creator = Creator(
        deployment,
        max_pending_per_thread=settings.max_pending_per_thread,
        event_retention_seconds=settings.event_retention_seconds,
    )
    if guarded:
        user = _user(row)
        authorize = partial(authorization.authorize, deployment, user)
        creator = replace(creator, user=user.document, authorize=authorize)
    return creation.create_runs(creator, [_request_of(row)], part=Firing(row, guarded))[0]


def _lock(conn: Connection, cron_id: UUID, *, guarded: bool) -> Row | None:
    """Lock a due cron until the transaction ends. Returns None if it is not due or locked by another process."""
    return _LOCK.row(conn, cron_id=cron_id, guarded=guarded)


def _content(row: Row) -> dict[str, Any]:
    return {name: value for name, value in row.items() if name != "now"}


def _user(row: Row) -> User:
    if row["auth_user"] is None:
        raise Invalid(NO_USER)
    try:
        return user_of(orjson.loads(encryption.decrypt(row["auth_user"])))
    except (encryption.Undecryptable, ValueError) as error:
        raise Invalid("its user cannot be decrypted") from error


def _request_of(row: Row) -> RunRequest:
    """Return the request of the run that a cron creates."""
    payload = row["payload"]
    fields = {name: payload[name] for name in RUN_FIELDS if payload.get(name) is not None}
    fields["metadata"] = {**row["metadata"], **(payload.get("metadata") or {})}
    if row["on_run_completed"] is not None:
        fields["on_completion"] = row["on_run_completed"]
    entry = {"cron_id": str(row["cron_id"])}
    return RunRequest(
        assistant_id=str(row["assistant_id"]),
        thread_id=row["thread_id"],
        extras=entry,
        service_metadata=entry,
        **fields,
    )


RUN_FIELDS = (
    "input", "config", "context", "stream_mode", "stream_subgraphs", "stream_resumable", "interrupt_before",
    "interrupt_after", "multitask_strategy", "durability", "webhook",
)  # fmt: skip


def _advance(conn: Connection, row: Row) -> None:
    """Advance a cron to its next due time in the future. Disables it if the schedule has none."""
    after = max(row["now"], row["next_run_date"])
    try:
        following, enabled = schedule.next_after(row["schedule"], row["timezone"], after), True
    except Invalid:
        following, enabled = row["next_run_date"], False
    conn.execute(ADVANCE, {"cron_id": row["cron_id"], "next": following, "enabled": enabled})


def skip(cron_id: UUID, *, guarded: bool, reason: str | None = None) -> None:
    """Skip this due time of a cron that could not fire, so that it does not block others.

    A reason is logged. If the handlers decide about the cron's runs, its users read it in the deployment's log.
    """
    if reason is not None:
        log.warning("cron %s: skipped this run: %s", cron_id, reason)
    with connection() as conn:
        row = _lock(conn, cron_id, guarded=guarded)
        if row is None:
            return
        _advance(conn, row)
        deployment = deployments.resolve_by_id(conn, row["deployment_id"])
    if deployment is not None and guarded and reason is not None:
        authorization.write_log(deployment, f"cron {cron_id}: skipped this run: {reason}")
