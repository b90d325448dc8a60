"""Status values of deployments, revisions, threads and runs, as the API has them, and SQL conditions on them."""

from __future__ import annotations

import enum


class RevisionStatus(enum.StrEnum):
    CREATING = "CREATING"
    QUEUED = "QUEUED"
    AWAITING_BUILD = "AWAITING_BUILD"
    BUILDING = "BUILDING"
    AWAITING_DEPLOY = "AWAITING_DEPLOY"
    DEPLOYING = "DEPLOYING"
    DEPLOYED = "DEPLOYED"
    CREATE_FAILED = "CREATE_FAILED"
    BUILD_FAILED = "BUILD_FAILED"
    DEPLOY_FAILED = "DEPLOY_FAILED"
    SKIPPED = "SKIPPED"
    INTERRUPTED = "INTERRUPTED"
    UNKNOWN = "UNKNOWN"


REVISION_ENDS = frozenset(
    {
        RevisionStatus.DEPLOYED,
        RevisionStatus.CREATE_FAILED,
        RevisionStatus.BUILD_FAILED,
        RevisionStatus.DEPLOY_FAILED,
        RevisionStatus.SKIPPED,
        RevisionStatus.INTERRUPTED,
    }
)


class DeploymentStatus(enum.StrEnum):
    AWAITING_DATABASE = "AWAITING_DATABASE"
    READY = "READY"
    UNUSED = "UNUSED"
    AWAITING_DELETE = "AWAITING_DELETE"
    AWAITING_FINAL_DELETE = "AWAITING_FINAL_DELETE"
    UNKNOWN = "UNKNOWN"


def status_of_deployment(alias: str) -> str:
    """Return the SQL expression for the status of a deployment that the API shows. `alias` is the table's alias.

    A deployment is UNUSED, not READY, if it serves no revision and has no revision in progress.
    """
    ends = ", ".join(f"'{status}'" for status in sorted(REVISION_ENDS))
    return (
        f"CASE WHEN {alias}.status = 'READY' AND {alias}.active_revision_id IS NULL AND NOT EXISTS"
        f" (SELECT FROM revision o WHERE o.deployment_id = {alias}.id AND o.status NOT IN ({ends}))"
        f" THEN 'UNUSED' ELSE {alias}.status END"
    )


class RunStatus(enum.StrEnum):
    PENDING = "pending"
    RUNNING = "running"
    SUCCESS = "success"
    ERROR = "error"
    TIMEOUT = "timeout"
    INTERRUPTED = "interrupted"


LIVE_RUN_STATUSES = (RunStatus.PENDING, RunStatus.RUNNING)
UNSUCCESSFUL_RUN_STATUSES = (RunStatus.ERROR, RunStatus.TIMEOUT, RunStatus.INTERRUPTED)
ENDED_RUN_STATUSES = (RunStatus.SUCCESS, *UNSUCCESSFUL_RUN_STATUSES)


def is_unsuccessful() -> str:
    """Return the SQL condition that a run has ended without success."""
    return is_one_of(UNSUCCESSFUL_RUN_STATUSES)


def has_ended() -> str:
    """Return the SQL condition that a run has ended."""
    return is_one_of(ENDED_RUN_STATUSES)


def is_one_of(statuses: tuple[RunStatus, ...]) -> str:
    """Return the SQL condition that a run has one of the statuses.

    Uses literals instead of parameters: PostgreSQL uses a partial index only if the condition matches the index's own.
    """
    words = ", ".join(f"'{status}'" for status in statuses)
    return f"status IN ({words})"


class ThreadStatus(enum.StrEnum):
    IDLE = "idle"
    BUSY = "busy"
    INTERRUPTED = "interrupted"
    ERROR = "error"
