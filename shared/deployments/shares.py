"""Which revision a new run gets where a deployment's traffic is split over several.

A thread's id falls into one of a hundred parts, the same one each time, and the shares, the oldest revision's first,
take so many parts each: so a thread stays with its revision until its part changes hands, and nobody has to
remember who got which. A run without a thread gets one of its own, and so falls anywhere.
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
    """How many of a hundred threads a revision gets."""

    revision_id: UUID
    percent: int


def from_stored(document: Iterable[Mapping[str, Any]] | None) -> tuple[Share, ...]:
    """The `traffic` of a deployment's row; none where it is not split."""
    return tuple(Share(UUID(share["revision_id"]), share["percent"]) for share in document or ())


def part_of(thread_id: UUID) -> int:
    """Where a thread falls, from 0 to 99."""
    digest = hashlib.blake2b(thread_id.bytes, digest_size=8).digest()
    return int.from_bytes(digest) % WHOLE


def chosen(shares: Sequence[Share], thread_id: UUID, *, serving: UUID, having: Collection[UUID]) -> UUID:
    """The revision of a thread's next run, of those `having` its graph.

    Where its share's revision has not, the one that serves; where that has not either, any that shares.
    """
    wanted = (_at(shares, part_of(thread_id)), serving, *(share.revision_id for share in shares))
    return next((revision_id for revision_id in wanted if revision_id in having), serving)


def _at(shares: Sequence[Share], part: int) -> UUID:
    upto = 0
    for share in shares:
        upto += share.percent
        if part < upto:
            return share.revision_id
    raise AssertionError("the shares come to all parts")


def takes_traffic(revision: str, deployment: str) -> str:
    """Whether a revision serves, alone or with a share, or is shown as a preview: a condition on both rows."""
    return f"""(
    {revision}.id = {deployment}.active_revision_id
    OR {deployment}.traffic @> jsonb_build_array(jsonb_build_object('revision_id', CAST({revision}.id AS text)))
    OR EXISTS (SELECT FROM preview WHERE preview.revision_id = {revision}.id))"""
