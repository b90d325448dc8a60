"""Signing in to and out of the console."""

from __future__ import annotations

import pytest

from tests.support import console
from tests.support.stack import Stack


@pytest.mark.parametrize("row", console.rows("session"))
def test_session(stack: Stack, row: str) -> None:
    console.check("session", row, stack)
