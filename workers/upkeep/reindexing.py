"""Indexes store items that the index of their deployment has not seen: older than it, or of another configuration.

Graph hosts make the vectors. A deployment is read in a greenlet of its own, for answers may take their time.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from typing import Any
from uuid import UUID

import orjson
from gevent.pool import Pool

from shared import graph_queries, store_vectors
from shared.errors import HostUnusable, RunyardError
from shared.graph_queries import Question
from shared.infra.postgres import connection
from shared.store_vectors import ItemVectors

log = logging.getLogger(__name__)

AT_ONCE = 4  # deployments
BATCH = 50  # items of one question
AGAIN_SECONDS = 600.0  # before a deployment whose items were all read is read again
MAX_FAILURES = (
    3  # of items in a row: then the embeddings fail, or their host, and the rest waits for the next round
)

Place = tuple[str, str]  # path and key of an item


class Reindexing:
    """The deployments that this process reads."""

    def __init__(self) -> None:
        self._pool = Pool(AT_ONCE)
        self._reading: set[UUID] = set()
        self._finished: dict[UUID, tuple[UUID, float]] = {}  # deployment → revision, when
        self._places: dict[UUID, Place] = {}  # where to continue

    def begin(self) -> None:
        """Begin to read the deployments that are due, as far as there is room."""
        with connection() as conn:
            indexes = store_vectors.indexes(conn)
        self._finished = {
            index.id: self._finished[index.id] for index in indexes if index.id in self._finished
        }
        for index in indexes:
            if not self._pool.free_count():
                return
            if index.id not in self._reading and self._is_due(index):
                self._reading.add(index.id)
                self._pool.spawn(self._read, index)

    def join(self) -> None:
        """Wait until everything that was begun is read."""
        self._pool.join()

    def _is_due(self, index: Any) -> bool:
        revision_id, at = self._finished.get(index.id, (None, 0.0))
        return revision_id != index.revision_id or time.monotonic() - at > AGAIN_SECONDS

    def _read(self, index: Any) -> None:
        try:
            place = _index_items(index, self._places.pop(index.id, ("", "")))
            if place is None:
                self._finished[index.id] = index.revision_id, time.monotonic()
            else:
                self._places[index.id] = place
        except RunyardError as error:
            log.warning("deployment %s: its store is indexed later: %s", index.id, error)
        except Exception:  # the outermost of this greenlet
            log.exception("deployment %s: its store could not be indexed", index.id)
        finally:
            self._reading.discard(index.id)


def _index_items(index: Any, after: Place) -> Place | None:
    """Index the items after a place. Returns None at the last one, or the place where too many failed."""
    by = store_vectors.digest(index.config)
    while True:
        with connection() as conn:
            items = store_vectors.unindexed(conn, index.id, by, after=after, limit=BATCH)
        if not items:
            return None
        after = items[-1].path, items[-1].key
        try:
            _index(index, items)
        except HostUnusable:
            place = _index_each(index, items)
            if place is not None:
                return place


def _index_each(index: Any, items: Sequence[Any]) -> Place | None:
    """Index the items of a batch that failed. Returns the place where too many failed in a row."""
    failures = 0
    for item in items:
        try:
            _index(index, [item])
            failures = 0
        except HostUnusable as error:
            log.warning("deployment %s: a store item cannot be embedded: %s", index.id, error)
            failures += 1
            if failures == MAX_FAILURES:
                return item.path, item.key
    return None


def _index(index: Any, items: Sequence[Any]) -> None:
    """Have a graph host embed these items, and store their vectors; raises HostUnusable."""
    ops = [{"op": "put", "value": item.value, "index": item.index} for item in items]
    document = {"op": "embed", "ops": ops}
    answers = orjson.loads(
        graph_queries.ask(Question(index.id, index.revision_id, index.pool, None, document))
    )
    with connection() as conn:
        for item, op, answer in zip(items, ops, answers, strict=True):
            indexed = ItemVectors.of(op, answer)
            if indexed is not None:
                store_vectors.add(conn, index.id, item, indexed)
