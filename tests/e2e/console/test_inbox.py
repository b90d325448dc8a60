"""The inbox in the console: answer, assign and snooze questions, and the page that a link for one answer opens."""

from __future__ import annotations

import pytest

from tests.support import console
from tests.support.stack import Stack


@pytest.mark.parametrize("row", console.rows("inbox"))
def test_inbox(stack: Stack, kitchen: str, row: str) -> None:
    console.check("inbox", row, stack, kitchen=kitchen)
