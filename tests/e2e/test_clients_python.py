"""Every method of the Python clients, the asynchronous one and the synchronous, against the whole platform.

Each row calls one method and looks at what callers read of its answer.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

import pytest
from langgraph_sdk import get_client
from langgraph_sdk.errors import ConflictError, NotFoundError

from tests.support.stack import Stack

ECHO = "046b5dc7-2108-582c-9c6c-31d556d138f0"
ELSEWHERE = {"threads.stream"}  # tests/e2e/test_protocol_python.py

Row = Callable[[Any], Awaitable[None]]
ROWS: dict[str, Row] = {}


def row(name: str) -> Callable[[Row], Row]:
    def add(function: Row) -> Row:
        ROWS[name] = function
        return function

    return add


class Synchronous:
    """The synchronous client (or a part of it), called as the other one is."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._inner, name)
        if not callable(found):
            return Synchronous(found)

        def call(*args: Any, **more: Any) -> Any:
            if name.endswith("stream"):
                return _each(found(*args, **more))
            return _answered(found, *args, **more)

        return call


async def _answered(method: Callable[..., Any], *args: Any, **more: Any) -> Any:
    return method(*args, **more)


async def _each(parts: Iterator[Any]) -> AsyncIterator[Any]:
    for part in parts:
        yield part


async def new(client: Any, **more: Any) -> str:
    return (await client.threads.create(**more))["thread_id"]


async def running(client: Any, thread_id: str | None) -> dict[str, Any]:
    """A run that goes on until it is stopped."""
    return await client.runs.create(thread_id, "sleeps", input={"text": "x"})


@row("assistants.get")
async def _(client: Any) -> None:
    found = await client.assistants.get(ECHO)
    assert (found["assistant_id"], found["graph_id"], found["version"]) == (ECHO, "echo", 1)


@row("assistants.get_graph")
async def _(client: Any) -> None:
    graph = await client.assistants.get_graph(ECHO, xray=1)
    assert {node["id"] for node in graph["nodes"]} == {"__start__", "node", "__end__"}
    assert {"source": "__start__", "target": "node"}.items() <= graph["edges"][0].items()
    (nested,) = await client.assistants.search(graph_id="nested")
    plain = await client.assistants.get_graph(nested["assistant_id"])
    opened = await client.assistants.get_graph(nested["assistant_id"], xray=True)
    assert {node["id"] for node in plain["nodes"]} == {"__start__", "child", "__end__"}
    assert {"child:before", "child:after"} <= {node["id"] for node in opened["nodes"]}


@row("assistants.get_schemas")
async def _(client: Any) -> None:
    schemas = await client.assistants.get_schemas(ECHO)
    assert schemas["graph_id"] == "echo"
    assert {"input_schema", "output_schema", "state_schema", "context_schema"} <= set(schemas)
    assert "text" in schemas["input_schema"]["properties"]


@row("assistants.get_subgraphs")
async def _(client: Any) -> None:
    (nested,) = await client.assistants.search(graph_id="nested")
    subgraphs = await client.assistants.get_subgraphs(nested["assistant_id"], recurse=True)
    one = await client.assistants.get_subgraphs(nested["assistant_id"], namespace="child")
    assert list(subgraphs) == list(one) == ["child"]


@row("assistants.create")
async def _(client: Any) -> None:
    id = str(uuid4())
    made = await client.assistants.create(
        "greets", context={"word": "hi"}, metadata={"a": 1}, assistant_id=id, name="n", description="d"
    )
    assert made["assistant_id"] == id
    assert (made["context"], made["metadata"]) == ({"word": "hi"}, {"a": 1})
    assert (made["name"], made["description"], made["version"]) == ("n", "d", 1)
    same = await client.assistants.create("greets", assistant_id=id, if_exists="do_nothing")
    assert same == made
    with pytest.raises(ConflictError):
        await client.assistants.create("greets", assistant_id=id)


