"""How long each module of the suite takes, so that the longest ones start first and no worker is left alone at the end.

`make test-times` writes the table anew. A module that is not in it counts as an average one.
"""

from __future__ import annotations

import json
import os
from collections import defaultdict
from collections.abc import MutableSequence
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TABLE = Path(__file__).with_name("module_times.json")
WRITE = "RUNYARD_TEST_TIMES"  # set by `make test-times`
AVERAGE_SECONDS = 5.0

_seconds: dict[str, float] = defaultdict(float)


def longest_first(items: MutableSequence[pytest.Item]) -> None:
    """Sort tests by the expected seconds of their module, those of a module in their own order."""
    expected = json.loads(TABLE.read_text()) if TABLE.exists() else {}
    items.sort(key=lambda item: (-expected.get(_module(item.nodeid), AVERAGE_SECONDS), _module(item.nodeid)))


def count(report: pytest.TestReport) -> None:
    """Add a phase of a test to the time of its module."""
    _seconds[_module(report.nodeid)] += report.duration


def write() -> None:
    """Write the table if this run is meant to; modules that did not run keep their entries until they are removed."""
    if os.environ.get(WRITE):
        table = json.loads(TABLE.read_text()) if TABLE.exists() else {}
        known = {module: seconds for module, seconds in table.items() if (ROOT / module).exists()}
        fresh = {module: round(seconds, 1) for module, seconds in _seconds.items()}
        TABLE.write_text(json.dumps(known | fresh, indent=0, sort_keys=True) + "\n")


def _module(nodeid: str) -> str:
    return nodeid.partition("::")[0]
