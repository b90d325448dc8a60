"""Histograms of seconds. All have the same buckets, so they can be added.

Bucket `n` begins at 1 ms · 2^(n/4). Four buckets per doubling limit the error of a percentile to a fifth. The first
bucket also holds all shorter times; the last one begins at 12 days and holds all longer ones.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import accumulate
from math import log

SMALLEST_SECONDS = 0.001
A_DOUBLING = 4
LAST = 30 * A_DOUBLING


def bucket(seconds: str) -> str:
    """Return SQL for the bucket of a number of seconds; NULL for NULL."""
    doublings = f"ln(greatest({seconds}, {SMALLEST_SECONDS}) / {SMALLEST_SECONDS}) / {log(2)}"
    return f"CASE WHEN {seconds} IS NOT NULL THEN CAST(least({LAST}, floor({A_DOUBLING} * {doublings})) AS int) END"


def counted(buckets: str) -> str:
    """Return SQL for the histogram of an array of buckets, without its NULLs."""
    return (
        "coalesce((SELECT jsonb_object_agg(bucket, n) FROM (SELECT bucket, count(*) AS n"
        f" FROM unnest({buckets}) AS bucket WHERE bucket IS NOT NULL GROUP BY bucket) AS counted), '{{}}')"
    )


def added(one: str, other: str) -> str:
    """Return SQL for the sum of two histograms."""
    return (
        "coalesce((SELECT jsonb_object_agg(key, n) FROM (SELECT key, sum(CAST(value AS bigint)) AS n FROM ("
        f"SELECT * FROM jsonb_each_text({one}) UNION ALL SELECT * FROM jsonb_each_text({other})) AS parts"
        " GROUP BY key) AS summed), '{}')"
    )


def begins_at(bucket: float) -> float:
    """Return the lower bound of a bucket in seconds."""
    return SMALLEST_SECONDS * 2 ** (bucket / A_DOUBLING)


def percentile(histogram: Mapping[int, int], share: float) -> float | None:
    """Return the number of seconds that this share of the values does not exceed, or None for an empty histogram."""
    total = sum(histogram.values())
    if total == 0:
        return None
    rank = share * total
    below = 0
    for number in sorted(histogram):
        within = histogram[number]
        if below + within >= rank:
            return begins_at(number + (rank - below) / within)
        below += within
    raise AssertionError("a share is at most 1")


def cumulative(histogram: Mapping[int, int], *, every: int = A_DOUBLING) -> list[tuple[float, int]]:
    """Return `(limit in seconds, count below)` pairs, one for every `every` buckets. The last limit is infinite."""
    counts = list(accumulate(histogram.get(number, 0) for number in range(LAST + 1)))
    limits = [(begins_at(number), counts[number - 1]) for number in range(every, LAST + 1, every)]
    return [*limits, (float("inf"), counts[-1])]
