"""Firing crons that act for users. The deployment's authorization is called first, as for any run of a user.

The call may take seconds, so no lock is held meanwhile. The cron is locked afterwards, and fires only if it is
unchanged. If the run is refused, this due time is skipped. Without an answer the cron stays due and is retried.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any
from uuid import UUID

import orjson
from sqlalchemy import Connection, RowMapping

from shared import assistants, crons
from shared.crons import Fired
from shared.deployments import deployments
from shared.deployments.deployments import DeploymentRef
from shared.errors import Denied, Invalid, Refused, RunyardError, Unanswered, Unavailable
from shared.infra import encryption
from shared.infra.postgres import connection
from shared.runs import create, drafts
from shared.runs.drafts import Draft
from shared.user_code import authorization, filters
from shared.user_code.authorization import Ask, Granted, User
from shared.user_code.users import user_of

log = logging.getLogger(__name__)

NOBODY = "it was created before the deployment had its own authorization, and has no user"


class NoAnswer(RunyardError):
    """The deployment's authorization does not answer: the cron stays due."""


@dataclass(frozen=True, slots=True)
class _Planned:
    """A due cron and the draft of its run."""

    row: RowMapping
    deployment: DeploymentRef
    user: User
    draft: Draft


def fire(cron_id: UUID, *, max_pending: int) -> Fired | None:
    """Authorize and fire a cron, in one transaction. Returns None if there is no run this time. Raises NoAnswer."""
    try:
        planned = _planned(cron_id)
        return None if planned is None else _asked_and_fired(planned, max_pending)
    except (Unanswered, Unavailable) as error:
        raise NoAnswer() from error
    except (Refused, Denied) as error:
        _refuse(cron_id, error.message)
    except Exception:  # one cron's failure must not stop the others
        log.exception("cron %s: skipped this run", cron_id)
        crons.skip(cron_id, guarded=True)
    return None


def _planned(cron_id: UUID) -> _Planned | None:
    """Draft the run of a due cron. Returns None if it is not due or locked. Raises Refused if it can have no run."""
    with connection() as conn:
        row = crons.take(conn, cron_id, guarded=True)
        deployment = None if row is None else deployments.resolve_by_id(conn, row["deployment_id"])
        if row is None or deployment is None:
            return None
        request = crons.request_of(row)
        assistant = assistants.resolve(conn, deployment, request.assistant_id)
    user = _user(row)
    draft = drafts.draft(request, assistant, thread_id=row["thread_id"], user=user.document)
    return _Planned(row, deployment, user, draft)


def _user(row: RowMapping) -> User:
    if row["auth_user"] is None:
        raise Invalid(NOBODY)
    try:
        return user_of(orjson.loads(encryption.decrypt(row["auth_user"])))
    except (encryption.Undecryptable, ValueError) as error:
        raise Invalid("its user cannot be decrypted") from error


def _asked_and_fired(planned: _Planned, max_pending: int) -> Fired | None:
    asks = [drafts.ask(planned.draft)]
    if drafts.has_own_assistant(planned.draft):
        asks.append(Ask("assistants", "read", {"assistant_id": planned.draft.assistant.assistant_id}))
    granted, *reads = authorization.authorize(planned.deployment, planned.user, asks)
    try:
        draft = drafts.changed(planned.draft, granted.value)
    except ValueError as error:
        authorization.fail(planned.deployment, str(error))
    cron_id = planned.row["cron_id"]
    with connection() as conn:
        row = crons.take(conn, cron_id, guarded=True)
        if row is None or not _is_same(conn, row, planned):
            return None  # the changed cron is authorized in the next round
        crons.move_on(conn, row)
        _require_assistant(conn, draft, planned.deployment.id, reads)
        created = create.insert(
            conn, planned.deployment, draft, filter=granted.filter, max_pending=max_pending
        )
    log.info("cron %s: created run %s", cron_id, created.run_id)
    return Fired(cron_id, created)


def _is_same(conn: Connection, row: RowMapping, planned: _Planned) -> bool:
    """Whether the cron, its assistant and the revision are as they were when the handlers were called."""

    def shape(one: RowMapping) -> dict[str, Any]:
        return {name: value for name, value in one.items() if name != "now"}

    found = assistants.resolve(conn, planned.deployment, planned.draft.request.assistant_id)
    return shape(row) == shape(planned.row) and found == planned.draft.assistant


def _require_assistant(conn: Connection, draft: Draft, deployment_id: UUID, reads: list[Granted]) -> None:
    for read in reads:
        filters.require_assistant(
            conn, deployment_id, draft.assistant.assistant_id, read.filter, error=create.missing()
        )


def _refuse(cron_id: UUID, why: str) -> None:
    """Skip this due time, and log the reason to the deployment's log."""
    log.warning("cron %s: skipped this run: %s", cron_id, why)
    with connection() as conn:
        row = crons.take(conn, cron_id, guarded=True)
        if row is None:
            return
        crons.move_on(conn, row)
        deployment = deployments.resolve_by_id(conn, row["deployment_id"])
    if deployment is not None:
        authorization.note(deployment, f"cron {cron_id}: skipped this run: {why}")
