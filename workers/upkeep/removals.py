"""Removes what is over: deleted deployments, old revisions, archives, answers and log lines.

Each step is a loop of short transactions that ends after a moment, so that upkeep's other steps are
not held up; what a step did not finish it finishes in the next round.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from uuid import UUID

from sqlalchemy import Connection

from shared.access import idempotency
from shared.deployments import archives
from shared.figures import budgets, folding
from shared.infra.postgres import connection
from shared.removal import deletion, history
from shared.runs import webhook_records
from shared.settings import Settings

STEP_SECONDS = 1.0

Chunk = Callable[[Connection], int]


class Removals:
    """What upkeep removes; it remembers whether something is left and how far it got."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._trimmed_upto: UUID | None = None
        self.is_done = True

    def steps(self) -> list[Callable[[], None]]:
        """One round, in its order."""
        self.is_done = True
        return [
            self.deleted_deployments,
            self.old_revisions,
            self.unused_archives,
            self.old_answers,
            self.old_deliveries,
            self.old_figures,
            self.old_log_lines,
        ]

    def deleted_deployments(self) -> None:
        self._exhaust(deletion.purge)

    def old_revisions(self) -> None:
        self._exhaust(partial(history.remove_old_revisions, kept=self._settings.kept_revisions))

    def unused_archives(self) -> None:
        self._exhaust(archives.remove_unused)

    def old_answers(self) -> None:
        self._exhaust(idempotency.remove_old)

    def old_deliveries(self) -> None:
        self._exhaust(webhook_records.remove_old)

    def old_figures(self) -> None:
        self._exhaust(folding.remove_old)
        self._exhaust(budgets.remove_old)

    def old_log_lines(self) -> None:
        """One deployment after the other, in the order of their ids."""
        until = time.monotonic() + STEP_SECONDS
        while self._has_time(until):
            with connection() as conn:
                deployment_ids = history.deployments_after(conn, self._trimmed_upto)
            if not deployment_ids:
                self._trimmed_upto = None
                return
            for deployment_id in deployment_ids:
                self._exhaust(partial(self._trim, deployment_id), until)
                if not self.is_done:
                    return
                self._trimmed_upto = deployment_id

    def _trim(self, deployment_id: UUID, conn: Connection) -> int:
        return history.remove_old_lines(
            conn, deployment_id, days=self._settings.log_retention_days, most=self._settings.max_log_lines
        )

    def _exhaust(self, chunk: Chunk, until: float | None = None) -> None:
        """Repeat a chunk until nothing is left of its kind, or the step's time is over."""
        until = until or time.monotonic() + STEP_SECONDS
        while self._has_time(until):
            with connection() as conn:
                if not chunk(conn):
                    return

    def _has_time(self, until: float) -> bool:
        if time.monotonic() < until:
            return True
        self.is_done = False
        return False
