"""The unmodified Python client against the whole platform, over HTTP only."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest
from langgraph_sdk.client import SyncLangGraphClient
from langgraph_sdk.errors import NotFoundError, UnprocessableEntityError

from tests.support.stack import Stack
from tests.support.waiting import wait_until


def parts(stream: Iterator[Any]) -> list[tuple[str, Any]]:
    return [(part.event, part.data) for part in stream]


def test_default_assistants_have_the_ids_clients_compute(sdk: SyncLangGraphClient) -> None:
    found = sdk.assistants.search(graph_id="echo", metadata={"created_by": "system"})

    assert [(a["assistant_id"], a["name"]) for a in found] == [
        ("046b5dc7-2108-582c-9c6c-31d556d138f0", "echo")
    ]
    (described,) = sdk.assistants.search(graph_id="greets", metadata={"created_by": "system"})
    assert described["description"] == "Says what its context tells it to say."


def test_a_run_uses_the_version_made_latest_again(sdk: SyncLangGraphClient) -> None:
    made = sdk.assistants.create("greets", context={"word": "one"}, name="greeter", metadata={"team": "a"})
    second = sdk.assistants.update(made["assistant_id"], context={"word": "two", "loud": True})
    third = sdk.assistants.update(made["assistant_id"], context={"loud": True})

    assert (made["version"], second["version"], third["version"]) == (1, 2, 3)
    assert third["context"] == {"loud": True}, "nothing is merged from earlier versions"
    assert third["metadata"] == {"team": "a"}
    assert sdk.runs.wait(None, made["assistant_id"], input={"text": ""})["log"] == ["NOTHING"]

    restored = sdk.assistants.set_latest(made["assistant_id"], 1)

    assert (restored["version"], restored["context"]) == (1, {"word": "one"})
    assert sdk.runs.wait(None, made["assistant_id"], input={"text": ""})["log"] == ["one"]
    versions = sdk.assistants.get_versions(made["assistant_id"])
    assert [v["version"] for v in versions] == [3, 2, 1]
    sdk.assistants.delete(made["assistant_id"])
    with pytest.raises(NotFoundError):
        sdk.assistants.get(made["assistant_id"])


def test_a_run_s_context_goes_over_the_assistant_s(sdk: SyncLangGraphClient) -> None:
    made = sdk.assistants.create("greets", context={"word": "hi"})

    result = sdk.runs.wait(None, made["assistant_id"], input={"text": ""}, context={"loud": True})

    assert result["log"] == ["HI"]


def test_a_thread_holds_the_state_of_its_last_run(sdk: SyncLangGraphClient, thread_id: str) -> None:
    sdk.runs.wait(thread_id, "echo", input={"text": "a"})
    sdk.runs.wait(thread_id, "echo", input={"text": "b"})

    thread, state = sdk.threads.get(thread_id), sdk.threads.get_state(thread_id)

    assert thread["status"] == "idle"
    assert thread["values"] == state["values"] == {"text": "b", "log": ["a", "b"]}
    assert thread["metadata"]["graph_id"] == "echo"
    assert state["next"] == []
    assert state["checkpoint"]["thread_id"] == thread_id
    assert state["metadata"]["source"] == "loop"


def test_values_and_updates_come_in_the_order_of_the_steps(sdk: SyncLangGraphClient, thread_id: str) -> None:
    events = parts(sdk.runs.stream(thread_id, "echo", input={"text": "x"}, stream_mode=["values", "updates"]))

    assert [name for name, _ in events] == ["metadata", "values", "updates", "values"]
    assert events[0][1]["attempt"] == 1
    assert events[1][1] == {"text": "x", "log": []}
    assert events[2][1] == {"node": {"log": ["x"]}}
    assert events[3][1] == {"text": "x", "log": ["x"]}


@pytest.mark.parametrize(
    ("mode", "graph", "expected"),
    [
        ("values", "echo", ["values", "values"]),
        ("updates", "echo", ["updates"]),
        ("tasks", "echo", ["tasks", "tasks"]),
        ("checkpoints", "echo", ["checkpoints", "checkpoints", "checkpoints"]),
        ("debug", "echo", None),
        ("events", "echo", None),
        ("custom", "writes", ["custom", "custom", "custom"]),
        ("messages", "speaks", None),
        ("messages-tuple", "speaks", None),
        ("tools", "echo", []),
        ("lifecycle", "echo", None),
    ],
)
def test_each_stream_mode_sends_its_own_events(
    sdk: SyncLangGraphClient, thread_id: str, mode: Any, graph: str, expected: list[str] | None
) -> None:
    messages = [{"role": "user", "content": "hi"}]
    input = {"messages": messages} if graph == "speaks" else {"text": "x"}

    events = parts(sdk.runs.stream(thread_id, graph, input=input, stream_mode=mode))

    names = [name for name, _ in events]
    assert names[0] == "metadata"
    assert "error" not in names
    if expected is not None:
        assert names[1:] == expected
    elif mode == "messages-tuple":
        assert set(names[1:]) == {"messages"}
        assert "".join(data[0]["content"] for name, data in events if name == "messages") == "hello big world"
    elif mode == "messages":
        assert names[1] == "messages/metadata"
        assert events[-1][1][0]["content"] == "hello big world"
    elif mode != "lifecycle":
        assert set(names[1:]) == {mode}


def test_a_failing_graph_ends_its_stream_with_an_error(sdk: SyncLangGraphClient, thread_id: str) -> None:
    events = parts(sdk.runs.stream(thread_id, "fails", input={"text": "x"}))

    assert events[-1] == ("error", {"error": "ValueError", "message": "boom happened"})
    assert sdk.threads.get(thread_id)["status"] == "error"
    state = sdk.threads.get_state(thread_id)
    assert state["next"] == ["boom"]
    assert state["tasks"][0]["error"] == "ValueError('boom happened')"
    assert sdk.runs.list(thread_id)[0]["status"] == "error"
    with pytest.raises(Exception, match="boom happened"):
        sdk.runs.wait(thread_id, "fails", input={"text": "x"})


def test_joining_a_live_run_delivers_what_is_still_to_come(sdk: SyncLangGraphClient, thread_id: str) -> None:
    run = sdk.runs.create(
        thread_id,
        "writes",
        input={"n": 20, "seconds": 0.1},
        stream_mode=["custom", "values"],
        stream_resumable=True,
    )

    events = parts(sdk.runs.join_stream(thread_id, run["run_id"], stream_mode="custom", last_event_id="-1"))

    assert [data["i"] for name, data in events if name == "custom"] == list(range(20))
    assert {name for name, _ in events} == {"custom"}


def test_an_interrupted_run_waits_and_is_resumed(sdk: SyncLangGraphClient, thread_id: str) -> None:
    events = parts(sdk.runs.stream(thread_id, "asks", input={"text": "x"}, stream_mode=["values", "updates"]))
    asked = events[-1][1]["__interrupt__"]

    assert [i["value"] for i in asked] == [{"question": "may I?"}]
    assert asked[0]["response_schema"] is None
    assert ("updates", {"__interrupt__": asked}) in events
    thread = sdk.threads.get(thread_id)
    assert thread["status"] == "interrupted"
    assert [[i["id"] for i in items] for items in thread["interrupts"].values()] == [[asked[0]["id"]]]
    state = sdk.threads.get_state(thread_id)
    assert state["next"] == ["ask"]
    assert state["tasks"][0]["interrupts"][0]["value"] == {"question": "may I?"}
    assert sdk.runs.list(thread_id)[0]["status"] == "success"

    result = sdk.runs.wait(thread_id, "asks", command={"resume": "yes"})

    assert result["log"] == ["before", "yes", "after"]
    assert sdk.threads.get(thread_id)["status"] == "idle"


def test_a_static_breakpoint_stops_before_a_node(sdk: SyncLangGraphClient, thread_id: str) -> None:
    stopped = sdk.runs.wait(thread_id, "nested", input={"text": "x"}, interrupt_before=["child"])

    assert "__interrupt__" not in stopped
    assert sdk.threads.get(thread_id)["status"] == "interrupted"
    assert sdk.runs.wait(thread_id, "nested", input=None)["log"] == ["before", "after"]


def running(sdk: SyncLangGraphClient, thread_id: str) -> str:
    run = sdk.runs.create(thread_id, "sleeps", input={"text": "x"})
    wait_until(lambda: sdk.runs.get(thread_id, run["run_id"])["status"] == "running")
    return run["run_id"]


def test_cancelled_runs_stop_where_they_are_and_a_rolled_back_one_leaves_no_trace(
    sdk: SyncLangGraphClient, thread_id: str
) -> None:
    sdk.runs.wait(thread_id, "echo", input={"text": "kept"})
    before = sdk.threads.get_state(thread_id)
    rolled_back = running(sdk, thread_id)

    sdk.runs.cancel(thread_id, rolled_back, wait=True, action="rollback")

    with pytest.raises(NotFoundError):
        sdk.runs.get(thread_id, rolled_back)
    assert sdk.threads.get_state(thread_id) == before
    assert sdk.threads.get(thread_id)["status"] == "idle"
    assert sdk.runs.wait(thread_id, "echo", input={"text": "next"})["log"] == ["kept", "next"]

    first = running(sdk, thread_id)
    pending = sdk.runs.create(thread_id, "echo", input={"text": "never"})["run_id"]
    sdk.runs.cancel(thread_id, pending)
    assert sdk.runs.get(thread_id, pending)["status"] == "interrupted"
    assert sdk.runs.get(thread_id, first)["status"] == "running"

    sdk.runs.cancel(thread_id, first, wait=True)

    assert sdk.runs.get(thread_id, first)["status"] == "interrupted"
    thread = sdk.threads.get(thread_id)
    assert thread["status"] == "interrupted"
    assert thread["error"]["error"] == "UserInterrupt"
    assert sdk.threads.get_state(thread_id)["next"] == ["sleep"]
    with pytest.raises(NotFoundError):
        sdk.runs.cancel(thread_id, first)


def test_a_client_that_leaves_takes_its_run_along(
    stack: Stack, kitchen: str, sdk: SyncLangGraphClient, thread_id: str
) -> None:
    url = f"{stack.url}/d/{kitchen}/threads/{thread_id}/runs/stream"
    body = {"assistant_id": "sleeps", "input": {"text": "x"}, "on_disconnect": "cancel"}
    headers = {"x-api-key": stack.api_key}
    with httpx.stream("POST", url, json=body, headers=headers, timeout=30) as response:
        for line in response.iter_lines():
            if line.startswith("event: values"):
                break

    wait_until(lambda: sdk.runs.list(thread_id)[0]["status"] == "interrupted", timeout=15)


def test_a_client_that_leaves_changes_nothing_by_default(sdk: SyncLangGraphClient, thread_id: str) -> None:
    stream = sdk.runs.stream(thread_id, "counts", input={"n": 3, "seconds": 0.3}, stream_mode="custom")
    next(stream)
    stream.close()

    wait_until(lambda: sdk.threads.get(thread_id)["status"] == "idle", timeout=15)
    assert sdk.threads.get_state(thread_id)["values"]["log"] == [0, 1, 2]


def test_a_run_is_deleted(sdk: SyncLangGraphClient, thread_id: str) -> None:
    run_id = running(sdk, thread_id)

    sdk.runs.delete(thread_id, run_id)

    with pytest.raises(NotFoundError):
        sdk.runs.get(thread_id, run_id)
    assert sdk.runs.wait(thread_id, "echo", input={"text": "free"})["log"][-1] == "free"


def test_runs_of_a_thread_start_in_order_of_creation(sdk: SyncLangGraphClient, thread_id: str) -> None:
    created = [sdk.runs.create(thread_id, "echo", input={"text": str(i)}) for i in range(8)]

    sdk.runs.join(thread_id, created[-1]["run_id"])

    assert sdk.threads.get_state(thread_id)["values"]["log"] == [str(i) for i in range(8)]
    assert [r["run_id"] for r in sdk.runs.list(thread_id)] == [r["run_id"] for r in reversed(created)]


def test_a_stateless_run_leaves_nothing_behind(sdk: SyncLangGraphClient) -> None:
    run = sdk.runs.create(None, "counts", input={"n": 2, "seconds": 0.2})
    assert sdk.threads.get(run["thread_id"])["status"] == "busy"

    wait_until(lambda: not sdk.threads.search(ids=[run["thread_id"]]))


def test_a_kept_stateless_run_has_a_thread(sdk: SyncLangGraphClient) -> None:
    events = parts(sdk.runs.stream(None, "echo", input={"text": "x"}, on_completion="keep"))

    found = sdk.threads.search(limit=5)
    assert any(t["values"] == events[-1][1] for t in found)


@pytest.mark.parametrize("durability", ["sync", "async", "exit"])
def test_each_durability_ends_in_the_same_state(
    sdk: SyncLangGraphClient, thread_id: str, durability: Any
) -> None:
    sdk.runs.wait(thread_id, "counts", input={"n": 3, "seconds": 0}, durability=durability)

    assert sdk.threads.get_state(thread_id)["values"]["log"] == [0, 1, 2]


def test_what_is_not_served_is_refused_by_name(sdk: SyncLangGraphClient, thread_id: str) -> None:
    with pytest.raises(UnprocessableEntityError, match="Webhook host blocked"):
        sdk.runs.create(thread_id, "echo", input={"text": "x"}, webhook="https://10.0.0.1/")
    with pytest.raises(UnprocessableEntityError, match="'nope'"):
        sdk.runs.create(thread_id, "nope", input={"text": "x"})


def test_many_clients_at_once_get_their_own_events(sdk: SyncLangGraphClient) -> None:
    seen: dict[int, list[Any]] = {}

    def follow(number: int) -> None:
        stream = sdk.runs.stream(None, "writes", input={"n": 100}, stream_mode="custom")
        seen[number] = [part.data["i"] for part in stream if part.event == "custom"]

    threads = [threading.Thread(target=follow, args=(number,)) for number in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert all(numbers == list(range(100)) for numbers in seen.values())
    assert len(seen) == 16


def test_a_silent_run_is_kept_alive_by_heartbeats(stack: Stack, kitchen: str) -> None:
    url = f"{stack.url}/d/{kitchen}/runs"
    body = {"assistant_id": "sleeps", "input": {"seconds": 11}}
    headers = {"x-api-key": stack.api_key}

    with ThreadPoolExecutor() as pool:
        both = [
            pool.submit(httpx.post, f"{url}/{how}", json=body, headers=headers, timeout=60)
            for how in ("stream", "wait")
        ]
    streamed, waited = (answer.result() for answer in both)
    assert streamed.content.count(b": heartbeat\r\n\r\n") == 2
    assert streamed.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert waited.content.startswith(b"\n\n{")
    assert waited.json()["log"] == ["before", "woke"]
