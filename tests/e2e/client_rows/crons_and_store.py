"""Rows for the clients' cron and store methods."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

import pytest
from langgraph_sdk.errors import NotFoundError

from tests.e2e.client_rows import ECHO, new, row


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
