"""Threads in the console: search, view, edit, fork and replay."""

from __future__ import annotations

import pytest

from tests.support import console
from tests.support.stack import Stack


@pytest.mark.parametrize("row", console.rows("threads"))
def test_threads(stack: Stack, kitchen: str, row: str) -> None:
    console.check("threads", row, stack, kitchen=kitchen)
