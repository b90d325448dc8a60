"""Rows for the clients' thread methods."""

from __future__ import annotations

import inspect
from typing import Any
from uuid import uuid4

import pytest
from langgraph_sdk.errors import ConflictError, NotFoundError

from tests.e2e.client_rows import new, row


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
