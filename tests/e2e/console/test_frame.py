"""The frame of the console's pages: command palette, navigation, tables as cards, themes."""

from __future__ import annotations

import pytest

from tests.support import console
from tests.support.stack import Stack


@pytest.mark.parametrize("row", console.rows("frame"))
def test_frame(stack: Stack, kitchen: str, row: str) -> None:
    console.check("frame", row, stack, kitchen=kitchen)
