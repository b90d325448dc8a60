"""Sequence numbers of a thread's events, and the position where a reader starts."""

from __future__ import annotations

import pytest

from shared.protocol import events
from shared.protocol.stream import Begin, begin

JS_SAFE = 2**53 - 1
LAST = events.LAST_EVENT


def test_numbers_name_run_and_event_rise_and_are_whole_in_a_browser() -> None:
    for place in ((0, 0), (1, 0), (1, 1), (7, 501), (7, LAST)):
        assert events.split_number(events.event_number(*place)) == place

    places = [(1, 0), (1, 1), (1, 900), (1, LAST), (2, 0), (2, 1)]
    numbers = [events.event_number(*place) for place in places]
    assert numbers == sorted(set(numbers))
    assert events.event_number(1, LAST + 5) == events.event_number(1, LAST)
    assert events.event_number(100_000_000, LAST) <= JS_SAFE


def row(**columns: object) -> dict[str, object]:
    """Return the row of a thread with six ended runs, the newest created by a command."""
    known = {
        "last_seq": 6,
        "status": "idle",
        "newest": 6,
        "by_protocol": True,
        "protocol_end_given": 0,
        "oldest_live": None,
        "forgotten": None,
    }
    return {**known, **columns}


@pytest.mark.parametrize(
    ("columns", "content", "waits"),
    [
        ({}, 5, 5),
        ({"protocol_end_given": 5}, 5, 5),
        ({"protocol_end_given": 6}, 5, 6),
        ({"by_protocol": False}, 5, 6),
        ({"oldest_live": 4}, 3, 3),
        ({"oldest_live": 6, "protocol_end_given": 6}, 5, 5),
        ({"status": "interrupted", "protocol_end_given": 6}, 5, 5),
        ({"status": "interrupted", "protocol_end_given": 6, "newest": 5}, 4, 4),  # a pending one was cancelled
        ({"newest": None, "by_protocol": None}, 6, 6),
    ],
)  # fmt: skip
def test_without_a_position_a_reader_begins_with_what_it_can_want(
    columns: dict[str, object], content: int, waits: int
) -> None:
    assert begin(row(**columns), None, ends_only=False) == Begin(content)
    assert begin(row(**columns), None, ends_only=True) == Begin(waits)


@pytest.mark.parametrize(
    ("since", "columns", "expected"),
    [
        ((0, 0), {}, Begin(-1)),
        ((3, 0), {}, Begin(2)),
        ((3, 7), {}, Begin(2, 7)),
        ((3, LAST), {}, Begin(3)),
        ((6, LAST), {}, Begin(6)),
        ((7, 0), {}, Begin(6)),
        ((2, 9), {"forgotten": 2}, Begin(2, is_expired=True)),
        ((3, 9), {"forgotten": 2}, Begin(2, 9)),
    ],
)  # fmt: skip
def test_with_a_position_a_reader_begins_after_it(
    since: tuple[int, int], columns: dict[str, object], expected: Begin
) -> None:
    for ends_only in (False, True):
        assert begin(row(oldest_live=5, **columns), since, ends_only=ends_only) == expected