@row("assistants.update")
async def _(client: Any) -> None:
    made = await client.assistants.create("greets", context={"word": "a", "loud": True})
    changed = await client.assistants.update(
        made["assistant_id"], context={"word": "b"}, metadata={"m": 1}, name="new", description="said"
    )
    assert (changed["version"], changed["context"]) == (2, {"word": "b"})
    assert (changed["name"], changed["description"], changed["metadata"]) == ("new", "said", {"m": 1})


@row("assistants.delete")
async def _(client: Any) -> None:
    made = await client.assistants.create("echo")
    await client.assistants.delete(made["assistant_id"])
    with pytest.raises(NotFoundError):
        await client.assistants.get(made["assistant_id"])
    made = await client.assistants.create("echo")
    thread_id = await new(client)
    await client.runs.wait(thread_id, made["assistant_id"], input={"text": "x"})
    await client.assistants.delete(made["assistant_id"], delete_threads=True)
    with pytest.raises(NotFoundError):
        await client.threads.get(thread_id)


@row("assistants.search")
async def _(client: Any) -> None:
    mark = str(uuid4())
    ids = [
        (await client.assistants.create("echo", metadata={"m": mark}, name=f"{i}"))["assistant_id"]
        for i in range(3)
    ]
    found = await client.assistants.search(
        metadata={"m": mark}, graph_id="echo", limit=2, sort_by="created_at", sort_order="asc"
    )
    assert [item["assistant_id"] for item in found] == ids[:2]
    page = await client.assistants.search(
        metadata={"m": mark}, limit=2, select=["assistant_id"], response_format="object"
    )
    assert (page["next"], [set(item) for item in page["assistants"]]) == ("2", [{"assistant_id"}] * 2)
    last = await client.assistants.search(metadata={"m": mark}, limit=2, offset=2, response_format="object")
    assert (last["next"], len(last["assistants"])) == (None, 1)


@row("assistants.count")
async def _(client: Any) -> None:
    mark = str(uuid4())
    await client.assistants.create("echo", metadata={"m": mark}, name=mark)
    assert await client.assistants.count(metadata={"m": mark}, graph_id="echo", name=mark) == 1


@row("assistants.get_versions")
async def _(client: Any) -> None:
    made = await client.assistants.create("greets", metadata={"m": 1})
    await client.assistants.update(made["assistant_id"], metadata={"m": 2})
    versions = await client.assistants.get_versions(made["assistant_id"], limit=5)
    assert [item["version"] for item in versions] == [2, 1]
    one = await client.assistants.get_versions(made["assistant_id"], metadata={"m": 1}, offset=0)
    assert [item["version"] for item in one] == [1]


@row("assistants.set_latest")
async def _(client: Any) -> None:
    made = await client.assistants.create("greets", context={"word": "one"})
    await client.assistants.update(made["assistant_id"], context={"word": "two"})
    latest = await client.assistants.set_latest(made["assistant_id"], 1)
    assert (latest["version"], latest["context"]) == (1, {"word": "one"})
    said = await client.runs.wait(None, made["assistant_id"], input={"text": ""})
    assert said["log"] == ["one"]


@row("threads.get")
async def _(client: Any) -> None:
    thread_id = await new(client, ttl=5)
    thread = await client.threads.get(thread_id, include=["ttl"])
    assert (thread["thread_id"], thread["status"], thread["values"]) == (thread_id, "idle", None)
    assert (thread["ttl"]["ttl_minutes"], thread["ttl"]["strategy"]) == (5, "delete")
    assert "ttl" not in await client.threads.get(thread_id)


@row("threads.create")
async def _(client: Any) -> None:
    id = str(uuid4())
    made = await client.threads.create(
        thread_id=id,
        metadata={"a": 1},
        graph_id="echo",
        supersteps=[{"updates": [{"values": {"text": "a", "log": ["b"]}, "as_node": "__start__"}]}],
    )
    assert (made["thread_id"], made["metadata"]) == (id, {"a": 1, "graph_id": "echo"})
    assert made["values"] == {"text": "a", "log": ["b"]}
    with pytest.raises(ConflictError):
        await client.threads.create(thread_id=id, if_exists="raise")
    assert (await client.threads.create(thread_id=id, if_exists="do_nothing"))["metadata"] == made["metadata"]


