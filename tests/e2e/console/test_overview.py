"""The console's overview."""

from __future__ import annotations

import pytest

from tests.support import console
from tests.support.stack import Stack


@pytest.mark.parametrize("row", console.rows("overview"))
def test_overview(stack: Stack, kitchen: str, row: str) -> None:
    console.check("overview", row, stack, kitchen=kitchen)
