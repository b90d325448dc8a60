"""The protocol v2 events that the graph host writes for a run besides its classic events."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import pairwise
from typing import Any, NamedTuple

import pytest

from tests.support.hosted import ALL_STREAMS, HOSTED
from tests.support.hosts import Checkpointed, HostProcess, Run, graph_host
from workers.graph_host import frames

HI = {"messages": [{"role": "user", "content": "hi", "id": "u1"}], "text": "a", "log": []}


class Sent(NamedTuple):
    """An event of protocol v2."""

    method: str
    namespace: list[str]
    id_tail: str
    name: str | None
    params: dict[str, Any]

    @property
    def data(self) -> Any:
        return self.params["data"]

    @property
    def place(self) -> str:
        """The namespace without task ids."""
        return "/".join(label.partition(":")[0] for label in self.namespace)


def sent(run: Run, *methods: str) -> list[Sent]:
    """Return the run's v2 events of these methods, or all events."""
    found = [Sent(*json.loads(name[1:]), data) for name, data in run.events if name.startswith("~")]
    assert all(event.params["namespace"] == event.namespace for event in found)
    assert all(one.params["timestamp"] <= other.params["timestamp"] + 1000 for one, other in pairwise(found))
    return [event for event in found if not methods or event.method in methods]


def classic(run: Run) -> list[tuple[str, Any]]:
    return [event for event in run.events if not event[0].startswith("~")]


def messages(run: Run) -> dict[str, list[dict[str, Any]]]:
    """Return the message events by message id."""
    found: dict[str, list[dict[str, Any]]] = {}
    for event in sent(run, "messages"):
        found.setdefault(event.data["message_id"], []).append(event.data)
    return found


def text_of(events: list[dict[str, Any]]) -> str:
    return "".join(event["delta"].get("text", "") for event in events if "delta" in event)


@pytest.fixture(scope="module")
def streams() -> Iterator[HostProcess]:
    with graph_host(HOSTED, ALL_STREAMS) as host:
        yield host
        host.answer = lambda run, kind, parts: None


def watched(host: HostProcess, graph: str, input: Any = HI, **spec: Any) -> Run:
    """Execute a run on a thread with a protocol v2 reader."""
    return Checkpointed(host).run(graph, input, stream_mode=["protocol"], **spec)


def test_a_run_nobody_watches_by_it_writes_none_and_one_that_is_watched_writes_the_same_beside_it(
    streams: HostProcess,
) -> None:
    modes = ["values", "updates", "custom"]
    unwatched = streams.run("writes", HI, stream_mode=modes)
    both = streams.run(
        "writes", HI, stream_mode=modes, joined={"stream_mode": ["protocol"], "subgraphs": True}
    )

    assert sent(unwatched) == []
    assert classic(both) == unwatched.events
    assert {event.method for event in sent(both)} >= {"values", "updates", "custom", "tasks", "checkpoints"}
    assert both.values == unwatched.values


def test_a_steps_events_come_in_order_custom_ones_with_their_names_and_tasks_with_both_ends(
    streams: HostProcess,
) -> None:
    run = watched(streams, "writes")

    methods = [event.method for event in sent(run)]
    assert methods == [
        "checkpoints",
        "checkpoints",
        "values",
        "tasks",
        "custom",
        "custom",
        "custom",
        "updates",
        "tasks",
        "checkpoints",
        "values",
    ]
    assert all(event.id_tail == "" for event in sent(run))

    custom = sent(run, "custom")

    assert [(event.name, event.data) for event in custom] == [
        ("progress", {"name": "progress", "payload": {"percent": 50}}),
        (None, {"payload": {"plain": True}}),
        (None, {"payload": "text"}),
    ]

    named = sent(watched(streams, "writes_named"), "custom")

    assert [(event.name, event.data) for event in named] == [
        ("status", {"name": "status", "percent": 50, "payload": None}),
        ("only", {"name": "only"}),
        (None, {"payload": {"name": 7, "payload": "numbered"}}),
        (None, {"payload": {"name": "", "payload": "nameless"}}),
    ]

    start, end = [event.data for event in sent(run, "tasks")]
    assert (start["name"], start["id"]) == ("write", end["id"])
    assert end["result"] == {"log": ["written"]}


