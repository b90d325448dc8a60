"""The console as the docs show it: `make pictures` keeps what these scenarios see."""

from __future__ import annotations

import pytest

from tests.support import console
from tests.support.desk import furnish
from tests.support.stack import Stack


@pytest.fixture(scope="module")
def known(stack: Stack) -> dict[str, str]:
    """A shop with a past, and what scenarios must know of it."""
    return furnish(stack)


@pytest.mark.parametrize("row", console.rows("pictures"))
def test_pictures(stack: Stack, known: dict[str, str], row: str) -> None:
    console.check("pictures", row, stack, **known)
