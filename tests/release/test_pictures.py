"""The console in the pictures of the docs. `make pictures` saves the screenshots of these scenarios."""

from __future__ import annotations

import pytest

from tests.support import console
from tests.support.desk import furnish
from tests.support.stack import Stack


@pytest.fixture(scope="module")
def known(stack: Stack) -> dict[str, str]:
    """The sample shop. Returns the ids and keys that the scenarios need."""
    return furnish(stack)


@pytest.mark.parametrize("row", console.rows("pictures"))
def test_pictures(stack: Stack, known: dict[str, str], row: str) -> None:
    console.check("pictures", row, stack, **known)