def test_a_subgraph_sends_its_checkpoints_updates_and_life(streams: HostProcess) -> None:
    run = watched(streams, "layers")

    events = sent(run)
    before = [(one, other) for one, other in pairwise(events) if other.method == "values"]
    assert len(before) == 8
    assert all(one.method == "checkpoints" and one.namespace == other.namespace for one, other in before)
    newest = [event.data for event in events if event.method == "checkpoints" and not event.namespace][-1]
    assert newest == {
        "id": run.outcome["state"]["checkpoint_id"],
        "parent_id": run.outcome["state"]["parent_checkpoint_id"],
        "step": 2,
        "source": "loop",
    }

    updates = sent(run, "updates")

    assert [(event.place, event.params["node"]) for event in updates] == [
        ("", "note"),
        ("middle", "note"),
        ("middle/inner", "tell"),
        ("middle", "inner"),
        ("", "middle"),
    ]
    assert updates[0].data == {"log": ["noted"]}

    lives = sent(run, "lifecycle")
    assert [(event.place, event.data["event"], event.data["graph_name"]) for event in lives] == [
        ("middle", "started", "middle"),
        ("middle/inner", "started", "inner"),
        ("middle/inner", "completed", "inner"),
        ("middle", "completed", "middle"),
    ]
    first = lives[0]
    assert first.data["namespace"] == first.namespace
    assert first.data["trigger_call_id"] == first.namespace[0].partition(":")[2]
    assert [event.id_tail for event in lives] == [
        f"lc|{'|'.join(event.namespace)}|{event.data['event']}" for event in lives
    ]
    inside = [event for event in sent(run) if event.namespace]
    assert [event.method for event in inside][:3] == ["lifecycle", "checkpoints", "checkpoints"]
    assert {event.place for event in sent(run, "messages")} == {"middle/inner"}


def test_values_show_the_messages_that_a_node_returns_in_short_form_and_are_stored_whole(
    streams: HostProcess,
) -> None:
    run = watched(streams, "gives")

    last = sent(run, "values")[-1].data
    call = {"id": "c", "name": "look_up", "args": {"word": "x"}, "type": "tool_call"}
    assert last == {
        "messages": [
            {"type": "human", "content": "hi", "id": "u1"},
            {"type": "system", "content": "be kind", "id": "s"},
            {"type": "human", "content": "hello", "id": "h"},
            {"type": "ai", "content": "hi", "id": "a", "tool_calls": [call]},
            {
                "type": "tool",
                "content": "x means something",
                "id": "t",
                "tool_call_id": "c",
                "status": "success",
                "artifact": None,
            },
        ],
        "text": "a",
        "log": [],
    }
    assert messages(run) == {}

    unwatched = Checkpointed(streams).run("gives", HI, stream_mode=["values"])
    assert run.values == unwatched.values


def test_a_run_of_an_entrypoint_is_sent_too(streams: HostProcess) -> None:
    run = watched(streams, "numbers", 2)

    assert [event.data for event in sent(run, "values")] == [3]
    assert [(event.params["node"], event.data) for event in sent(run, "updates")] == [
        ("add_one", 3),
        ("numbers", 3),
    ]
    assert {event.place for event in sent(run, "messages")} == {""}

    run = watched(streams, "forgetful")

    inside = [event.method for event in sent(run) if event.place == "child"]
    assert inside == ["lifecycle", "values", "tasks", "updates", "tasks", "values", "lifecycle"]


# Messages


def test_a_models_message_is_sent_block_by_block_with_its_call_and_a_tools_call_too(
    streams: HostProcess,
) -> None:
    run = watched(streams, "react")

    asked, answered = messages(run).values()
    assert [event["event"] for event in asked] == [
        "message-start",
        *["content-block-start", "content-block-delta", "content-block-delta", "content-block-finish"] * 2,
        "message-finish",
    ]
    assert asked[0]["metadata"] == {"provider": "nobody", "model": "scripted-1", "langgraph_node": "agent"}
    assert [event["content"] for event in asked if event["event"] == "content-block-finish"] == [
        {"type": "text", "text": "Let me look."},
        {"type": "tool_call", "id": "call-1", "name": "look_up", "args": {"word": "sea"}},
    ]
    assert asked[-1]["usage"]["total_tokens"] == 12
    assert asked[-1]["reason"] == "tool_calls"
    assert text_of(answered) == "It is water."
    stored = [message["id"] for message in run.values["messages"] if message["type"] == "ai"]
    assert list(messages(run)) == stored

    events = sent(run, "messages")
    assert {event.params["node"] for event in events} == {"agent"}
    calls = {event.data["run_id"]: event.data["message_id"] for event in events}
    assert len(calls) == 2
    assert str(run.id) not in calls
    assert all(id == f"lc_run--{call}" for call, id in calls.items())

    started, finished = [event.data for event in sent(run, "tools")]

    assert started == {
        "event": "tool-started",
        "tool_call_id": "call-1",
        "tool_name": "look_up",
        "input": {"word": "sea"},
    }
    assert (finished["event"], finished["tool_call_id"]) == ("tool-finished", "call-1")
    assert finished["output"]["content"] == "sea means something"


