"""Runs in the console: pending runs and their reason, failed and retried runs, and the page of each."""

from __future__ import annotations

import pytest

from tests.support import console
from tests.support.stack import Stack


@pytest.mark.parametrize("row", console.rows("runs"))
def test_runs(stack: Stack, kitchen: str, row: str) -> None:
    console.check("runs", row, stack, kitchen=kitchen)
