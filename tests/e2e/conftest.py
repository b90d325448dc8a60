"""What the modules of this ring share: one platform for the session, and one deployment that none of them changes."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.stack import Stack

KITCHEN = Path(__file__).parent.parent / "projects" / "kitchen"
AGENCY = KITCHEN.with_name("agency")
CHATROOM = KITCHEN.with_name("chatroom")


@pytest.fixture(scope="session")
def kitchen(stack: Stack) -> str:
    """The name of a deployment with one graph for each behaviour."""
    return stack.deploy(KITCHEN, name="kitchen")


@pytest.fixture(scope="session")
def agency(stack: Stack) -> str:
    """The name of a deployment whose graphs are agents and tools to others."""
    return stack.deploy(AGENCY, name="agency")


@pytest.fixture(scope="session")
def chatroom(stack: Stack) -> str:
    """The name of a deployment with graphs to chat with."""
    return stack.deploy(CHATROOM, name="chatroom")