def test_two_calls_at_once_are_two_messages(streams: HostProcess) -> None:
    run = watched(streams, "speaks_twice")

    one, other = messages(run).values()
    assert [text_of(one), text_of(other)] == ["one two three", "alpha beta gamma"]
    for events in (one, other):
        assert (events[0]["event"], events[-1]["event"]) == ("message-start", "message-finish")
        assert len({event["run_id"] for event in events}) == 1
    order = [event.data["message_id"] for event in sent(run, "messages")]
    assert len([1 for one_id, next_id in pairwise(order) if one_id != next_id]) > 2, "they come at once"


def test_messages_that_a_model_gives_whole_or_a_node_pushes_are_sent(streams: HostProcess) -> None:
    run = watched(streams, "speaks_whole")

    ((id, events),) = messages(run).items()
    assert text_of(events) == "Let me look."
    assert id == run.values["messages"][-1]["id"]
    assert events[0]["run_id"] in id

    run = watched(streams, "pushes")

    starts = [event for event in sent(run, "messages") if event.data["event"] == "message-start"]
    assert [(event.data["role"], event.data["id"], event.namespace) for event in starts] == [
        ("ai", "p", []),
        ("tool", "pt", []),
    ]
    assert starts[1].data["tool_call_id"] == "c"
    assert [text_of(events) for events in messages(run).values()] == ["pushed", "a result"]


def test_a_message_that_breaks_off_ends_in_an_error_and_the_run_goes_on(streams: HostProcess) -> None:
    run = watched(streams, "breaks_off")

    half, whole = messages(run).values()
    assert text_of(half) == "half a "
    error = {"event": "error", "message": "the model broke off", "code": "ValueError"}
    assert half[-1] == {**half[-1], **error}
    assert (text_of(whole), whole[-1]["event"]) == ("whole", "message-finish")
    assert [event.data["event"] for event in sent(run, "messages")].index("error") < [
        event.data.get("delta", {}).get("text") for event in sent(run, "messages")
    ].index("whole")


def test_a_cancelled_message_just_stops(streams: HostProcess) -> None:
    thread = Checkpointed(streams)
    run = streams.start(
        "waits", HI, run=Run(thread_id=thread.thread_id), temporary=False, stream_mode=["protocol"]
    )
    streams.read_until(lambda: any("text-delta" in json.dumps(data) for _, data in run.events))
    streams.cancel(run)
    streams.wait_done(run)

    assert run.outcome["status"] == "cancelled"
    (events,) = messages(run).values()
    assert events[-1]["event"] == "content-block-delta"
    assert sent(run, "input.requested") == []


# Subgraphs and tools


def test_a_subgraph_that_fails_says_why_and_an_agent_that_a_tool_invokes_has_its_name(
    streams: HostProcess,
) -> None:
    run = watched(streams, "fails_inside")

    lives = [(event.data["event"], event.data.get("error")) for event in sent(run, "lifecycle")]
    assert lives == [("started", None), ("failed", "the model broke off")]
    assert classic(run) == [("error", {"error": "ValueError", "message": "the model broke off"})]

    run = watched(streams, "delegates")

    assert [
        (event.place, event.data["event"], event.data["graph_name"]) for event in sent(run, "lifecycle")
    ] == [
        ("tools", "started", "helper"),
        ("tools", "completed", "helper"),
    ]
    assert sent(run, "lifecycle")[0].data["cause"] == {"type": "toolCall", "tool_call_id": "call-9"}
    assert {event.place for event in sent(run, "messages")} == {"", "tools"}


# Interrupts


def test_questions_come_after_all_else_but_the_last_values(streams: HostProcess) -> None:
    run = watched(streams, "asks_both")

    events = sent(run)
    assert [event.method for event in events][-3:] == ["input.requested", "input.requested", "values"]
    assert [event.data["payload"] for event in sent(run, "input.requested")] == [{"question": "a"}, "again"]
    assert all(event.data["value"] == event.data["payload"] for event in sent(run, "input.requested"))
    assert [event.id_tail for event in sent(run, "input.requested")] == [
        f"input||{event.data['interrupt_id']}" for event in sent(run, "input.requested")
    ]
    assert events[-1].data["log"] == ["noted"]
    assert "__interrupt__" not in json.dumps(run.events)


def test_a_question_from_a_subgraph_names_its_namespace(streams: HostProcess) -> None:
    for modes in (["protocol"], ["values"]):
        run = Checkpointed(streams).run("asks_inside", HI, stream_mode=modes)
        (event,) = sent(run, "input.requested")
        assert event.place == "child"
        assert event.id_tail == f"input|{event.namespace[0]}|{event.data['interrupt_id']}"
        (interrupts,) = run.outcome["interrupts"].values()
        assert [item["id"] for item in interrupts] == [event.data["interrupt_id"]]


