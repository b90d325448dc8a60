"""Checkpoints in the database: fenced bulk writes, reading and removal."""

from __future__ import annotations

import json
from typing import Any
from uuid import UUID, uuid4

import pytest
from sqlalchemy import Row, Table, delete, select, update

from shared.deployments.deployments import DeploymentRef
from shared.infra.postgres import connection
from shared.models import CHECKPOINT, CHECKPOINT_BLOB, CHECKPOINT_WRITE, RUN
from shared.threads import checkpoint_reads, checkpoints
from shared.threads.checkpoints import Write
from tests.support import factories

pytestmark = pytest.mark.usefixtures("db")


@pytest.fixture
def run() -> Row[Any]:
    return running()


def running(deployment: DeploymentRef | None = None, thread_id: UUID | None = None) -> Row[Any]:
    """Insert a running run owned by `here`, on a new thread unless one is named."""
    deployment = deployment or factories.deployment()
    run_id = factories.run(deployment, thread_id, status="running", attempt=1, owner="here")
    with connection() as conn:
        found: Any = conn.execute(select(RUN).where(RUN.c.run_id == run_id)).one()
    return found


def checkpoint(run: Row[Any], id: str, parent: str | None = None, **fields: Any) -> Write:
    """A CHECKPOINT frame. `blobs` holds new values by (channel, version); `old` holds channel → version of old ones."""
    values = fields.pop("blobs", {})
    old = fields.pop("old", {})
    head = {
        "parent_checkpoint_id": parent,
        "blobs": {**old, **dict(values.keys())},
        "new": [[channel, version, "bytes"] for channel, version in values],
        "metadata": {"run_id": str(run.run_id), "step": 1},
        **fields,
    }
    return factories.checkpoint(run, id, *values.values(), **head)


def writes(run: Row[Any], id: str, items: dict[int, bytes], *, task: str = "t", path: str = "") -> Write:
    """A WRITES frame of values by index."""
    head = {
        "thread_id": str(run.thread_id),
        "checkpoint_ns": "",
        "checkpoint_id": id,
        "task_id": task,
        "task_path": path,
        "writes": [[idx, f"channel{idx}", "bytes"] for idx in items],
    }
    return Write.of(run, head, list(items.values()))


def store(*items: Write) -> set[Any]:
    return factories.store(*items)


def read(run: Row[Any], **ask: Any) -> tuple[dict[str, Any], list[bytes]]:
    question = {
        "op": "get_tuple",
        "thread_id": str(run.thread_id),
        "checkpoint_ns": "",
        "checkpoint_id": None,
        **ask,
    }
    with connection() as conn:
        head, *blobs = checkpoint_reads.answer(conn, run.deployment_id, question, thread_id=run.thread_id)
    return json.loads(head), blobs


def test_a_checkpoint_is_read_as_a_run_left_it() -> None:
    deployment = factories.deployment()
    first = running(deployment)
    store(checkpoint(first, "c1"), writes(first, "c1", {0: b"own"}))
    with connection() as conn:
        conn.execute(update(RUN).values(status="success"))
    second = running(deployment, first.thread_id)
    store(writes(second, "c1", {0: b"later"}, task="u"), checkpoint(second, "c2", "c1"))

    left, parts = read(first, checkpoint_id="c1", left_by=str(first.run_id))
    whole, _ = read(first, checkpoint_id="c1", left_by=str(second.run_id))

    assert (left["checkpoint_id"], left["writes"]) == ("c1", [["t", "channel0", "bytes"]])
    assert parts == [b"data of c1", b"own"]
    assert [task for task, *_ in whole["writes"]] == ["t", "u"]


def listed(run: Row[Any], **ask: Any) -> list[str]:
    defaults = {"op": "list", "before": None, "filter": {}, "limit": 10}
    return [item["checkpoint_id"] for item in read(run, **{**defaults, **ask})[0]["items"]]


def count(table: Table) -> int:
    with connection() as conn:
        return len(conn.execute(select(table)).all())


