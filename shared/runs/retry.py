"""Retries of failed runs.

A new run continues from the failed run's last checkpoint, or from its input if it has no checkpoint. It has the same
configuration and uses the revision that the deployment serves now, which may contain the fix. The failed run stays
unchanged, and the new run's metadata names it.

A retry is refused if the thread has moved on since. Later runs were built on the state that the failed run left, and a
retry from an older checkpoint would drop their results from the thread's newest state. `force` permits this.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from uuid import UUID

from sqlalchemy import Connection

from shared.deployments.deployments import DeploymentRef
from shared.errors import Conflict, NotFound
from shared.infra.postgres import Row
from shared.models import UNSUCCESSFUL_RUN_STATUSES, ThreadStatus
from shared.runs import a2a_tasks, create, read
from shared.runs.configurable import CHECKPOINT_KEYS, RUN_ENTRIES
from shared.runs.drafts import KWARGS_FROM_REQUEST, RunRequest
from shared.sql import statement
from shared.threads import records

_LAST_CHECKPOINT = statement("runs.last_checkpoint")
RETRY_OF = "retry_of"  # key in a run's metadata


@dataclass(frozen=True, slots=True)
class RetryRun:
    """The rule of a retry: the request continues where the failed run ended."""

    run_id: UUID
    force: bool = False

    def missing(self) -> NotFound:
        return NotFound("Not Found")

    def complete(self, conn: Connection, deployment: DeploymentRef, request: RunRequest) -> RunRequest:
        """Return the request for a run that continues the failed run. Locks the thread.

        Raises NotFound. Raises Conflict if the thread is busy, if the run has not failed, or if the thread has moved on
        since. `force` permits the last case: the new run then forks from the failed run's last checkpoint.
        """
        thread_id = request.thread_id
        assert thread_id is not None
        records.lock(conn, deployment.id, thread_id)
        failed = read.get(conn, deployment.id, self.run_id, thread_id=thread_id)
        if records.get(conn, deployment.id, thread_id)["status"] == ThreadStatus.BUSY:
            raise Conflict(create.BUSY)
        if failed["status"] not in UNSUCCESSFUL_RUN_STATUSES:
            raise Conflict(f"Run {self.run_id} has not failed: its status is {failed['status']}.")
        (last,) = _LAST_CHECKPOINT.rows(
            conn, deployment_id=deployment.id, thread_id=thread_id, run_id=self.run_id
        )
        if last["has_moved_on"] and not self.force:
            raise Conflict(
                f"Thread {thread_id} has changed since run {self.run_id}: "
                "set `force` to fork it from the run's last checkpoint."
            )
        continued = _continue(request, failed, has_checkpoint=last["checkpoint_id"] is not None)
        if last["checkpoint_id"] is not None and last["has_moved_on"]:
            continued.checkpoint["checkpoint_id"] = last["checkpoint_id"]
        return continued


def _continue(request: RunRequest, failed: Row, *, has_checkpoint: bool) -> RunRequest:
    """Return the request with the failed run's configuration: without its input, to continue from a checkpoint."""
    kwargs = failed["kwargs"]
    configurable = kwargs["config"].get("configurable", {})
    checkpoint = {name: configurable[name] for name in CHECKPOINT_KEYS if name in configurable}
    configured = with_configuration(request, failed)
    return replace(
        configured,
        metadata=a2a_tasks.detached(configured.metadata),
        input=None if has_checkpoint else failed["input"],
        command=None if has_checkpoint else kwargs["command"],
        strict_resume=not has_checkpoint and kwargs.get("strict_resume", False),
        checkpoint={} if has_checkpoint else checkpoint,
        service_metadata={RETRY_OF: str(failed["run_id"])},
    )


def with_configuration(request: RunRequest, run: Row) -> RunRequest:
    """Return the request with an earlier run's assistant, metadata, config, context, webhook and stream settings."""
    kwargs = run["kwargs"]
    configurable = kwargs["config"].get("configurable", {})
    return replace(
        request,
        assistant_id=str(run["assistant_id"]),
        metadata=run["metadata"],
        config={name: value for name, value in kwargs["config"].items() if name != "configurable"},
        context=kwargs["context"],
        extras={name: value for name, value in configurable.items() if name not in RUN_ENTRIES},
        **{field: kwargs[name] for name, field in KWARGS_FROM_REQUEST.items()},
    )
