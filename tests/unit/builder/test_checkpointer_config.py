"""What `checkpointer` in langgraph.json may say."""

from __future__ import annotations

from typing import Any

import pytest

from shared.errors import BuildFailed
from workers.builder.config import checkpointer


def test_how_long_threads_live_is_kept() -> None:
    told = {"strategy": "keep_latest", "default_ttl": 0.5, "sweep_interval_minutes": 5, "sweep_limit": 10}
    assert checkpointer.read({"ttl": told, "path": None}) == {
        "ttl": {"strategy": "keep_latest", "default_ttl": 0.5}
    }
    assert checkpointer.read({"ttl": {}}) == {"ttl": {"strategy": "delete", "default_ttl": None}}
    assert checkpointer.read(None) == checkpointer.read({}) == {}


@pytest.mark.parametrize(
    ("told", "message"),
    [
        ("./saver.py:saver", "checkpointer: must be an object"),
        (
            {"path": "./saver.py:saver"},
            "checkpointer.path: not supported: this server keeps checkpoints itself",
        ),
        ({"serde": {"pickle_fallback": True}}, "checkpointer.serde: not supported"),
        ({"ttl": 5}, "checkpointer.ttl: must be an object"),
        ({"ttl": {"strategy": "forget"}}, "checkpointer.ttl.strategy: must be one of delete, keep_latest"),
        ({"ttl": {"default_ttl": "5"}}, "checkpointer.ttl.default_ttl: must be a number"),
        ({"ttl": {"default_ttl": -1}}, "checkpointer.ttl.default_ttl: must be a number"),
        (
            {"ttl": {"sweep_interval_minutes": True}},
            "checkpointer.ttl.sweep_interval_minutes: must be a number",
        ),
        ({"ttl": {"other": 1}}, "checkpointer.ttl.other: not known"),
    ],
)
def test_what_makes_no_sense_is_refused_by_name(told: Any, message: str) -> None:
    with pytest.raises(BuildFailed, match=message):
        checkpointer.read(told)
