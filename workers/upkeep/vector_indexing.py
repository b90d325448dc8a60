"""Creates and drops vector indexes in the background, because PostgreSQL may need many minutes for a large one."""

from __future__ import annotations

import logging
import time

import gevent
import psycopg

from shared import vector_indexes
from shared.errors import RunyardError
from shared.infra.postgres import connection, long_connection
from shared.settings import Settings

log = logging.getLogger(__name__)

AGAIN_SECONDS = 600.0  # pause after a failure, such as a full disk


class VectorIndexing:
    """The changes of vector indexes that this process makes.

    Behind a transaction pooler there are none without PostgreSQL's own address, because a build needs a session.
    """

    def __init__(self, settings: Settings) -> None:
        is_direct = settings.database_pooler == "none"
        self._url = settings.database_direct_url or (settings.database_url if is_direct else None)
        self._greenlet: gevent.Greenlet | None = None
        self._not_before = 0.0

    def begin(self) -> None:
        """Start to make the changes that are due, unless this process makes some already."""
        is_busy = self._greenlet is not None and not self._greenlet.ready()
        if self._url is None or is_busy or time.monotonic() < self._not_before:
            return
        with connection() as conn:
            changes = vector_indexes.due(conn)
        if changes.drop or changes.create:
            self._not_before = time.monotonic() + AGAIN_SECONDS
            self._greenlet = gevent.spawn(self._change, self._url)

    def join(self) -> None:
        """Wait until the started changes are made."""
        if self._greenlet is not None:
            self._greenlet.join()

    def _change(self, url: str) -> None:
        try:
            with long_connection(url) as conn:
                # A worker that was killed may have left its build to PostgreSQL, which holds the lock until it ends.
                if vector_indexes.lock(conn):
                    with connection() as reading:
                        changes = vector_indexes.due(reading)
                    vector_indexes.apply(conn, changes)
        except (RunyardError, psycopg.Error) as error:
            log.warning("vector indexes could not be changed, trying again in %d s: %s", AGAIN_SECONDS, error)
        else:
            self._not_before = 0.0
