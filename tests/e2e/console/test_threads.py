"""Threads in the console: search, view, edit, fork and replay."""

from __future__ import annotations

import pytest

from tests.support import console
from tests.support.stack import Stack


@pytest.mark.parametrize(("project", "row"), console.rows_of_both("threads", "kitchen"))
def test_threads(request: pytest.FixtureRequest, stack: Stack, project: str, row: str) -> None:
    console.check("threads", row, stack, kitchen=request.getfixturevalue(project))