@row("threads.update")
async def _(client: Any) -> None:
    thread_id = await new(client, metadata={"a": 1, "b": 1})
    changed = await client.threads.update(thread_id, metadata={"b": None, "c": 2}, ttl=7)
    assert changed["metadata"] == {"a": 1, "b": None, "c": 2}
    assert await client.threads.update(thread_id, metadata={"d": 3}, return_minimal=True) is None
    thread = await client.threads.get(thread_id, include=["ttl"])
    assert (thread["metadata"]["d"], thread["ttl"]["ttl_minutes"]) == (3, 7)


@row("threads.delete")
async def _(client: Any) -> None:
    thread_id = await new(client)
    await client.threads.delete(thread_id)
    with pytest.raises(NotFoundError):
        await client.threads.get(thread_id)


@row("threads.search")
async def _(client: Any) -> None:
    mark = str(uuid4())
    ids = [await new(client, metadata={"m": mark, "i": i}) for i in range(3)]
    await client.runs.wait(ids[1], "echo", input={"text": mark})
    newest = await client.threads.search(metadata={"m": mark}, sort_by="created_at", limit=2)
    assert [thread["thread_id"] for thread in newest] == ids[:0:-1]
    found = await client.threads.search(
        values={"text": mark},
        ids=ids,
        status="idle",
        select=["thread_id", "values"],
        extract={"last": "values.log[-1]"},
    )
    values = {"text": mark, "log": [mark]}
    assert found == [{"thread_id": ids[1], "values": values, "extracted": {"last": mark}}]


@row("threads.count")
async def _(client: Any) -> None:
    mark = str(uuid4())
    for i in range(2):
        await new(client, metadata={"m": mark, "i": i})
    assert await client.threads.count(metadata={"m": mark}, status="idle") == 2
    assert await client.threads.count(metadata={"m": mark}, values={"text": "x"}) == 0


@row("threads.copy")
async def _(client: Any) -> None:
    thread_id = await new(client, metadata={"a": 1})
    await client.runs.wait(thread_id, "echo", input={"text": "x"})
    copy = await client.threads.copy(thread_id)
    assert copy["thread_id"] != thread_id
    assert copy["metadata"]["a"] == 1
    states = [await client.threads.get_state(id) for id in (thread_id, copy["thread_id"])]
    assert states[0]["values"] == states[1]["values"] == {"text": "x", "log": ["x"]}
    assert states[0]["checkpoint"]["checkpoint_id"] == states[1]["checkpoint"]["checkpoint_id"]


@row("threads.prune")
async def _(client: Any) -> None:
    ids = [await new(client) for _ in range(2)]
    await client.runs.wait(ids[0], "counts", input={"n": 2, "seconds": 0})
    pruned = await client.threads.prune([ids[0], str(uuid4())], strategy="keep_latest")
    assert pruned == {"pruned_count": 1}
    assert [state["next"] for state in await client.threads.get_history(ids[0])] == [[]]
    assert await client.threads.prune(ids) == {"pruned_count": 2}
    assert await client.threads.search(ids=ids) == []


@row("threads.get_state")
async def _(client: Any) -> None:
    thread_id = await new(client)
    assert (await client.threads.get_state(thread_id))["values"] == {}
    await client.runs.wait(thread_id, "nested", input={"text": "x"}, interrupt_before=["child"])
    state = await client.threads.get_state(thread_id, subgraphs=True)
    assert state["next"] == ["child"]
    assert state["checkpoint"]["thread_id"] == thread_id
    same = await client.threads.get_state(thread_id, checkpoint=state["checkpoint"])
    again = await client.threads.get_state(thread_id, checkpoint_id=state["checkpoint"]["checkpoint_id"])
    assert same["checkpoint"] == again["checkpoint"] == state["checkpoint"]
    part = await client.threads.get_state(thread_id, select=["next", "values.text"])
    assert part == {"next": ["child"], "values": {"text": "x"}}


