"""The example in TypeScript is built, and the unmodified Python client asks it, answers its question and reads its states."""

from __future__ import annotations

from typing import Any

from cli.machine.procfile import PROJECT
from tests.support.stack import Stack

GRAPH = "typescript"


def test_a_typescript_project_asks_a_person_and_goes_on(stack: Stack) -> None:
    client = stack.sdk(stack.deploy(PROJECT / "examples" / GRAPH))
    (assistant,) = client.assistants.search()
    thread_id = client.threads.create()["thread_id"]

    asked: Any = client.runs.wait(thread_id, GRAPH, input={"order": "1042"})
    waiting = client.threads.get(thread_id)["status"]
    parts = list(
        client.runs.stream(
            thread_id, GRAPH, command={"resume": {"approve": True}}, stream_mode=["updates", "values"]
        )
    )

    assert assistant["graph_id"] == GRAPH
    assert waiting == "interrupted"
    question = {"question": "Pay this refund?", "order": "1042", "amount": 120}
    assert asked["__interrupt__"][0]["value"] == question
    paid = "paid 120.00 for order 1042"
    assert [part.data for part in parts if part.event == "updates"] == [{"review": {"outcome": paid}}]
    assert parts[-1].data == {"order": "1042", "amount": 120, "outcome": paid}
    history = client.threads.get_history(thread_id)
    assert [state["next"] for state in history] == [[], ["review"], ["look_up"], ["__start__"]]
    assert history[0] == client.threads.get_state(thread_id)
    assert client.threads.get(thread_id)["status"] == "idle"