def test_a_checkpoint_comes_back_with_its_blobs_and_writes(run: Row[Any]) -> None:
    store(
        checkpoint(run, "1", blobs={("messages", "1"): b"old", ("facts", "1"): b"fact"}),
        checkpoint(run, "2", "1", blobs={("messages", "2"): b"new"}, old={"facts": "1"}),
        writes(run, "2", {0: b"b"}, task="b", path="~2"),
        writes(run, "2", {0: b"a0", 1: b"a1"}, task="a", path="~1"),
    )

    head, blobs = read(run)

    assert (head["found"], head["checkpoint_id"], head["parent_checkpoint_id"]) == (True, "2", "1")
    assert (head["thread_id"], head["metadata"]["step"]) == (str(run.thread_id), 1)
    assert blobs[0] == b"data of 2"
    values = dict(zip([tuple(item) for item in head["blobs"]], blobs[1:3], strict=True))
    assert values == {("messages", "2", "bytes"): b"new", ("facts", "1", "bytes"): b"fact"}
    assert [task for task, _, _ in head["writes"]] == ["a", "a", "b"]
    assert blobs[3:] == [b"a0", b"a1", b"b"]


def test_an_empty_thread_has_no_checkpoint_and_takes_none_that_is_foreign_or_of_a_run_that_is_gone(
    run: Row[Any],
) -> None:
    assert read(run) == ({"found": False}, [])
    assert listed(run) == []
    assert store(writes(run, "", {})) == set()
    with pytest.raises(ValueError, match="foreign"):
        checkpoint(run, "1", thread_id=str(uuid4()))
    with pytest.raises(ValueError, match="blobs"):
        checkpoint(run, "1", new=[["c", "1", "bytes"]])

    with connection() as conn:
        conn.execute(delete(RUN).where(RUN.c.run_id == run.run_id))

    assert store(checkpoint(run, "1")) == {run.run_id}


def test_frames_that_come_twice_change_nothing(run: Row[Any]) -> None:
    first = [checkpoint(run, "1", blobs={("c", "1"): b"value"}), writes(run, "1", {0: b"w", -3: b"i"})]
    store(*first)
    before = read(run)

    store(*first)
    store(*first, *first)

    assert read(run) == before


def test_of_special_writes_the_newest_holds_and_of_plain_ones_the_first(run: Row[Any]) -> None:
    store(checkpoint(run, "1"), writes(run, "1", {0: b"first", -3: b"first"}))

    store(writes(run, "1", {0: b"second", -3: b"second"}))

    assert sorted(read(run)[1][1:]) == [b"first", b"second"]


@pytest.mark.parametrize(
    "change", [{"attempt": 2}, {"owner": "elsewhere"}, {"status": "success"}, {"status": "pending"}]
)
def test_only_the_owner_of_a_running_run_may_write(run: Row[Any], change: dict[str, Any]) -> None:
    other = running()
    with connection() as conn:
        conn.execute(update(RUN).where(RUN.c.run_id == run.run_id).values(**change))

    refused = store(checkpoint(run, "1"), writes(run, "1", {0: b"w"}), checkpoint(other, "1"))

    assert refused == {run.run_id}
    assert read(run)[0] == {"found": False}
    assert read(other)[0]["found"]
    assert count(CHECKPOINT_WRITE) == 0


def test_many_threads_are_read_at_once() -> None:
    runs = [running() for _ in range(5)]
    store(*(checkpoint(run, "1", blobs={("c", "1"): b"v"}) for run in runs))

    with connection() as conn:
        found = checkpoint_reads.newest(conn, [(run.deployment_id, run.thread_id) for run in runs])

    assert set(found) == {(run.deployment_id, run.thread_id) for run in runs}
    assert [parts[1:] for parts in found.values()] == [[b"data of 1", b"v"]] * 5


def test_newest_is_what_the_host_would_be_sent(run: Row[Any]) -> None:
    empty = running()
    store(
        checkpoint(run, "1"),
        checkpoint(run, "2", "1", blobs={("c", "1"): b"v"}),
        checkpoint(run, "3", checkpoint_ns="child:1"),
        writes(run, "2", {0: b"w"}),
    )

    keys = [(item.deployment_id, item.thread_id) for item in (run, empty)]
    with connection() as conn:
        found = checkpoint_reads.newest(conn, keys)

    assert list(found) == keys[:1]
    head, *blobs = found[keys[0]]
    assert (json.loads(head), blobs) == read(run)


