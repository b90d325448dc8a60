"""Each example is deployed and does what its README says, with fake models."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from langgraph_sdk.client import SyncLangGraphClient

from cli.machine.procfile import PROJECT
from tests.support.shared_stack import SharedStack
from tests.support.waiting import wait_until

EXAMPLES = PROJECT / "examples"


def deploy(stack: SharedStack, example: str) -> SyncLangGraphClient:
    return stack.sdk(stack.deploy_once(EXAMPLES / example, f"example-{example}"))


def ask(client: SyncLangGraphClient, graph: str, text: str) -> list[dict[str, Any]]:
    """Return the messages of a run, the question first."""
    values: Any = client.runs.wait(None, graph, input={"messages": [{"role": "user", "content": text}]})
    return values["messages"]


def test_chat_answers_and_says_that_its_model_is_a_fake(stack: SharedStack) -> None:
    answer = ask(deploy(stack, "chat"), "chat", "Hello!")[-1]["content"]

    assert 'You said: "Hello!"' in answer
    assert "set OPENAI_API_KEY or ANTHROPIC_API_KEY" in answer


def test_approval_waits_for_a_person(stack: SharedStack) -> None:
    client = deploy(stack, "approval")
    thread_id = client.threads.create()["thread_id"]

    asked: Any = client.runs.wait(thread_id, "approval", input={"customer": "Ada", "amount": 120.0})
    done: Any = client.runs.wait(thread_id, "approval", command={"resume": {"approve": True}})

    assert asked["__interrupt__"][0]["value"]["amount"] == 120.0
    assert done["outcome"] == "paid 120.00 to Ada"


def test_typescript_asks_before_it_refunds_a_large_amount(stack: SharedStack) -> None:
    client = deploy(stack, "typescript")
    thread_id = client.threads.create()["thread_id"]

    small: Any = client.runs.wait(None, "typescript", input={"order": "1043"})
    asked: Any = client.runs.wait(thread_id, "typescript", input={"order": "1042"})
    done: Any = client.runs.wait(thread_id, "typescript", command={"resume": {"approve": True}})

    assert small["outcome"] == "paid 15.00 for order 1043"
    assert asked["__interrupt__"][0]["value"]["amount"] == 120
    assert done["outcome"] == "paid 120.00 for order 1042"


def test_research_writes_a_report(stack: SharedStack) -> None:
    client = deploy(stack, "research")

    values: Any = client.runs.wait(
        None, "research", input={"topic": "tea"}, context={"search_seconds": 0.0, "sources": 2}
    )

    assert values["report"].startswith("# tea")


def test_tools_calls_its_function_and_the_tools_of_another_deployment(
    stack: SharedStack, tmp_path: Path
) -> None:
    deploy(stack, "chat")
    folder = shutil.copytree(EXAMPLES / "tools", tmp_path / "tools")
    (folder / ".env").write_text(f"MCP_URL={stack.url}/d/example-chat/mcp\nMCP_KEY={stack.api_key}\n")
    client = stack.sdk(stack.deploy(folder, "example-tools"))

    assert ask(client, "tools", "Where is my order 1042?")[-1]["content"] == (
        "order_status says: sent on Monday"
    )
    assert 'chat says: You said: "How are you?"' in ask(client, "tools", "How are you?")[-1]["content"]


def test_retrieval_answers_from_the_nearest_document(stack: SharedStack) -> None:
    client = deploy(stack, "retrieval")
    texts = {"refunds": "Refunds are paid within five days.", "shipping": "Parcels are shipped on weekdays."}
    for key, text in texts.items():
        client.store.put_item(("documents",), key, {"text": text})

    for question, key in (("When is my refund paid?", "refunds"), ("When are parcels shipped?", "shipping")):
        assert ask(client, "retrieval", question)[-1]["content"] == f"[{key}] {texts[key]}"


def test_supervisor_hands_over_to_each_specialist_once(stack: SharedStack) -> None:
    client = deploy(stack, "supervisor")

    messages = ask(client, "supervisor", "Where is my parcel, and when do I get my refund?")

    names = [message["name"] for message in messages if message["type"] == "ai" and message["content"]]
    assert names == ["billing", "shipping", None]
    assert messages[-1]["content"] == "Answered by billing and shipping."


def test_digest_is_written_by_a_cron(stack: SharedStack) -> None:
    client = deploy(stack, "digest")
    client.store.put_item(("notes",), "1", {"text": "The lamp arrived broken."})
    cron = client.crons.create("digest", schedule="* * * * * */10", input={"title": "Today"})
    try:
        wait_until(lambda: client.store.search_items(("digests",))["items"], 60, what="a digest")
    finally:
        client.crons.delete(cron["cron_id"])

    (digest,) = client.store.search_items(("digests",))["items"]
    assert digest["value"] == {"text": "Today: Notes: 1. The first: The lamp arrived broken."}
    assert client.store.search_items(("notes",))["items"] == []
