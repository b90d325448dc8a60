"""A project whose langgraph.json the tests write and read."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from shared.errors import BuildFailed
from workers.builder.config import manifest
from workers.builder.config.manifest import Manifest

GRAPHS = {"agent": "./agent.py:graph"}
Read = Callable[..., Manifest]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for name in ("agent.py", "app.py", "auth.py"):
        (tmp_path / name).write_text("graph = None")
    return tmp_path


@pytest.fixture
def read(root: Path) -> Read:
    """Return a function that reads a manifest of the given keys, added to the minimum that a project needs."""

    def reading(at: str = "langgraph.json", **config: Any) -> Manifest:
        whole = {"dependencies": ["."], "graphs": GRAPHS, **config}
        path = root / at
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps({key: value for key, value in whole.items() if value is not ...}))
        return manifest.read(root, at)

    return reading


def refuse(read: Read, match: str, **config: Any) -> None:
    """Check that a configuration is refused with a matching message."""
    with pytest.raises(BuildFailed) as caught:
        pytest.fail(f"{config} is accepted as {read(**config)}")
    assert re.search(match, caught.value.message), f"{config}: {caught.value.message}"
    assert (caught.value.step, caught.value.status) == ("configuration", "BUILD_FAILED")
