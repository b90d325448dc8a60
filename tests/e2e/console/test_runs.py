"""Runs in the console: what waits and why, what failed and runs again, and a page of each."""

from __future__ import annotations

import pytest

from tests.support import console
from tests.support.stack import Stack


@pytest.mark.parametrize("row", console.rows("runs"))
def test_runs(stack: Stack, kitchen: str, row: str) -> None:
    console.check("runs", row, stack, kitchen=kitchen)
