"""Checkpoints of the Node host: what is stored, what is restored, and that documents of clients stay documents."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.hosts import Checkpointed, HostProcess
from tests.support.node_hosts import node_host
from workers.graph_host import frames
from workers.graph_host.checkpoints.serializer import CheckpointRefused, make_serializer

TEXT = {"text": "a"}
SECRET = {"lc": 1, "type": "secret", "id": ["TOKEN"]}
ENVELOPE = {
    "lc": 1,
    "type": "constructor",
    "id": ["langchain_core", "messages", "HumanMessage"],
    "kwargs": {"content": SECRET},
}
HOSTILE: list[Any] = [
    SECRET,
    ENVELOPE,
    {"~": "message", "of": "HumanMessage", "v": {"content": "x"}},
    {"~": {"~": "date", "v": 0}},
    {"a": {"~": "undefined"}, "~": 1},
    {"__proto__": {"polluted": True}, "constructor": {"prototype": {"x": 1}}},
    {"lg_name": "Send", "node": "tell", "args": {}},
    {"lg_name": "Command", "goto": "tell"},
    {"toJSON": "text", "undefined": None},
    "\ud800 \u0000",
]


@pytest.fixture(scope="module")
def secret_host(node_project: Path) -> Iterator[HostProcess]:
    """A host of a deployment with a secret."""
    graphs = {name: f"./graphs.ts:{name}" for name in ("keeps", "echo")}
    graphs |= {name: f"./kept.ts:{name}" for name in ("random", "changes")}
    with node_host(node_project, graphs, variables={"TOKEN": "the-secret-value"}) as host:
        yield host


@pytest.mark.parametrize("document", HOSTILE, ids=range(len(HOSTILE)))
def test_a_clients_document_stays_a_document(secret_host: HostProcess, document: Any) -> None:
    thread = Checkpointed(secret_host)
    thread.run("keeps", {"text": json.dumps(document)})
    run = thread.run("keeps", None)

    assert run.outcome["error"] is None
    assert json.loads(run.values["log"][-1]) == document
    assert "the-secret-value" not in json.dumps([run.events, run.outcome, run.logs, secret_host.logs])
    stored = b"".join(blob for _, _, blobs in thread.stored for blob in blobs)
    assert b"the-secret-value" not in stored


def test_an_envelope_in_a_message_reads_no_variable(secret_host: HostProcess) -> None:
    thread = Checkpointed(secret_host)
    for content in (ENVELOPE, {"role": "user", "content": [SECRET]}, {"role": "user", "content": "hi"}):
        run = thread.run("echo", {"messages": [content]})
        assert "the-secret-value" not in json.dumps([run.events, run.outcome, run.values, run.logs])
        state = thread.query("state", "echo")
        assert "the-secret-value" not in json.dumps(state)


def test_values_that_are_not_json_are_restored_by_their_class(thread: Checkpointed) -> None:
    thread.run("keeps", TEXT | {"text": "1"})

    run = thread.run("keeps", None)

    assert run.values["log"] == [True, True, "bigint", True, True, None, True, "gi", "TypeError", "1"]


def test_random_values_are_restored(secret_host: HostProcess) -> None:
    for seed in range(5):
        thread = Checkpointed(secret_host)
        thread.run("random", {"seed": seed})

        assert thread.run("random", None).values["differing"] == [], seed


def test_a_list_that_is_stored_as_its_changes(secret_host: HostProcess) -> None:
    thread = Checkpointed(secret_host)
    added = [{"length": length, "at": "1970-01-01T00:00:00.000Z"} for length in range(14)]
    for count in (9, 4):
        thread.run("changes", {"left": count})

    history = thread.query("history", "changes", limit=30, before=None, filter=None)
    assert [each["values"]["list"] for each in history[:5]] == [added[:n] for n in (13, 12, 11, 10, 9)]
    assert thread.query("state", "changes")["values"]["list"] == added[:13]
    for place in (history[7], history[7]):
        fork = {"configurable": {"checkpoint_id": place["checkpoint"]["checkpoint_id"]}}
        forked = thread.run("changes", {"left": 1}, config=fork)
        assert forked.values["list"] == [*place["values"]["list"], added[len(place["values"]["list"])]]


def test_a_temporary_run_ends_with_a_list_that_is_stored_as_its_changes(secret_host: HostProcess) -> None:
    for left, options, count in (
        (2, {}, 2),
        (2, {"interrupt_after": ["add"]}, 1),
        (5, {"stream_mode": ["updates"]}, 5),
    ):
        run = secret_host.run("changes", {"left": left}, **options)

        assert [item["length"] for item in run.values["list"]] == list(range(count))
        assert run.answer["list"] == run.values["list"]


def test_values_that_are_not_json_have_a_plain_form_for_clients(host: HostProcess) -> None:
    kept = host.run("keeps", TEXT | {"text": "1"}).values["kept"]

    assert kept == {
        "date": "1970-01-01T00:00:00.000Z",
        "map": {"a": [1]},
        "big": "12345678901234567890",
        "bytes": "AQI=",
        "infinite": None,
        "document": {"pageContent": "page", "metadata": {"n": 1}},
        "pattern": "/a+/gi",
        "error": {"error": "TypeError", "message": "wrong"},
        "client": 1,
    }


def test_a_function_in_the_state_fails_the_run_and_names_its_channel(thread: Checkpointed) -> None:
    run = thread.run("keeps_function", TEXT)

    assert run.outcome["error"] == {
        "error": "NotStorable", "message": "channel 'kept' holds a function, which cannot be stored",
    }  # fmt: skip


def test_a_checkpoint_names_its_writer_and_forks_share_no_version(thread: Checkpointed) -> None:
    thread.run("steps", TEXT)

    checkpoints = [head for kind, head, _ in thread.stored if kind == frames.CHECKPOINT]
    assert {head["type"] for head in checkpoints} == {"javascript/1"}
    assert [head["metadata"]["step"] for head in checkpoints] == [-1, 0, 1, 2, 3]
    assert checkpoints[-1]["metadata"]["run_id"]
    forked = {"configurable": {"checkpoint_id": checkpoints[0]["checkpoint_id"]}}
    versions = [_version_after(thread, forked) for _ in range(2)]
    assert versions[0][:10] == versions[1][:10]
    assert versions[0] != versions[1]


def _version_after(thread: Checkpointed, config: dict[str, Any]) -> str:
    """Return the version of a channel at the end of a run."""
    thread.run("steps", TEXT, config=config)
    *_, last = [blobs[0] for kind, _, blobs in thread.stored if kind == frames.CHECKPOINT]
    return json.loads(last)["checkpoint"]["channel_versions"]["text"]


def test_large_values_are_stored_once(thread: Checkpointed) -> None:
    thread.run("steps", {"text": "x" * 5_000})

    new = [head["new"] for kind, head, _ in thread.stored if kind == frames.CHECKPOINT]
    assert sum(channel == "text" for blobs in new for channel, _, _ in blobs) == 1
    assert thread.query("state", "steps")["values"]["text"] == "x" * 5_000


def test_neither_host_continues_the_others_threads(thread: Checkpointed) -> None:
    serializer = make_serializer(())
    thread.run("steps", TEXT)
    for _, head, _ in thread.stored:
        if "type" in head:
            head["type"] = "msgpack"

    run = thread.run("steps", TEXT)

    assert run.outcome["error"]["error"] == "CheckpointRefused"
    assert "were written by Python graphs" in run.outcome["error"]["message"]
    with pytest.raises(CheckpointRefused, match="were written by JavaScript graphs"):
        serializer.loads_typed(("javascript/1", b"{}"))


def test_a_second_attempt_of_a_run_goes_on_after_its_last_step(thread: Checkpointed) -> None:
    first = thread.run("steps", TEXT, stream_mode=["updates"])
    kept = {
        head["checkpoint_id"] for _, head, _ in thread.stored if head.get("metadata", {}).get("step", 9) < 2
    }
    ended = max(kept)
    thread.stored[:] = [
        (kind, head, blobs)
        for kind, head, blobs in thread.stored
        if head["checkpoint_id"] in kept and (kind == frames.CHECKPOINT or head["checkpoint_id"] != ended)
    ]

    run = thread.host.start("steps", TEXT, run=None, temporary=False, thread_id=thread.thread_id,
        run_id=str(first.id), attempt=2, stream_mode=["updates"],
        stored=thread._get({"checkpoint_ns": "", "checkpoint_id": None}))  # fmt: skip
    thread.host.wait_done(run)

    assert run.named("updates") == [{"two": {"log": ["two"]}}, {"three": {"log": ["three"]}}]
    assert run.values["log"] == ["one", "two", "three"]


@pytest.mark.parametrize("durability", ["sync", "async", "exit"])
def test_a_run_whose_host_dies_anywhere_is_repeated_from_what_is_stored(
    host: HostProcess, durability: str
) -> None:
    whole = Checkpointed(host)
    first = whole.run("steps", TEXT, durability=durability)
    for count in range(len(whole.stored) + 1):
        thread = Checkpointed(host)
        thread.thread_id = whole.thread_id
        thread.stored = whole.stored[:count]

        run = thread.start("steps", TEXT, attempt=2, run_id=str(first.id), durability=durability)
        host.wait_done(run)

        assert run.values == first.values
        assert thread.query("state", "steps")["values"] == first.values


def test_forks_of_one_checkpoint_keep_their_values(thread: Checkpointed) -> None:
    thread.run("steps", {"text": "x" * 5_000}, interrupt_before=["two"])
    at = thread.query("state", "steps")["checkpoint"]["checkpoint_id"]
    texts = ["y" * 5_000, "z" * 5_000]
    places = [
        thread.query(
            "update", "steps", supersteps=[[{"values": {"text": text}, "as_node": "one"}]],
            checkpoint={"checkpoint_id": at},
        )["checkpoint"]
        for text in texts
    ]  # fmt: skip

    assert [thread.query("state", "steps", checkpoint=at)["values"]["text"] for at in places] == texts
    for place, text in zip(places, texts, strict=True):
        fork = {"configurable": {"checkpoint_id": place["checkpoint_id"]}}
        assert thread.run("steps", None, config=fork).values["text"] == text


def test_state_history_and_updates_of_a_thread(thread: Checkpointed) -> None:
    thread.run("steps", TEXT, interrupt_before=["two"])

    state = thread.query("state", "steps")
    assert state["next"] == ["two"]
    assert state["values"] == {"text": "a", "log": ["one"]}
    assert state["metadata"]["source"] == "loop"

    updated = thread.query(
        "update", "steps", supersteps=[[{"values": {"log": ["told"]}, "as_node": "two"}]], checkpoint=None
    )
    assert updated["values"]["log"] == ["one", "told"]
    assert updated["state"]["next"] == ["three"]

    history = thread.query("history", "steps", limit=10, before=None, filter=None)
    assert [each["metadata"]["source"] for each in history] == ["update", "loop", "loop", "input"]
    (bare, *_) = thread.query("history", "steps", limit=1, before=None, filter=None, values=False)
    assert "values" not in bare
    found = thread.query("history", "steps", limit=10, before=None, filter={"source": "update"})
    assert len(found) == 1
    past = thread.query("state", "steps", checkpoint={"checkpoint_id": history[1]["checkpoint_id"]})
    assert past["values"]["log"] == ["one"]

    done = thread.run("steps", None)
    assert done.values["log"] == ["one", "told", "three"]
    refused = thread.query(
        "update", "steps", supersteps=[[{"values": {"log": []}, "as_node": "nobody"}]], checkpoint=None
    )
    assert refused["refused"]["kind"] == "invalid"


def test_a_namespace_of_no_declared_subgraph_is_read_but_not_updated(thread: Checkpointed) -> None:
    thread.run("calls", TEXT)
    (*_, before, _) = thread.query("history", "calls", limit=10, before=None, filter=None)
    (namespace,) = [f"call:{task['id']}" for task in before["tasks"]]
    place = {"checkpoint_ns": namespace}

    called = {"text": "called", "log": ["one", "two", "three"]}
    assert thread.query("state", "calls", checkpoint=place)["values"] == called
    history = thread.query("history", "calls", limit=10, before=None, filter=None, checkpoint_ns=namespace)
    assert history[0]["values"] == called
    assert len(history) == 5
    refused = thread.query(
        "update", "calls", supersteps=[[{"values": TEXT, "as_node": "call"}]], checkpoint=place
    )
    assert refused["refused"]["kind"] == "invalid"
