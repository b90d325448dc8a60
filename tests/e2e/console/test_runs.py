"""Runs in the console: pending runs and their reason, failed and retried runs, and the page of each."""

from __future__ import annotations

import pytest

from tests.support import console
from tests.support.stack import Stack


@pytest.mark.parametrize(("project", "row"), console.rows_of_both("runs", "kitchen"))
def test_runs(request: pytest.FixtureRequest, stack: Stack, project: str, row: str) -> None:
    console.check("runs", row, stack, kitchen=request.getfixturevalue(project))