@row("threads.update_state")
async def _(client: Any) -> None:
    thread_id = await new(client)
    await client.runs.wait(thread_id, "asks", input={"text": "x"})
    first = (await client.threads.get_history(thread_id))[-1]["checkpoint"]
    made = await client.threads.update_state(thread_id, {"log": ["forked"]}, as_node="before")
    assert made["checkpoint"]["thread_id"] == thread_id
    state = await client.threads.get_state(thread_id)
    assert state["checkpoint"] == made["checkpoint"]
    assert (state["values"]["log"], state["next"]) == (["before", "forked"], ["ask"])
    await client.threads.update_state(thread_id, {"log": ["other"]}, as_node="before", checkpoint=first)
    assert (await client.threads.get_state(thread_id))["values"]["log"] == ["other"]


@row("threads.get_history")
async def _(client: Any) -> None:
    thread_id = await new(client)
    await client.runs.wait(thread_id, "counts", input={"n": 3, "seconds": 0}, metadata={"m": 1})
    history = await client.threads.get_history(thread_id)
    assert [state["metadata"]["step"] for state in history] == [3, 2, 1, 0, -1]
    assert len(await client.threads.get_history(thread_id, limit=2)) == 2
    second = history[1]["checkpoint"]
    for before in (second["checkpoint_id"], second):
        assert await client.threads.get_history(thread_id, before=before) == history[2:]
    assert await client.threads.get_history(thread_id, metadata={"m": 2}) == []
    none = await client.threads.get_history(thread_id, checkpoint={"checkpoint_ns": "nowhere"})
    assert none == []


@row("threads.join_stream")
async def _(client: Any) -> None:
    thread_id = await new(client)
    run = await client.runs.create(
        thread_id, "echo", input={"text": "1"}, stream_resumable=True, stream_mode="updates"
    )
    done, seen, ids = [], [], []
    stream = client.threads.join_stream(thread_id, last_event_id="-")
    async for part in await stream if inspect.isawaitable(stream) else stream:
        ids.append(part.id)
        if part.event == "updates":
            seen.append(part.data)
        if part.event == "metadata" and part.data.get("status") == "run_done":
            done.append(part.data["run_id"])
            if len(done) == 2:
                break
            second = await client.runs.create(thread_id, "echo", input={"text": "2"}, stream_mode="updates")
    assert done == [run["run_id"], second["run_id"]]
    assert seen == [{"node": {"log": ["1"]}}, {"node": {"log": ["2"]}}]
    assert len(set(ids)) == len(ids) == 6


@row("runs.stream")
async def _(client: Any) -> None:
    created: list[Any] = []
    thread_id = await new(client)
    parts = [
        part
        async for part in client.runs.stream(
            thread_id,
            "nested",
            input={"text": "x"},
            stream_mode=["values", "updates"],
            stream_subgraphs=True,
            stream_resumable=True,
            metadata={"m": 1},
            on_run_created=created.append,
        )
    ]
    assert parts[0].event == "metadata"
    assert created == [{"run_id": parts[0].data["run_id"], "thread_id": thread_id}]
    assert {part.event.partition("|")[0] for part in parts} == {"metadata", "values", "updates"}
    assert len([part for part in parts if part.event.startswith("updates|child:")]) == 2
    assert parts[-1].event == "values"
    assert all(part.id for part in parts)
    assert parts[-1].data["log"] == ["before", "after"]


