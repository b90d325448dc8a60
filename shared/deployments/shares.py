"""Traffic shares: which revision a new run gets if a deployment's traffic is split.

A hash of the thread's id puts the thread into one of a hundred parts, always the same. The shares, oldest revision
first, take as many parts each as they have percent. A thread therefore stays with its revision until its part changes
hands, and no assignment is stored. A run without a thread gets a new thread of its own, and so a random part.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

WHOLE = 100
MOST = 10  # revisions that share a deployment's traffic


@dataclass(frozen=True, slots=True)
class Share:
    """The percentage of threads that a revision gets."""

    revision_id: UUID
    percent: int


def from_stored(document: Iterable[Mapping[str, Any]] | None) -> tuple[Share, ...]:
    """Parse the `traffic` column of a deployment's row. Empty if the traffic is not split."""
    return tuple(Share(UUID(share["revision_id"]), share["percent"]) for share in document or ())


def part_of(thread_id: UUID) -> int:
    """Return the part of a thread, from 0 to 99."""
    digest = hashlib.blake2b(thread_id.bytes, digest_size=8).digest()
    return int.from_bytes(digest) % WHOLE


def choose(shares: Sequence[Share], thread_id: UUID, *, serving: UUID, having: Collection[UUID]) -> UUID:
    """Return the revision of a thread's next run, among the revisions `having` its graph.

    If the revision of the thread's share lacks the graph, the serving one follows, then any other with a share.
    """
    candidates = (_at(shares, part_of(thread_id)), serving, *(share.revision_id for share in shares))
    return next((revision_id for revision_id in candidates if revision_id in having), serving)


def _at(shares: Sequence[Share], part: int) -> UUID:
    upto = 0
    for share in shares:
        upto += share.percent
        if part < upto:
            return share.revision_id
    raise AssertionError("the shares add up to all parts")