def test_a_classic_run_on_a_thread_sends_its_questions_and_answers_and_nothing_else(
    streams: HostProcess,
) -> None:
    thread = Checkpointed(streams)
    first = thread.run("asks", HI, stream_mode=["values"])
    ids = [event.data["interrupt_id"] for event in sent(first)]
    second = thread.run("asks", command={"resume": "yes"}, stream_mode=["values"])

    assert [event.method for event in sent(first)] == ["input.requested"]
    assert [(event.method, event.data) for event in sent(second)] == [
        ("input.answered", {"interrupt_ids": ids})
    ]
    assert second.values["log"] == ["noted", "yes"]

    run = streams.run("asks", HI, stream_mode=["values"])
    assert run.outcome["thread_status"] == "interrupted"
    assert sent(run) == []


def test_answers_are_sent_by_id_and_what_is_left_is_asked_again(streams: HostProcess) -> None:
    thread = Checkpointed(streams)
    first = thread.run("asks_both", HI, stream_mode=["protocol"])
    one, other = [event.data["interrupt_id"] for event in sent(first, "input.requested")]

    half = thread.run("asks_both", command={"resume": {one: "A"}}, stream_mode=["protocol"])
    rest = thread.run("asks_both", command={"resume": "B"}, stream_mode=["protocol"])

    assert sent(half)[0].data == {"interrupt_ids": [one]}
    assert [event.data["interrupt_id"] for event in sent(half, "input.requested")] == [other]
    assert sent(rest)[0].data == {"interrupt_ids": [other]}
    assert sent(rest, "input.requested") == []
    assert sorted(rest.values["log"]) == ["A", "B", "noted"]

    thread = Checkpointed(streams)
    thread.run("asks", HI)
    run = thread.run("asks", command={"resume": "yes"}, resume_from_checkpoint=True)
    assert sent(run, "input.answered") == []


# Limits, late subscribers, transformers


def test_an_event_that_is_too_large_is_replaced_and_a_question_asked_without_its_value(
    streams: HostProcess,
) -> None:
    run = watched(streams, "writes_much")

    (event,) = sent(run, "custom")
    assert event.name == event.data["name"] == "event_too_large"
    assert "1048576" in event.data["payload"]["message"]
    assert run.values["log"] == ["went on"]

    run = watched(streams, "asks_much")

    (event,) = sent(run, "input.requested")
    assert event.data == {"interrupt_id": event.data["interrupt_id"], "payload": None, "value": None}
    assert "event_too_large" in [event.name for event in sent(run, "custom")]


def test_who_comes_late_gets_values_and_updates_from_then_on(streams: HostProcess) -> None:
    run = streams.start("waits", HI, stream_mode=["custom"])
    streams.read_until(lambda: bool(run.events))
    widened = json.dumps({"stream_mode": ["values", "updates", "protocol"]}).encode()
    streams.send(frames.WIDEN, run.id.bytes, widened)
    streams.cancel(run)
    streams.wait_done(run)
    assert {event.method for event in sent(run)} <= {"values", "updates"}

    run = streams.start("speaks_twice", HI, stream_mode=["values"])
    streams.send(frames.WIDEN, run.id.bytes, widened)
    streams.wait_done(run)
    assert {event.method for event in sent(run)} == {"values", "updates"}
    assert sent(run, "values")[-1].data["messages"][-1]["content"] == "alpha beta gamma"
    assert [name for name, _ in classic(run)].count("updates") == 1


def test_the_graphs_own_transformers_change_hide_and_add_and_what_they_fail_on_is_left_out(
    streams: HostProcess,
) -> None:
    run = watched(streams, "censored")

    (events,) = messages(run).values()
    assert text_of(events) == "It is ***"
    left_out = {"content-block-finish", "message-finish"}  # one hidden, the other an invalid event
    assert not left_out & {event["event"] for event in events}
    assert sent(run, "updates") == []
    (made,) = sent(run, "custom")
    assert (made.name, made.data) == ("seen", {"name": "seen", "payload": {"messages": 6}})
    assert len(sent(run, "tasks")) == 2
    assert run.values["messages"][-1]["content"] == "It is water."

    assert "a secret" not in json.dumps(run.events)
    assert any("a stream transformer failed" in line["message"] for line in run.logs)
    assert run.outcome["status"] == "success"


def test_nothing_is_shown_of_a_run_whose_transformers_cannot_be_made(streams: HostProcess) -> None:
    run = watched(streams, "without_censor")

    assert not any(sent(run, method) for method in ("values", "messages", "updates", "custom", "tasks"))
    assert any("no censor today" in line["message"] for line in run.logs)
    assert run.outcome["status"] == "success"
