"""A deployment's page in the console, with a serving revision, a failed build, and a log with hostile content."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cli.errors import CommandFailed
from tests.support import console
from tests.support.stack import Stack

GRAPH = """\
import logging
from typing import TypedDict

from langgraph.graph import StateGraph


class State(TypedDict, total=False):
    text: str
    times: int


def say(state: State) -> State:
    print(state["text"] * state.get("times", 1))
    logging.getLogger("shop").error("counted %s", state["text"][:40])
    return {}


shop = StateGraph(State).add_node("say", say).add_edge("__start__", "say").compile()
"""
BROKEN = "raise RuntimeError('<script>globalThis.broken = 1</script> \\x1b[31mred\\x1b[0m')\n"


@pytest.fixture(scope="module")
def shop(stack: Stack, tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("shop")
    write(folder, GRAPH)
    (folder / ".env").write_text("UNUSED=x\n")
    stack.deploy(folder, "shop")
    write(folder, BROKEN)
    with pytest.raises(CommandFailed):
        stack.deploy(folder, "shop")
    return "shop"


def write(folder: Path, text: str) -> None:
    (folder / "shop.py").write_text(text)
    (folder / "langgraph.json").write_text(
        json.dumps({"dependencies": ["."], "graphs": {"shop": "./shop.py:shop"}})
    )


@pytest.mark.parametrize("row", console.rows("deployment"))
def test_deployment(stack: Stack, shop: str, row: str) -> None:
    console.check("deployment", row, stack, shop=shop)
