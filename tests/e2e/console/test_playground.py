"""The console's playground."""

from __future__ import annotations

import pytest

from tests.support import console
from tests.support.stack import Stack


@pytest.mark.parametrize("row", console.rows("playground"))
def test_playground(stack: Stack, chatroom: str, row: str) -> None:
    console.check("playground", row, stack, chatroom=chatroom)
