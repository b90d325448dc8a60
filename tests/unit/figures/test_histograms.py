"""Histograms: bucket counts computed in SQL, their addition, and percentiles."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import text

from shared.figures.reading import LAST, begins_at, cumulative, percentile
from shared.infra.postgres import connection

pytestmark = pytest.mark.usefixtures("db")


def asked(expression: str, **values: Any) -> Any:
    with connection() as conn:
        return conn.execute(text(f"SELECT {expression}"), values).scalar_one()


def bucket_of(seconds: float | None) -> int | None:
    return asked("histogram_bucket(:seconds)", seconds=seconds)


def test_a_duration_is_in_the_bucket_it_lies_in_or_in_the_first_or_last() -> None:
    for seconds in (0.002, 0.04, 0.5, 7.0, 123.4, 86_400.0):
        number = bucket_of(seconds)
        assert number is not None, seconds
        assert begins_at(number) <= seconds < begins_at(number + 1), seconds
    assert (bucket_of(0.0), bucket_of(-3.0), bucket_of(1e12)) == (0, 0, LAST)
    assert bucket_of(None) is None


def test_buckets_are_counted_and_histograms_added() -> None:
    assert asked("histogram_of(ARRAY[3, NULL, 3, 7])") == {"3": 2, "7": 1}
    assert asked("histogram_of(CAST(ARRAY[NULL] AS int[]))") == {}
    assert asked(
        "sum_histograms(ARRAY[CAST(:a AS jsonb), CAST(:b AS jsonb)])", a='{"3": 2}', b='{"3": 1, "9": 4}'
    ) == {"3": 3, "9": 4}

    limits = cumulative({0: 2, 5: 1, LAST: 4})

    assert limits[0] == (begins_at(4), 2)
    assert limits[1] == (begins_at(8), 3)
    assert limits[-1] == (float("inf"), 7)
    assert limits == sorted(limits)


def test_a_percentile_is_a_fifth_off_at_most() -> None:
    seconds = [n / 100 for n in range(1, 1001)]
    histogram: dict[int, int] = {}
    for number in map(bucket_of, seconds):
        assert number is not None
        histogram[number] = histogram.get(number, 0) + 1

    for share, right in ((0.5, 5.0), (0.95, 9.5), (1.0, 10.0)):
        found = percentile(histogram, share)
        assert found == pytest.approx(right, rel=0.2)
    assert percentile({}, 0.5) is None