@row("runs.create")
async def _(client: Any) -> None:
    created: list[Any] = []
    thread_id = str(uuid4())
    with pytest.raises(NotFoundError):
        await client.runs.create(thread_id, "greets", input={"text": ""})
    run = await client.runs.create(
        thread_id,
        "greets",
        input={"text": ""},
        context={"word": "x"},
        config={"tags": ["t"], "recursion_limit": 9},
        metadata={"m": 1},
        if_not_exists="create",
        durability="exit",
        on_run_created=created.append,
    )
    assert created == [{"run_id": run["run_id"], "thread_id": thread_id}]
    assert (run["status"], run["thread_id"], run["metadata"]["m"]) == ("pending", thread_id, 1)
    assert run["kwargs"]["config"]["tags"] == ["t"]
    assert (await client.runs.join(thread_id, run["run_id"]))["log"] == ["x"]
    later = await client.runs.create(thread_id, "greets", input={"text": ""}, after_seconds=600)
    assert (await client.threads.get(thread_id))["status"] == "busy"
    assert datetime.fromisoformat(later["created_at"]) > datetime.now(UTC) + timedelta(seconds=500)
    await client.runs.cancel(thread_id, later["run_id"])


@row("runs.create_batch")
async def _(client: Any) -> None:
    made = await client.runs.create_batch(
        [{"assistant_id": "echo", "input": {"text": text}, "on_completion": "keep"} for text in "ab"]
    )
    assert [run["kwargs"]["input"]["text"] for run in made] == ["a", "b"]
    outputs = [await client.runs.join(run["thread_id"], run["run_id"]) for run in made]
    assert [output["log"] for output in outputs] == [["a"], ["b"]]


@row("runs.wait")
async def _(client: Any) -> None:
    thread_id = await new(client)
    asked = await client.runs.wait(thread_id, "asks", input={"text": "x"})
    assert [item["value"] for item in asked["__interrupt__"]] == [{"question": "may I?"}]
    resumed = await client.runs.wait(thread_id, "asks", command={"resume": False})
    assert resumed["log"] == ["before", False, "after"]
    with pytest.raises(Exception, match="boom happened"):
        await client.runs.wait(None, "fails", input={"text": "x"})
    failed = await client.runs.wait(None, "fails", input={"text": "x"}, raise_error=False)
    assert failed == {"__error__": {"error": "ValueError", "message": "boom happened"}}


@row("runs.list")
async def _(client: Any) -> None:
    thread_id = await new(client)
    for text in "abc":
        await client.runs.wait(thread_id, "echo", input={"text": text})
    found = await client.runs.list(thread_id, limit=2, offset=1, status="success")
    assert [run["kwargs"]["input"]["text"] for run in found] == ["b", "a"]
    some = await client.runs.list(thread_id, select=["run_id", "status"])
    assert [set(run) for run in some] == [{"run_id", "status"}] * 3
    assert await client.runs.list(thread_id, status="error") == []


@row("runs.get")
async def _(client: Any) -> None:
    thread_id = await new(client)
    await client.runs.wait(thread_id, "echo", input={"text": "x"})
    (listed,) = await client.runs.list(thread_id)
    run = await client.runs.get(thread_id, listed["run_id"])
    assert run == listed
    assert (run["status"], run["multitask_strategy"], run["thread_id"]) == ("success", "enqueue", thread_id)


@row("runs.cancel")
async def _(client: Any) -> None:
    thread_id = await new(client)
    run = await running(client, thread_id)
    assert await client.runs.cancel(thread_id, run["run_id"]) is None
    await client.runs.join(thread_id, run["run_id"])
    assert (await client.runs.get(thread_id, run["run_id"]))["status"] == "interrupted"
    run = await running(client, thread_id)
    assert await client.runs.cancel(thread_id, run["run_id"], wait=True, action="rollback") == {}
    with pytest.raises(NotFoundError):
        await client.runs.get(thread_id, run["run_id"])


@row("runs.cancel_many")
async def _(client: Any) -> None:
    thread_id = await new(client)
    first = await running(client, thread_id)
    others = [await running(client, thread_id) for _ in range(2)]
    await client.runs.cancel_many(
        thread_id=thread_id, run_ids=[run["run_id"] for run in others], action="interrupt"
    )
    assert [run["status"] for run in await client.runs.list(thread_id)][:2] == ["interrupted"] * 2
    await client.runs.cancel(thread_id, first["run_id"], wait=True)
    with pytest.raises(NotFoundError):
        await client.runs.cancel_many(thread_id=thread_id, run_ids=[first["run_id"]])


