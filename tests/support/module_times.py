"""Duration of each test module. The longest modules start first, so that no worker runs alone at the end.

`make test-times` rewrites the table. A module that is missing there counts as an average one.
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
    """Sort tests by the expected duration of their module. Tests of one module keep their order."""
    expected = json.loads(TABLE.read_text()) if TABLE.exists() else {}
    items.sort(key=lambda item: (-expected.get(_module(item.nodeid), AVERAGE_SECONDS), _module(item.nodeid)))


def count(report: pytest.TestReport) -> None:
    """Add one phase of a test to its module's time."""
    _seconds[_module(report.nodeid)] += report.duration


def write() -> None:
    """Write the table if `make test-times` runs. Existing modules that did not run keep their entries."""
    if os.environ.get(WRITE):
        table = json.loads(TABLE.read_text()) if TABLE.exists() else {}
        known = {module: seconds for module, seconds in table.items() if (ROOT / module).exists()}
        fresh = {module: round(seconds, 1) for module, seconds in _seconds.items()}
        TABLE.write_text(json.dumps(known | fresh, indent=0, sort_keys=True) + "\n")


def _module(nodeid: str) -> str:
    return nodeid.partition("::")[0]
