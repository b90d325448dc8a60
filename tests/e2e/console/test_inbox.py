"""The inbox in the console: answer, assign and snooze questions, and the page that a link for one answer opens."""

from __future__ import annotations

import pytest

from tests.support import console
from tests.support.stack import Stack


@pytest.mark.parametrize(("project", "row"), console.rows_of_both("inbox", "kitchen"))
def test_inbox(request: pytest.FixtureRequest, stack: Stack, project: str, row: str) -> None:
    console.check("inbox", row, stack, kitchen=request.getfixturevalue(project))
