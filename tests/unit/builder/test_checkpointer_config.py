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


def test_classes_that_checkpoints_may_hold_are_kept() -> None:
    classes = [["my_agent.models", "State"], ["my_agent", "file", "Other"]]
    assert checkpointer.read({"serde": {"allowed_msgpack_modules": classes, "pickle_fallback": False}}) == {
        "serde": {"allowed_msgpack_modules": classes}
    }
    assert checkpointer.read({"serde": {"allowed_msgpack_modules": True}}) == {
        "serde": {"allowed_msgpack_modules": True}
    }
    assert checkpointer.read({"serde": {"allowed_msgpack_modules": []}}) == {}
    assert checkpointer.read({"serde": {"allowed_json_modules": None}, "backend": "default"}) == {}


def test_classes_of_json_that_no_checkpoint_holds_are_noted_and_not_kept() -> None:
    told = {"serde": {"allowed_json_modules": [["my_agent", "State"]], "allowed_msgpack_modules": None}}
    assert checkpointer.read(told) == {}
    (note,) = checkpointer.notes(told)
    assert note.startswith("checkpointer.serde.allowed_json_modules: has no meaning here")
    assert checkpointer.notes({"serde": None}) == checkpointer.notes(None) == []


@pytest.mark.parametrize(
    ("told", "message"),
    [
        ("./saver.py:saver", "checkpointer: must be an object"),
        (
            {"path": "./saver.py:saver"},
            "checkpointer.path: not supported: this server keeps checkpoints itself",
        ),
        ({"backend": "mongo"}, "checkpointer.backend: not supported: this server keeps checkpoints itself"),
        ({"serde": True}, "checkpointer.serde: must be an object"),
        (
            {"serde": {"pickle_fallback": True}},
            "checkpointer.serde.pickle_fallback: not supported: to read a",
        ),
        (
            {"serde": {"allowed_msgpack_modules": ["a.B"]}},
            "checkpointer.serde.allowed_msgpack_modules: must be",
        ),
        ({"serde": {"allowed_json_modules": [["a"]]}}, "checkpointer.serde.allowed_json_modules: must be"),
        ({"serde": {"allowed_json_modules": [["a", 1]]}}, "checkpointer.serde.allowed_json_modules: must be"),
        ({"serde": {"other": 1}}, "checkpointer.serde.other: not known"),
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
