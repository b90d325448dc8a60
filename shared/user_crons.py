"""The firing of crons that act for users: their deployment's authorization is asked first, as for any run of theirs.

The question may take seconds, so nothing is held meanwhile: afterwards the cron is taken, and only fires if it still
is what was asked about. Refused, it has no run this time. Without an answer it stays due, and is tried again.
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

NOBODY = "it was created when the deployment had no authorization, and so acts for nobody"


class NoAnswer(RunyardError):
    """The deployment's authorization does not answer: the cron stays due."""


@dataclass(frozen=True, slots=True)
class _Planned:
    """A cron that is due, and the run it would have."""

    row: RowMapping
    deployment: DeploymentRef
    user: User
    draft: Draft


def fire(cron_id: UUID, *, max_pending: int) -> Fired | None:
    """One firing, whole or not at all; None when there is none this time. Raises NoAnswer."""
    try:
        planned = _planned(cron_id)
        return None if planned is None else _asked_and_fired(planned, max_pending)
    except (Unanswered, Unavailable) as error:
        raise NoAnswer() from error
    except (Refused, Denied) as error:
        _refuse(cron_id, error.message)
    except Exception:  # one cron's trouble must not stop the others
        log.exception("cron %s: this time there is no run", cron_id)
        crons.skip(cron_id, guarded=True)
    return None


def _planned(cron_id: UUID) -> _Planned | None:
    """None when it is no longer due, or somebody else's; raises Refused for a cron that can have no run."""
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
        raise Invalid("whom it acts for cannot be read") from error


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
            return None  # what is due now is asked about the next time
        crons.move_on(conn, row)
        _require_assistant(conn, draft, planned.deployment.id, reads)
        created = create.insert(
            conn, planned.deployment, draft, filter=granted.filter, max_pending=max_pending
        )
    log.info("cron %s: created run %s", cron_id, created.run_id)
    return Fired(cron_id, created)


def _is_same(conn: Connection, row: RowMapping, planned: _Planned) -> bool:
    """Whether a cron and its assistant are as they were when the handlers were asked, in the same revision."""

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
    """No run this time, and a line in the deployment's log."""
    log.warning("cron %s: this time there is no run: %s", cron_id, why)
    with connection() as conn:
        row = crons.take(conn, cron_id, guarded=True)
        if row is None:
            return
        crons.move_on(conn, row)
        deployment = deployments.resolve_by_id(conn, row["deployment_id"])
    if deployment is not None:
        authorization.note(deployment, f"cron {cron_id}: this time there is no run: {why}")
