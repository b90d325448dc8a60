"""Rows for the clients' run methods."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

import pytest
from langgraph_sdk.errors import NotFoundError

from tests.e2e.client_rows import new, row, running


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
