"""What the modules of this ring share: one platform for all workers, and deployments that none of them changes."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.shared_stack import SharedStack

KITCHEN = Path(__file__).parent.parent / "projects" / "kitchen"
AGENCY = KITCHEN.with_name("agency")
CHATROOM = KITCHEN.with_name("chatroom")


@pytest.fixture(scope="session")
def kitchen(stack: SharedStack) -> str:
    """The name of a deployment with one graph for each behaviour."""
    return stack.deploy_once(KITCHEN, "kitchen")


@pytest.fixture(scope="session")
def agency(stack: SharedStack) -> str:
    """The name of a deployment whose graphs are agents and tools to others."""
    return stack.deploy_once(AGENCY, "agency")


@pytest.fixture(scope="session")
def chatroom(stack: SharedStack) -> str:
    """The name of a deployment with graphs to chat with."""
    return stack.deploy_once(CHATROOM, "chatroom")
