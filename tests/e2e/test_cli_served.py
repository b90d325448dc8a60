"""`runyard runs`, `threads`, `env` and `open` against the whole platform."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx

from tests.support import one_file
from tests.support.stack import Stack

AGENT = """
import asyncio, os
from typing import TypedDict
from langgraph.graph import START, StateGraph

class State(TypedDict, total=False):
    is_slow: bool
    said: str

async def speak(state: State):
    if "WHO" not in os.environ:
        raise ValueError("nobody is here")
    if state.get("is_slow"):
        await asyncio.sleep(600)
    return {"said": os.environ["WHO"]}

graph = StateGraph(State).add_node(speak).add_edge(START, "speak").compile()
"""


def shown(stack: Stack, *words: str) -> Any:
    ran = stack.runyard(*words, "-n", "speaker", "--json")
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return json.loads(ran.stdout)


def test_a_failed_run_is_found_mended_and_tried_again(stack: Stack, tmp_path: Path) -> None:
    stack.deploy(one_file.write(tmp_path / "speaker", AGENT), name="speaker")
    sdk = stack.sdk("speaker")
    thread_id = sdk.threads.create()["thread_id"]
    sdk.runs.wait(thread_id, "agent", input={}, raise_error=False)

    (failed,) = shown(stack, "runs", "list", "--status", "error")
    assert "nobody is here" in stack.runyard("runs", "show", failed["run_id"][-8:], "-n", "speaker").stdout

    changed = stack.runyard("env", "set", "WHO=Ada", "-n", "speaker")
    assert changed.returncode == 0, changed.stderr
    assert "v2 of speaker: WHO" in changed.stdout

    again = shown(stack, "runs", "retry", failed["run_id"])
    sdk.runs.join(thread_id, again["run_id"])
    assert shown(stack, "threads", "show", thread_id[-8:])["values"]["said"] == "Ada"
    assert shown(stack, "threads", "history", thread_id)[0]["metadata"]["step"] == 1

    slow = sdk.runs.create(thread_id, "agent", input={"is_slow": True})
    assert shown(stack, "runs", "cancel", slow["run_id"])["cancelled"]
    rows = shown(stack, "runs", "list", "--thread", thread_id)
    assert [row["status"] for row in rows] == ["interrupted", "success", "error"]

    assert shown(stack, "threads", "delete", thread_id, "--force")["deleted"]
    assert sdk.threads.search() == []

    assert stack.runyard("env", "unset", "WHO", "-n", "speaker", "--no-wait").returncode == 0
    assert shown(stack, "env", "list") == []
    page = stack.runyard("open", "speaker", "--print").stdout.strip()
    assert httpx.get(page, follow_redirects=True).status_code == 200
