"""The console's playground."""

from __future__ import annotations

import pytest

from tests.support import console
from tests.support.stack import Stack


@pytest.mark.parametrize(("project", "row"), console.rows_of_both("playground", "chatroom"))
def test_playground(request: pytest.FixtureRequest, stack: Stack, project: str, row: str) -> None:
    console.check("playground", row, stack, chatroom=request.getfixturevalue(project))
