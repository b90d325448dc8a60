"""Timeouts of the console tests. The first test of each module runs all scenarios of a page, so it may take long."""

from __future__ import annotations

import pytest

from tests.support.console import SECONDS


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.nodeid.startswith("tests/e2e/console/"):
            item.add_marker(pytest.mark.timeout(SECONDS + 180))
