"""The console's playground, with graphs in Python and, before a release, with the same graphs in TypeScript."""

from __future__ import annotations

import pytest

from tests.support import console
from tests.support.stack import Stack

ROWS = console.rows("playground")
ROWS_OF_BOTH = [
    *(pytest.param("chatroom", *row.values, marks=row.marks) for row in ROWS),
    *(pytest.param("twins", *row.values, marks=pytest.mark.release) for row in ROWS if not row.marks),
]


@pytest.mark.parametrize(("project", "row"), ROWS_OF_BOTH)
def test_playground(request: pytest.FixtureRequest, stack: Stack, project: str, row: str) -> None:
    console.check("playground", row, stack, chatroom=request.getfixturevalue(project))
