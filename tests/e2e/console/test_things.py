"""The console's pages of assistants, crons, the store, webhooks, OAuth, keys, organizations and workers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.console.things import furnish
from tests.support import console
from tests.support.oauth_server import oauth_server
from tests.support.receiver import receiving
from tests.support.stack import Stack

SHELF = Path(__file__).parents[2] / "projects" / "shelf"


@pytest.fixture(scope="module")
def known(stack: Stack) -> Iterator[dict[str, str]]:
    """Deploy a project with some objects of each kind. Yields the names, ids and addresses that scenarios need."""
    name = stack.deploy(SHELF, name="shelf")
    with receiving() as receiver, oauth_server() as server:
        yield {"shelf": name, **furnish(stack, name, receiver, server)}


@pytest.mark.parametrize("row", console.rows("things"))
def test_things(stack: Stack, known: dict[str, str], row: str) -> None:
    console.check("things", row, stack, **known)
