"""The sample project that graph hosts load in tests, and its graphs."""

from __future__ import annotations

from pathlib import Path

HOSTED = Path(__file__).parents[1] / "projects" / "hosted"
GRAPHS = [
    "steps",
    "builder",
    "named",
    "stops_before_two",
    "shows_log",
    "shows_little",
    "asks",
    "asks_and_shows_log",
    "asks_twice",
    "nested",
    "deep",
    "fails",
    "loops",
    "speaks",
    "repeats",
    "writes",
    "writes_much",
    "floods",
    "grows",
    "sleeps",
    "sleeps_in_thread",
    "swallows",
    "says",
    "says_much",
    "leaves",
    "leaves_async",
    "dies",
    "patches",
    "blocks",
    "looks",
    "shows_context",
    "points",
    "sends",
    "functional",
    "invokes_inside",
    "invokes_blocking",
    "invokes_blocking_on_loop",
    "plain_factory",
    "async_factory",
    "managed_factory",
    "managed_sync_factory",
    "callable_instance",
    "failing_factory",
    "wrong_factory",
]
ALL = {name: f"./graphs.py:{name}" for name in GRAPHS}