@row("runs.join")
async def _(client: Any) -> None:
    thread_id = await new(client)
    run = await client.runs.create(thread_id, "counts", input={"n": 2, "seconds": 0.1})
    assert (await client.runs.join(thread_id, run["run_id"]))["log"] == [0, 1]
    assert (await client.runs.join(thread_id, run["run_id"]))["log"] == [0, 1], "also when it is over"


@row("runs.join_stream")
async def _(client: Any) -> None:
    thread_id = await new(client)
    run = await client.runs.create(
        thread_id, "writes", input={"n": 5}, stream_mode=["custom", "values"], stream_resumable=True
    )
    await client.runs.join(thread_id, run["run_id"])
    whole = [part async for part in client.runs.join_stream(thread_id, run["run_id"], last_event_id="-1")]
    rest = [
        part
        async for part in client.runs.join_stream(
            thread_id, run["run_id"], stream_mode=["custom"], last_event_id=whole[3].id
        )
    ]
    assert [part.event for part in whole] == ["metadata", "values", *["custom"] * 5, "values"]
    assert [part.data["i"] for part in rest] == [2, 3, 4]
    assert [part.id for part in rest] == [part.id for part in whole[4:-1]]
    assert [int(part.id) for part in whole] == sorted({int(part.id) for part in whole})
    with pytest.raises(NotFoundError):
        _ = [part async for part in client.runs.join_stream(thread_id, str(uuid4()))]


@row("runs.delete")
async def _(client: Any) -> None:
    thread_id = await new(client)
    await client.runs.wait(thread_id, "echo", input={"text": "x"})
    (run,) = await client.runs.list(thread_id)
    await client.runs.delete(thread_id, run["run_id"])
    assert await client.runs.list(thread_id) == []
    assert (await client.threads.get(thread_id))["values"]["log"] == ["x"]


@row("crons.create")
async def _(client: Any) -> None:
    end = datetime.now(UTC) + timedelta(days=2)
    made = await client.crons.create(
        "echo",
        schedule="0 9 * * *",
        input={"text": "x"},
        metadata={"m": 1},
        end_time=end,
        timezone="Europe/Berlin",
        on_run_completed="keep",
        enabled=False,
    )
    assert (made["schedule"], made["timezone"], made["enabled"]) == ("0 9 * * *", "Europe/Berlin", False)
    assert (made["thread_id"], made["on_run_completed"]) == (None, "keep")
    assert datetime.fromisoformat(made["end_time"]) == end
    assert made["payload"]["input"] == {"text": "x"}
    await client.crons.delete(made["cron_id"])


@row("crons.create_for_thread")
async def _(client: Any) -> None:
    thread_id = await new(client)
    made = await client.crons.create_for_thread(
        thread_id, "echo", schedule="0 0 1 1 *", input={"text": "x"}, multitask_strategy="reject"
    )
    assert (made["thread_id"], made["on_run_completed"]) == (thread_id, None)
    await client.threads.delete(thread_id)
    assert await client.crons.search(thread_id=thread_id) == []


@row("crons.update")
async def _(client: Any) -> None:
    made = await client.crons.create("echo", schedule="0 0 1 1 *", metadata={"a": 1})
    changed = await client.crons.update(
        made["cron_id"], schedule="0 0 2 1 *", metadata={"b": 2}, end_time=None, enabled=False
    )
    assert (changed["schedule"], changed["end_time"]) == ("0 0 2 1 *", None)
    assert changed["metadata"] == {"a": 1, "b": 2}
    assert changed["next_run_date"] != made["next_run_date"]
    await client.crons.delete(made["cron_id"])


@row("crons.delete")
async def _(client: Any) -> None:
    made = await client.crons.create("echo", schedule="0 0 1 1 *")
    await client.crons.delete(made["cron_id"])
    with pytest.raises(NotFoundError):
        await client.crons.delete(made["cron_id"])


