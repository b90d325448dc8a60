"""Fixtures of this ring: one deployment that no test changes."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.stack import Stack

KITCHEN = Path(__file__).parent.parent / "projects" / "kitchen"


@pytest.fixture(scope="session")
def kitchen(stack: Stack) -> str:
    """The name of a deployment with one graph for each behaviour."""
    return stack.deploy(KITCHEN, name="kitchen")
