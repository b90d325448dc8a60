"""Indexes store items whose vectors are missing or were made with another index configuration.

Graph hosts compute the vectors. Each deployment is read in its own greenlet, because a host may take long to answer.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from uuid import UUID

from gevent.pool import Pool

from shared import store_vectors
from shared.errors import HostError, RunyardError
from shared.hosts import calls
from shared.infra.postgres import Row, connection
from shared.store_vectors import ItemVectors

log = logging.getLogger(__name__)

AT_ONCE = 4  # deployments
BATCH = 50  # items of one query
AGAIN_SECONDS = 600.0  # pause before a completely read deployment is read again
# Failed items in a row after which the embeddings or their host count as broken until the next round.
MAX_FAILURES = 3

Place = tuple[str, str]  # path and key of an item


class Reindexing:
    """The deployments whose items this process is indexing."""

    def __init__(self) -> None:
        self._pool = Pool(AT_ONCE)
        self._reading: set[UUID] = set()
        self._finished: dict[UUID, tuple[UUID, float]] = {}  # deployment → revision, when
        self._places: dict[UUID, Place] = {}  # path and key to continue after

    def begin(self) -> None:
        """Start to read the deployments that are due, while the pool has free slots."""
        with connection() as conn:
            indexes = store_vectors.indexes(conn)
        self._finished = {
            index["id"]: self._finished[index["id"]] for index in indexes if index["id"] in self._finished
        }
        for index in indexes:
            if not self._pool.free_count():
                return
            if index["id"] not in self._reading and self._is_due(index):
                self._reading.add(index["id"])
                self._pool.spawn(self._read, index)

    def join(self) -> None:
        """Wait until all started deployments are read."""
        self._pool.join()

    def _is_due(self, index: Row) -> bool:
        revision_id, at = self._finished.get(index["id"], (None, 0.0))
        return revision_id != index["revision_id"] or time.monotonic() - at > AGAIN_SECONDS

    def _read(self, index: Row) -> None:
        try:
            place = _index_items(index, self._places.pop(index["id"], ("", "")))
            if place is None:
                self._finished[index["id"]] = index["revision_id"], time.monotonic()
            else:
                self._places[index["id"]] = place
        except RunyardError as error:
            log.warning("deployment %s: its store is indexed later: %s", index["id"], error)
        except Exception:  # outermost loop of this greenlet
            log.exception("deployment %s: its store could not be indexed", index["id"])
        finally:
            self._reading.discard(index["id"])


def _index_items(index: Row, after: Place) -> Place | None:
    """Index the items after a place.

    Returns None after the last item, or the place where MAX_FAILURES failed in a row.
    """
    digest = store_vectors.digest(index["config"])
    while True:
        with connection() as conn:
            items = store_vectors.unindexed(conn, index["id"], digest, after=after, limit=BATCH)
        if not items:
            return None
        after = items[-1]["path"], items[-1]["key"]
        try:
            _index(index, items)
        except HostError:
            place = _index_each(index, items)
            if place is not None:
                return place


def _index_each(index: Row, items: Sequence[Row]) -> Place | None:
    """Index the items of a failed batch one by one. Returns the place where MAX_FAILURES failed in a row, else None."""
    failures = 0
    for item in items:
        try:
            _index(index, [item])
            failures = 0
        except HostError as error:
            log.warning("deployment %s: a store item cannot be embedded: %s", index["id"], error)
            failures += 1
            if failures == MAX_FAILURES:
                return item["path"], item["key"]
    return None


def _index(index: Row, items: Sequence[Row]) -> None:
    """Let a graph host embed these items, and store their vectors. Raises HostError."""
    ops = [{"op": "put", "value": item["value"], "index": item["index"]} for item in items]
    answers = calls.embed(index["id"], index["revision_id"], index["pool"], ops)
    with connection() as conn:
        for item, op, answer in zip(items, ops, answers, strict=True):
            indexed = ItemVectors.of(op, answer)
            if indexed is not None:
                store_vectors.add(conn, index["id"], item, indexed)