@row("crons.search")
async def _(client: Any) -> None:
    mark = str(uuid4())
    ids = [
        (await client.crons.create("echo", schedule="0 0 1 1 *", metadata={"m": mark}))["cron_id"]
        for _ in range(2)
    ]
    found = await client.crons.search(
        assistant_id=ECHO, metadata={"m": mark}, enabled=True, sort_by="created_at", sort_order="asc"
    )
    assert [cron["cron_id"] for cron in found] == ids
    (one,) = await client.crons.search(metadata={"m": mark}, limit=1, offset=1, select=["cron_id"])
    assert one == {"cron_id": ids[0]}
    for id in ids:
        await client.crons.delete(id)


@row("crons.count")
async def _(client: Any) -> None:
    mark = str(uuid4())
    made = await client.crons.create("echo", schedule="0 0 1 1 *", metadata={"m": mark})
    assert await client.crons.count(assistant_id=ECHO, metadata={"m": mark}) == 1
    await client.crons.delete(made["cron_id"])


@row("store.put_item")
async def _(client: Any) -> None:
    mark = str(uuid4())
    assert await client.store.put_item(["a", mark], "k", {"v": 1}, index=False, ttl=5) is None
    await client.store.put_item(["a", mark], key="k", value={"v": 2})
    assert (await client.store.get_item(["a", mark], "k"))["value"] == {"v": 2}


@row("store.get_item")
async def _(client: Any) -> None:
    mark = str(uuid4())
    await client.store.put_item(["a", mark], "k", {"v": 1})
    item = await client.store.get_item(["a", mark], "k", refresh_ttl=True)
    assert (item["namespace"], item["key"], item["value"]) == (["a", mark], "k", {"v": 1})
    assert {"created_at", "updated_at"} <= set(item)
    assert await client.store.get_item(["a", mark], "missing") is None


@row("store.delete_item")
async def _(client: Any) -> None:
    mark = str(uuid4())
    await client.store.put_item([mark], "k", {})
    await client.store.delete_item([mark], "k")
    await client.store.delete_item([mark], "k")
    assert await client.store.get_item([mark], "k") is None


@row("store.search_items")
async def _(client: Any) -> None:
    mark = str(uuid4())
    for n in range(3):
        await client.store.put_item([mark, "x"], f"k{n}", {"n": n})
    found = await client.store.search_items([mark], filter={"n": {"$gte": 1}}, limit=5)
    assert sorted(item["key"] for item in found["items"]) == ["k1", "k2"]
    assert found["items"][0]["score"] is None
    assert len((await client.store.search_items([mark], limit=2, offset=2))["items"]) == 1


@row("store.list_namespaces")
async def _(client: Any) -> None:
    mark = str(uuid4())
    for label in ("x", "y"):
        await client.store.put_item([mark, label, "deep"], "k", {})
    found = await client.store.list_namespaces(prefix=[mark], suffix=["deep"], limit=5)
    assert found == {"namespaces": [[mark, "x", "deep"], [mark, "y", "deep"]]}
    cut = await client.store.list_namespaces(prefix=[mark, "*"], max_depth=1)
    assert cut == {"namespaces": [[mark]]}


@pytest.mark.parametrize("name", ROWS)
@pytest.mark.parametrize("kind", ["async", "sync"])
def test_each_method_does_what_it_says(stack: Stack, kitchen: str, kind: str, name: str) -> None:
    async def call() -> None:
        if kind == "sync":
            await ROWS[name](Synchronous(stack.sdk(kitchen)))
            return
        async with get_client(url=f"{stack.url}/d/{kitchen}", api_key=stack.api_key) as client:
            await ROWS[name](client)

    asyncio.run(call())


def test_every_method_has_a_row() -> None:
    client = get_client(url="http://nowhere", api_key="x")
    methods = {
        f"{part}.{name}"
        for part in ("assistants", "threads", "runs", "crons", "store")
        for name, _ in inspect.getmembers(type(getattr(client, part)), inspect.isfunction)
        if not name.startswith("_")
    }
    assert methods - set(ROWS) == ELSEWHERE
