"""The whole platform at each level of isolation: it builds, it runs, and its addresses stay its own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.levels import LEVELS
from tests.stack import Stack

KITCHEN = Path(__file__).parent.parent / "projects" / "kitchen"


@pytest.fixture(params=LEVELS)
def level(request: pytest.FixtureRequest) -> int:
    return request.param


@pytest.fixture
def stack(level: int) -> Iterator[Stack]:
    """A platform that runs user code at this level."""
    with Stack(env=LEVELS[level]) as running:
        yield running


def test_user_code_sees_nothing_of_the_platform(level: int, stack: Stack) -> None:
    stack.deploy(KITCHEN, name="kitchen")

    seen = stack.sdk("kitchen").runs.wait(None, "peeks", input={"text": "x"})["log"][0]

    assert seen["kitchen"] == "open"
    assert not [name for name in seen["env"] if name.startswith(("RUNYARD", "DATABASE", "REDIS", "UV_"))]
    assert seen["credentials"] is False, "no process it can look into knows where the database is"
    assert stack.client.get("/info").json()["host"]["isolation"] == level
