"""The console's usage page."""

from __future__ import annotations

import pytest

from tests.support import console
from tests.support.stack import Stack


@pytest.mark.parametrize("row", console.rows("usage"))
def test_usage(stack: Stack, chatroom: str, row: str) -> None:
    console.check("usage", row, stack, chatroom=chatroom)
