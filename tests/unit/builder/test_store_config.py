"""What `store` in langgraph.json may say."""

from __future__ import annotations

from typing import Any

import pytest

from shared.errors import BuildFailed
from workers.builder.config import store


def test_what_is_said_is_kept_with_defaults() -> None:
    told = {
        "ttl": {"default_ttl": 1.5, "sweep_interval_minutes": 5},
        "index": {"dims": 3, "embed": "openai:small"},
    }
    assert store.read(told) == {
        "ttl": {"default_ttl": 1.5, "refresh_on_read": True},
        "index": {"dims": 3, "embed": "openai:small", "fields": ["$"]},
    }
    assert store.read(None) == store.read({}) == {}


@pytest.mark.parametrize(
    ("told", "message"),
    [
        ([], "store: must be an object"),
        ({"path": "x"}, "store.path: not known"),
        ({"ttl": 5}, "store.ttl: must be an object"),
        ({"ttl": {"default_ttl": "5"}}, "store.ttl.default_ttl: must be a number of minutes"),
        ({"ttl": {"default_ttl": -1}}, "store.ttl.default_ttl: must be a number of minutes"),
        ({"ttl": {"refresh_on_read": 1}}, "store.ttl.refresh_on_read: must be true or false"),
        ({"index": {"dims": 3}}, "store.index.embed: must be"),
        ({"index": {"embed": "a:b"}}, "store.index.dims: must be"),
        ({"index": {"dims": True, "embed": "a:b"}}, "store.index.dims: must be"),
        ({"index": {"dims": 3, "embed": "a:b", "fields": []}}, "store.index.fields: must be"),
        ({"index": {"dims": 3, "embed": "a:b", "other": 1}}, "store.index.other: not known"),
    ],
)
def test_what_makes_no_sense_is_refused_by_name(told: Any, message: str) -> None:
    with pytest.raises(BuildFailed, match=message):
        store.read(told)
