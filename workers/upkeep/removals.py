"""Removes deleted deployments, and expired or old threads, items, runs, revisions, archives, figures, audit entries and logs.

Each step is a loop of short transactions that stops after STEP_SECONDS, so that it does not delay the other steps of
upkeep. The next round continues an unfinished step.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from uuid import UUID

from sqlalchemy import Connection

from shared import audit, store
from shared.access import idempotency
from shared.deployments import sources
from shared.figures import budgets, folding
from shared.infra.postgres import connection
from shared.removal import deletion, expiry, history
from shared.replays import records
from shared.runs import bulk, webhook_records
from shared.settings import Settings

STEP_SECONDS = 1.0

Chunk = Callable[[Connection], int]
OfDeployment = Callable[[UUID, Connection], int]


class Removals:
    """The removal steps of upkeep, and the progress of steps that were not finished."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._upto: dict[OfDeployment, UUID] = {}  # the last finished deployment per kind of removal
        self.is_done = True

    def steps(self) -> list[Callable[[], None]]:
        """Return the steps of one round in order."""
        self.is_done = True
        return [
            self.deleted_deployments,
            self.expired_threads,
            self.expired_items,
            self.old_runs,
            self.old_revisions,
            self.unused_archives,
            self.old_answers,
            self.old_deliveries,
            self.old_figures,
            self.old_audit_entries,
            self.old_bulk_operations,
            self.old_replays,
            self.old_log_lines,
        ]

    def deleted_deployments(self) -> None:
        self._exhaust(deletion.purge)

    def expired_threads(self) -> None:
        self._exhaust(expiry.sweep)

    def expired_items(self) -> None:
        self._exhaust(store.sweep)

    def old_runs(self) -> None:
        if self._settings.run_retention_days:
            self._of_each_deployment(self._remove_runs)

    def _remove_runs(self, deployment_id: UUID, conn: Connection) -> int:
        return history.remove_old_runs(conn, deployment_id, days=self._settings.run_retention_days)

    def old_revisions(self) -> None:
        self._exhaust(partial(history.remove_old_revisions, kept=self._settings.kept_revisions))

    def unused_archives(self) -> None:
        self._exhaust(sources.remove_unused_archives)

    def old_answers(self) -> None:
        self._exhaust(idempotency.remove_old)

    def old_deliveries(self) -> None:
        self._exhaust(webhook_records.remove_old)

    def old_figures(self) -> None:
        self._exhaust(folding.remove_old)
        self._exhaust(budgets.remove_old)

    def old_audit_entries(self) -> None:
        self._exhaust(partial(audit.remove_old, days=self._settings.log_retention_days))

    def old_bulk_operations(self) -> None:
        self._exhaust(partial(bulk.remove_old, days=self._settings.log_retention_days))

    def old_replays(self) -> None:
        if self._settings.run_retention_days:
            self._exhaust(partial(records.remove_old, days=self._settings.run_retention_days))

    def old_log_lines(self) -> None:
        self._of_each_deployment(self._trim_log)

    def _trim_log(self, deployment_id: UUID, conn: Connection) -> int:
        return history.remove_old_lines(
            conn, deployment_id, days=self._settings.log_retention_days, most=self._settings.max_log_lines
        )

    def _of_each_deployment(self, chunk: OfDeployment) -> None:
        """Apply a chunk to the deployments in the order of their ids, from where the last round stopped."""
        until = time.monotonic() + STEP_SECONDS
        while self._has_time(until):
            with connection() as conn:
                deployment_ids = history.deployments_after(conn, self._upto.get(chunk))
            if not deployment_ids:
                self._upto.pop(chunk, None)
                return
            for deployment_id in deployment_ids:
                if not self._exhaust(partial(chunk, deployment_id), until):
                    return
                self._upto[chunk] = deployment_id

    def _exhaust(self, chunk: Chunk, until: float | None = None) -> bool:
        """Repeat a chunk until nothing of its kind is left or the step's time is over.

        Returns whether nothing is left.
        """
        until = until or time.monotonic() + STEP_SECONDS
        while self._has_time(until):
            with connection() as conn:
                if not chunk(conn):
                    return True
        return False

    def _has_time(self, until: float) -> bool:
        if time.monotonic() < until:
            return True
        self.is_done = False
        return False
