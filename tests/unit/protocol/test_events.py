"""The protocol's events as a run's log holds them."""

from __future__ import annotations

from shared.protocol import events


def test_a_head_says_what_the_event_is() -> None:
    assert events.stored_head('~["lifecycle",["a:1","b"],"lc|a:1|b|started",null]') == (
        "lifecycle", ("a:1", "b"), "lc|a:1|b|started", None,
    )  # fmt: skip


def test_heads_that_come_again_are_read_once_and_long_ones_not_kept() -> None:
    head = '~["custom",["once:1"],"","progress"]'
    assert events.stored_head(head) is events.stored_head(head)
    kept = events._known_head.cache_info().currsize
    long = f'~["custom",[],"","{"x" * 1_000}"]'
    assert events.stored_head(long)[3] == "x" * 1_000
    assert events._known_head.cache_info().currsize == kept
