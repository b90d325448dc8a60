"""Replays in the console: their start, their verdict, and the two sides of a case."""

from __future__ import annotations

import pytest

from tests.support import console
from tests.support.stack import Stack


@pytest.mark.parametrize("row", console.rows("replays"))
def test_replays(stack: Stack, kitchen: str, row: str) -> None:
    console.check("replays", row, stack, kitchen=kitchen)