def test_it_lists_what_is_asked_for_newest_first(run: Row[Any]) -> None:
    store(
        checkpoint(run, "1", metadata={"source": "input", "step": -1}),
        checkpoint(run, "2", "1", metadata={"source": "loop", "step": 0}),
        checkpoint(run, "3", "2", metadata={"source": "loop", "step": 1}),
        checkpoint(run, "4", checkpoint_ns="child:1", metadata={"source": "loop"}),
    )

    assert listed(run) == ["3", "2", "1"]
    assert listed(run, checkpoint_ns=None) == ["4", "3", "2", "1"]
    assert listed(run, before="3", limit=1) == ["2"]
    assert listed(run, filter={"source": "loop"}) == ["3", "2"]
    assert listed(run, checkpoint_id="2") == ["2"]
    assert read(run, op="list", before=None, filter={}, limit=2)[0]["more"] is True
    assert read(run, op="list", before=None, filter={}, limit=3)[0]["more"] is False


def test_a_list_stops_before_it_is_too_large(run: Row[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoint_reads, "MAX_ANSWER_BYTES", 12)
    store(checkpoint(run, "1"), checkpoint(run, "2", "1"))

    head, _ = read(run, op="list", before=None, filter={}, limit=10)

    assert [item["checkpoint_id"] for item in head["items"]] == ["2"]
    assert head["more"] is True


def test_ancestors_follow_the_parents_and_bring_what_is_asked_for(run: Row[Any]) -> None:
    store(
        checkpoint(run, "1"),
        checkpoint(run, "2", "1", blobs={("channel0", "1"): b"value", ("other", "1"): b"large"}),
        checkpoint(run, "3", "2", old={"other": "1"}),
        checkpoint(run, "4", "2"),
        checkpoint(run, "5", "3"),
        checkpoint(run, "6", "5", checkpoint_ns="child:1"),
        writes(run, "3", {0: b"b"}, task="a", path="~2"),
        writes(run, "3", {0: b"a", 1: b"of another channel"}, task="b", path="~1"),
    )

    def chain(id: str | None, channels: list[str], limit: int = 10) -> list[str]:
        head, _ = read(run, op="ancestors", checkpoint_id=id, channels=channels, limit=limit)
        return [item["checkpoint_id"] for item in head["items"]]

    head, blobs = read(run, op="ancestors", checkpoint_id="5", channels=["channel0"], limit=10)
    assert [item["checkpoint_id"] for item in head["items"]] == ["5", "3", "2"], "2 has the value"
    assert [item["blobs"] for item in head["items"]] == [[], [], [["channel0", "1", "bytes"]]]
    assert [item["writes"] for item in head["items"]] == [
        [],
        [["b", "channel0", "bytes"], ["a", "channel0", "bytes"]],
        [],
    ]
    assert blobs == [b"data of 5", b"data of 3", b"a", b"b", b"data of 2", b"value"]
    assert chain("5", ["channel0", "channel1"]) == ["5", "3", "2", "1"]
    assert chain(None, ["channel0"]) == ["5", "3", "2"], "from the newest"
    assert chain("4", ["channel1"], 2) == ["4", "2"]
    assert chain("nothing", ["channel0"]) == []


@pytest.mark.parametrize(
    "ask",
    [
        {"op": "get_tuple", "checkpoint_id": None},
        {"op": "ancestors", "checkpoint_id": None, "channels": [], "limit": 1},
        {"op": "delete_thread"},
        {"op": "copy_thread", "source": "", "target": ""},
        {"op": "prune", "thread_ids": [str(uuid4())], "strategy": "delete"},
        {"op": "drop_everything"},
    ],
)
def test_a_run_reaches_its_own_thread_only(run: Row[Any], ask: dict[str, Any]) -> None:
    other = running()
    store(checkpoint(other, "1"))

    head, _ = read(run, **{**ask, "thread_id": str(other.thread_id)})

    assert head["error"]
    assert read(other)[0]["found"]


def test_a_rolled_back_run_leaves_what_was_before() -> None:
    deployment = factories.deployment()
    thread_id = factories.thread(deployment.id)
    earlier = running(deployment, thread_id)
    store(checkpoint(earlier, "1", blobs={("c", "1"): b"old"}))
    with connection() as conn:
        conn.execute(update(RUN).values(status="success"))
    run = running(deployment, thread_id)
    before = read(run)
    store(
        checkpoint(run, "2", "1", blobs={("c", "2"): b"new"}),
        checkpoint(run, "3", "2", old={"c": "1"}),
        writes(run, "1", {-4: b"resume"}),
        writes(run, "3", {0: b"w"}),
    )

    with connection() as conn:
        checkpoints.delete_run(conn, run.deployment_id, run.thread_id, run.run_id)

    assert read(run) == before
    assert (count(CHECKPOINT_BLOB), count(CHECKPOINT_WRITE)) == (1, 0)


@pytest.mark.parametrize(
    ("metadata", "parents"),
    [
        ({}, {"1": None, "4": "1", "5": "4"}),
        (
            {"counters_since_delta_snapshot": {"log": [1, 1]}},
            {"1": None, "2": "1", "3": "2", "4": "3", "5": "4"},
        ),
    ],
)
def test_what_builds_on_a_deleted_run_goes_on_from_what_was_before_it(
    metadata: dict[str, Any], parents: dict[str, str | None]
) -> None:
    deployment = factories.deployment()
    thread_id = factories.thread(deployment.id)
    runs = []
    for chain in (["1"], ["2", "3"], ["4", "5"]):
        runs.append(running(deployment, thread_id))
        for id in chain:
            store(checkpoint(runs[-1], id, str(int(id) - 1) if id != "1" else None, metadata=metadata))
        with connection() as conn:
            conn.execute(update(RUN).values(status="success"))

    with connection() as conn:
        checkpoints.delete_run(conn, deployment.id, thread_id, runs[1].run_id)
        rows = conn.execute(select(CHECKPOINT.c.checkpoint_id, CHECKPOINT.c.parent_checkpoint_id)).all()

    assert {row.checkpoint_id: row.parent_checkpoint_id for row in rows} == parents


def test_keeping_the_latest_keeps_what_it_refers_to(run: Row[Any]) -> None:
    store(
        checkpoint(run, "1", blobs={("c", "1"): b"old", ("d", "1"): b"kept"}),
        checkpoint(run, "2", "1", blobs={("c", "2"): b"new"}, old={"d": "1"}),
        writes(run, "1", {0: b"gone"}),
        writes(run, "2", {0: b"kept"}),
        checkpoint(run, "3", checkpoint_ns="child:1"),
    )
    before = read(run)

    with connection() as conn:
        checkpoints.keep_latest(conn, run.deployment_id, [run.thread_id])

    assert read(run) == before
    assert listed(run, checkpoint_ns=None) == ["3", "2"]
    assert (count(CHECKPOINT_BLOB), count(CHECKPOINT_WRITE)) == (2, 1)


def test_keeping_the_latest_spares_what_a_delta_channel_is_rebuilt_from(run: Row[Any]) -> None:
    delta = {"counters_since_delta_snapshot": {"log": [1, 1]}}
    store(checkpoint(run, "1"), checkpoint(run, "2", "1", metadata=delta), writes(run, "1", {0: b"w"}))

    with connection() as conn:
        checkpoints.keep_latest(conn, run.deployment_id, [run.thread_id])

    assert listed(run) == ["2", "1"]


def test_a_copy_holds_the_same(run: Row[Any]) -> None:
    target = factories.thread(run.deployment_id)
    metadata = {"thread_id": str(run.thread_id), "step": 1}
    store(checkpoint(run, "1", blobs={("c", "1"): b"v"}, metadata=metadata), writes(run, "1", {0: b"w"}))

    with connection() as conn:
        checkpoints.copy(conn, run.deployment_id, run.thread_id, target)

    head, blobs = read(run)
    question = {"op": "get_tuple", "thread_id": str(target), "checkpoint_ns": "", "checkpoint_id": None}
    with connection() as conn:
        copied, *copied_blobs = checkpoint_reads.answer(conn, run.deployment_id, question, thread_id=target)
    metadata = {"thread_id": str(target), "step": 1}
    assert json.loads(copied) == {**head, "thread_id": str(target), "metadata": metadata}
    assert copied_blobs == blobs


def test_a_channel_named_with_a_nul_does_not_keep_checkpoints_from_being_read(run: Row[Any]) -> None:
    assert store(checkpoint(run, "1", old={"a\x00b": "1"})) == set()
    with connection() as conn:
        found = checkpoint_reads.newest(conn, [(run.deployment_id, run.thread_id)])
    assert len(found) == 1
