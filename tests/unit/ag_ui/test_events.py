"""The AG-UI events of a run, from recorded parts of its stream."""

from __future__ import annotations

import sys
from collections.abc import Callable
from copy import deepcopy
from functools import reduce
from typing import Any

import orjson

from shared.models import RunStatus
from shared.runs.end_event import ROLLBACK
from web.deployment_api.protocols.ag_ui.events import End, RunEvents, RunName

Shown = dict[str, Any]
USAGE = {
    "input_tokens": 10,
    "output_tokens": 4,
    "total_tokens": 14,
    "input_token_details": {"cache_read": 6},
    "output_token_details": {"reasoning": 3},
}
QUESTION = {
    "id": "q",
    "value": {"question": "May I?", "tool_call_id": "c", "expires_at": "2027-01-01T00:00:00Z"},
}


class Played:
    """A run whose parts a test adds. The events are checked as a client of AG-UI checks them."""

    def __init__(self, values: Any = None, *, old: bool = False, subgraphs: bool = True) -> None:
        self.run = RunEvents(RunName("t", "r", is_old=old), values, subgraphs=subgraphs)
        self.newest = values
        self.events = self.run.started()
        self.add("metadata", {"run_id": "x", "attempt": 1})

    def add(self, name: str, data: Any) -> list[Shown]:
        added = self.run.add(name, orjson.dumps(data))
        self.events += added
        return added

    def values(self, **values: Any) -> list[Shown]:
        self.newest = values
        return self.add("values", values)

    def begin(self, name: str, id: str, *within: str) -> list[Shown]:
        return self.add("|".join(("tasks", *within)), {"id": id, "name": name, "input": {}, "triggers": []})

    def finish(self, name: str, id: str, *within: str, **more: Any) -> list[Shown]:
        task = {"id": id, "name": name, "error": None, "result": {}, "interrupts": [], **more}
        return self.add("|".join(("tasks", *within)), task)

    def part(
        self, content: Any = "", *within: str, id: str = "m", task: str = "1", **more: Any
    ) -> list[Shown]:
        message = {"type": "AIMessageChunk", "id": id, "content": content, **more}
        return self.message(message, *within, task=task)

    def call(
        self, index: int | None, args: str = "", *, id: str | None = None, name: str | None = None
    ) -> list[Shown]:
        return self.part(tool_call_chunks=[{"index": index, "id": id, "name": name, "args": args}])

    def message(self, message: Shown, *within: str, task: str = "1") -> list[Shown]:
        namespace = "|".join((*within, f"node:{task}"))
        return self.add("|".join(("messages", *within)), [message, {"langgraph_checkpoint_ns": namespace}])

    def end(self, end: End | None = None) -> Shown:
        """End the run, successfully and with its newest values unless `end` has others."""
        self.events += self.run.finished(end or End(RunStatus.SUCCESS, self.newest))
        check(self.events)
        return self.events[-1]

    def types(self) -> list[str]:
        return [event["type"] for event in self.events]

    def of(self, *types: str) -> list[Shown]:
        return [event for event in self.events if event["type"] in types]


def check(events: list[Shown]) -> None:
    """Fail where a client of AG-UI fails: something that is opened twice, not opened, or open at the end."""
    opened: set[tuple[str, str | None, str]] = set()
    subagents: set[str] = set()
    pairs = {
        "STEP_STARTED": ("STEP_FINISHED", "stepName"),
        "TEXT_MESSAGE_START": ("TEXT_MESSAGE_END", "messageId"),
        "TOOL_CALL_START": ("TOOL_CALL_END", "toolCallId"),
        "REASONING_START": ("REASONING_END", "messageId"),
        "REASONING_MESSAGE_START": ("REASONING_MESSAGE_END", "messageId"),
        "SUBAGENT_STARTED": ("SUBAGENT_FINISHED", "subagentRunId"),
    }
    ends = {end: (start, key) for start, (end, key) in pairs.items()}
    ends["SUBAGENT_ERROR"] = ("SUBAGENT_STARTED", "subagentRunId")
    inside = {
        "TEXT_MESSAGE_CONTENT": ("TEXT_MESSAGE_START", "messageId"),
        "TOOL_CALL_ARGS": ("TOOL_CALL_START", "toolCallId"),
        "REASONING_MESSAGE_CONTENT": ("REASONING_MESSAGE_START", "messageId"),
    }
    for event in events[:-1]:
        kind, owner = event["type"], event.get("subagentRunId") if "STEP" in event["type"] else None
        assert kind == "CUSTOM" or None not in event.values(), event
        if kind in pairs:
            key = (kind, owner, event[pairs[kind][1]])
            assert key not in opened, event
            assert key[2] not in subagents, event
            opened.add(key)
        elif kind in ends:
            start, name = ends[kind]
            assert (start, owner, event[name]) in opened, event
            opened.remove((start, owner, event[name]))
            subagents |= {event[name]} if "SUBAGENT" in kind else set()
        elif kind in inside:
            start, name = inside[kind]
            assert (start, owner, event[name]) in opened, event
            assert event["delta"], event
        assert kind not in ("RUN_FINISHED", "RUN_ERROR")
    assert not opened
    assert events[0]["type"] == "RUN_STARTED"
    assert events[-1]["type"] in ("RUN_FINISHED", "RUN_ERROR")


def test_text_streams_between_the_snapshots() -> None:
    run = Played({"messages": [], "topic": "a", "tools": [1]})
    run.values(messages=[{"type": "human", "id": "u", "content": "hi"}], topic="a")
    run.begin("agent", "1")
    run.part("")
    run.part("Hel")
    run.part([{"type": "text", "text": "lo"}])
    run.part("", chunk_position="last", usage_metadata=USAGE)
    run.finish("agent", "1")
    messages = [
        {"type": "human", "id": "u", "content": "hi"},
        {"type": "ai", "id": "m", "content": "Hello", "usage_metadata": USAGE},
    ]
    run.values(messages=messages, topic="a")
    last = run.end(End(RunStatus.SUCCESS, {"messages": messages, "topic": "a"}))
    assert run.types() == [
        "RUN_STARTED", "STATE_SNAPSHOT", "STEP_STARTED", "TEXT_MESSAGE_START", "TEXT_MESSAGE_CONTENT",
        "TEXT_MESSAGE_CONTENT", "TEXT_MESSAGE_END", "STEP_FINISHED", "STATE_SNAPSHOT", "MESSAGES_SNAPSHOT", "RUN_FINISHED",
    ]  # fmt: skip
    assert run.events[0] == {"type": "RUN_STARTED", "threadId": "t", "runId": "r", "protocolVersion": "1.0"}
    assert run.events[1]["snapshot"] == {"topic": "a"}
    assert run.events[-2]["messages"] == [
        {"id": "u", "role": "user", "content": "hi"},
        {"id": "m", "role": "assistant", "content": "Hello"},
    ]
    counts = {
        "inputTokens": 10,
        "outputTokens": 4,
        "totalTokens": 14,
        "cachedInputTokens": 6,
        "reasoningTokens": 3,
    }
    assert last == {
        "type": "RUN_FINISHED", "threadId": "t", "runId": "r", "outcome": {"type": "success"}, "usage": [counts]
    }  # fmt: skip


def test_calls_stream_with_the_arguments_of_each_part_and_pending_ones_are_named() -> None:
    run = Played()
    run.begin("agent", "1")
    run.part("Let me see")
    run.call(0, '{"a"', id="c1", name="look")
    run.call(1, "", id="c2", name="paint")
    run.call(0, ": 1}")
    run.call(1, "{}")
    run.call(None, "[1]", id="c3", name="loose")
    run.call(None, "[2]")
    run.message({"type": "tool", "id": "r1", "tool_call_id": "c1", "content": "seen"}, task="2")
    assert run.end()["outcome"] == {"type": "success", "pendingToolCallIds": ["c2", "c3"]}
    told = {"c1": "", "c2": "", "c3": ""}
    for event in run.of("TOOL_CALL_ARGS"):
        told[event["toolCallId"]] += event["delta"]
    assert told == {"c1": '{"a": 1}', "c2": "{}", "c3": "[1][2]"}
    assert run.types().index("TEXT_MESSAGE_END") < run.types().index("TOOL_CALL_START")
    (result,) = run.of("TOOL_CALL_RESULT")
    assert result == {
        "type": "TOOL_CALL_RESULT", "messageId": "r1", "toolCallId": "c1", "content": "seen", "role": "tool"
    }  # fmt: skip


def test_a_result_shows_its_call_unless_an_earlier_run_has() -> None:
    earlier = {
        "messages": [
            {"type": "ai", "id": "m0", "content": "", "tool_calls": [{"id": "old", "name": "n", "args": {}}]}
        ]
    }
    run = Played(earlier)
    run.begin("tools", "1")
    run.message(
        {"type": "tool", "id": "a", "tool_call_id": "old", "content": [{"type": "text", "text": "x"}]}
    )
    run.message({"type": "tool", "id": "b", "tool_call_id": "new", "name": "look", "content": {"deep": 1}})
    run.message({"type": "tool", "id": "b", "tool_call_id": "new", "name": "look", "content": "again"})
    run.end()
    assert [event["toolCallId"] for event in run.of("TOOL_CALL_START")] == ["new"]
    assert [event["content"] for event in run.of("TOOL_CALL_RESULT")] == ["x", '{"deep":1}']


def test_messages_that_never_streamed_come_from_the_values() -> None:
    known = {"type": "ai", "id": "m0", "content": "old"}
    run = Played({"messages": [known]})
    run.values(messages=[known, {"type": "human", "id": "u", "content": "hi"}])
    run.begin("agent", "1")
    call = {"id": "c", "name": "look", "args": {"a": 1}}
    new = [
        {"role": "assistant", "id": "m1", "content": "new"},
        {"type": "ai", "id": "m2", "content": "", "tool_calls": [call]},
    ]
    run.values(messages=[known, *new])
    run.values(messages=[known, *new])
    run.end()
    assert [event["delta"] for event in run.of("TEXT_MESSAGE_CONTENT", "TOOL_CALL_ARGS")] == [
        "new",
        '{"a":1}',
    ]


def test_parts_with_the_models_id_and_with_the_librarys_are_one_message() -> None:
    run = Played()
    run.begin("agent", "1")
    run.part("a", id="resp_1")
    run.part("b", id="lc_run--1")
    run.part("", id="lc_run--1", chunk_position="last")
    run.message({"type": "ai", "id": "resp_1", "content": "ab"})
    run.part("c", id="lc_run--2")
    run.part("", id="lc_run--2", chunk_position="last")
    run.message({"type": "ai", "id": "resp_2", "content": "c"})
    run.end()
    assert [(e["messageId"], e["delta"]) for e in run.of("TEXT_MESSAGE_CONTENT")] == [
        ("resp_1", "a"), ("resp_1", "b"), ("lc_run--2", "c"),
    ]  # fmt: skip


def test_reasoning_has_spans_of_its_own() -> None:
    run = Played()
    run.begin("agent", "1")
    run.part([{"type": "thinking", "thinking": "Hm"}])
    run.part([{"type": "thinking", "thinking": "", "signature": "s"}])
    run.part("Yes.")
    run.part([{"type": "reasoning", "summary": [{"type": "summary_text", "text": "More"}]}])
    run.part("", additional_kwargs={"reasoning_content": " thought"})
    run.part([{"type": "redacted_thinking", "data": "d"}], id="other")
    run.call(0, "{}", id="c", name="look")
    run.end()
    spans = [event["messageId"] for event in run.of("REASONING_START")]
    assert spans == ["m-reasoning", "m-reasoning-2", "other-reasoning"]
    assert [e["delta"] for e in run.of("REASONING_MESSAGE_CONTENT")] == ["Hm", "More", " thought"]
    signed = [(e["entityId"], e["encryptedValue"]) for e in run.of("REASONING_ENCRYPTED_VALUE")]
    assert signed == [("m-reasoning", "s"), ("other-reasoning", "d")]


def test_a_call_is_pending_although_the_begin_of_the_stream_is_lost() -> None:
    run = Played()
    run.events += run.run.lost()
    call = {"id": "c", "name": "paint", "args": {}}
    values = {"messages": [{"type": "ai", "id": "a", "content": "", "tool_calls": [call]}]}
    run.values(**values)
    assert run.end(End(RunStatus.SUCCESS, values))["outcome"]["pendingToolCallIds"] == ["c"]


def test_steps_of_one_name_are_numbered() -> None:
    run = Played()
    run.begin("work", "1")
    run.begin("work", "2")
    run.finish("work", "1")
    run.begin("work", "3")
    run.end()
    assert [event["stepName"] for event in run.of("STEP_STARTED")] == ["work", "work#2", "work"]


def test_a_step_costs_the_same_however_many_are_open() -> None:
    run = Played()

    def begin(number: int) -> int:
        return lines_executed(lambda: run.begin("work", str(number)))

    costs = [begin(number) for number in range(300)]
    run.begin("work#301", "of another node")
    run.begin("work", "last")
    names = [event["stepName"] for event in run.of("STEP_STARTED")]
    assert names[-3:] == ["work#300", "work#301", "work#302"]
    assert costs[-1] < 2 * costs[0]


def lines_executed(work: Callable[[], Any]) -> int:
    count, before = 0, sys.gettrace()

    def trace(frame: Any, event: str, arg: Any) -> Any:
        nonlocal count
        count += 1
        return trace

    sys.settrace(trace)
    try:
        work()
    finally:
        sys.settrace(before)
    return count


def test_a_changed_state_is_a_delta_or_the_shorter_snapshot() -> None:
    long = "x" * 200
    run = Played({"text": long, "list": [1], "a/b~": 1})
    run.values(text=long, list=[1], **{"a/b~": 1})
    run.begin("agent", "1")
    assert run.values(text=long, list=[1, 2], new=True) == [
        {
            "type": "STATE_DELTA",
            "delta": [
                {"op": "remove", "path": "/a~1b~0"},
                {"op": "add", "path": "/list/-", "value": 2},
                {"op": "add", "path": "/new", "value": True},
            ],
        }
    ]
    assert run.values(text=long, list=[1, 2], new=True, messages=[], copilotkit={}) == []
    assert run.values(text="y", list=[]) == [
        {"type": "STATE_SNAPSHOT", "snapshot": {"text": "y", "list": []}}
    ]


def state_of_client(events: list[Shown]) -> Any:
    """Return the state of a client that has got these events."""
    state: Any = None
    for event in events:
        if event["type"] == "STATE_SNAPSHOT":
            state = deepcopy(event["snapshot"])
        for operation in event.get("delta", ()) if event["type"] == "STATE_DELTA" else ():
            *path, name = [
                part.replace("~1", "/").replace("~0", "~") for part in operation["path"][1:].split("/")
            ]
            place = reduce(lambda inner, key: inner[key], path, state)
            if operation["op"] == "remove":
                del place[name]
            elif isinstance(place, list):
                assert (operation["op"], name) == ("add", "-")
                place.append(operation["value"])
            else:
                assert (name in place) is (operation["op"] == "replace")
                place[name] = operation["value"]
    return state


def test_the_state_of_the_client_is_right_whichever_parts_of_the_stream_are_lost() -> None:
    states: list[Shown] = [
        {"long": "x" * 200, "list": [0], "of": {"a/b": 1}},
        {"long": "x" * 200, "list": [0, 1], "of": {"a/b": 1, "c": None}},
        {"long": "x" * 200, "list": [0, 1, {"n": True}], "of": {}},
        {"long": "x" * 200, "list": [False, 1, {"n": True}], "of": {"c": []}},
        {"long": "y", "list": [False, True, {"n": 1}]},
    ]
    for lost in range(2 ** len(states)):
        run = Played({"before": 1})
        for at, values in enumerate(states):
            if lost >> at & 1:
                run.newest = values
                run.events += run.run.lost()
                continue
            run.values(**values)
            run.begin("agent", str(at))
            assert in_json(state_of_client(run.events)) == in_json(values), (lost, at)
        run.end()
        assert in_json(state_of_client(run.events)) == in_json(states[-1])


def in_json(value: Any) -> bytes:
    return orjson.dumps(value, option=orjson.OPT_SORT_KEYS)


def test_custom_events_have_their_name_or_the_librarys() -> None:
    run = Played()
    run.add("custom", {"name": "noted", "value": None})
    run.add("custom", "text")
    assert [(e["name"], e["value"]) for e in run.of("CUSTOM")] == [("noted", None), ("langgraph", "text")]


def test_a_subgraph_is_a_subagent_with_its_own_steps_and_messages() -> None:
    run = Played()
    run.begin("team", "1")
    run.begin("write", "2", "team:1")
    run.part("inner", "team:1", id="i", task="2")
    run.begin("deep", "3", "team:1", "write:2")
    run.finish("team", "1")
    run.values(messages=[{"type": "ai", "id": "i", "content": "inner"}])
    run.end()
    started = [
        (e["subagentRunId"], e["name"], e.get("parentSubagentRunId")) for e in run.of("SUBAGENT_STARTED")
    ]
    assert started == [("1", "team", None), ("2", "write", "1")]
    assert [e["subagentRunId"] for e in run.of("SUBAGENT_FINISHED")] == ["2", "1"]
    assert [e.get("subagentRunId") for e in run.of("TEXT_MESSAGE_CONTENT", "STEP_FINISHED")] == [
        "1",
        "2",
        "1",
        None,
    ]


def test_a_failing_or_asking_subgraph_says_so() -> None:
    run = Played()
    run.begin("inner", "2", "team:1")
    run.finish("team", "1", error="boom", result=None)
    assert run.of("SUBAGENT_ERROR") == [{"type": "SUBAGENT_ERROR", "subagentRunId": "1", "message": "boom"}]
    run.begin("inner", "4", "team:3")
    run.end(End(RunStatus.SUCCESS, {}, [QUESTION]))
    (finished,) = run.of("SUBAGENT_FINISHED")
    assert finished["outcome"] == {"type": "suspended", "interruptIds": ["q"]}


def test_subgraphs_are_not_shown_to_old_clients_and_to_those_that_decline() -> None:
    for run in (Played(old=True), Played(subgraphs=False)):
        run.begin("inner", "2", "team:1")
        run.part("inner", "team:1", task="2")
        run.end()
        assert run.types() == ["RUN_STARTED", "STATE_SNAPSHOT", "STATE_SNAPSHOT", "RUN_FINISHED"]


def test_another_attempt_begins_at_the_checkpoint() -> None:
    kept = {"type": "human", "id": "u", "content": "hi"}
    run = Played()
    run.values(messages=[kept], n=1)
    run.begin("team", "1")
    run.part("lost", "team:1", id="lost", task="1")
    run.call(0, "{", id="c", name="look")
    run.add("metadata", {"run_id": "x", "attempt": 2})
    begun = run.values(messages=[kept], n=1)
    assert [event["type"] for event in begun] == ["STATE_SNAPSHOT", "MESSAGES_SNAPSHOT"]
    run.begin("team", "1")
    run.part("found", "team:1", id="found", task="1")
    assert run.end(End(RunStatus.SUCCESS, {"messages": [kept], "n": 1}))["outcome"] == {"type": "success"}
    assert [event["subagentRunId"] for event in run.of("SUBAGENT_STARTED")] == ["1", "1#2"]


def test_everything_is_closed_at_each_end() -> None:
    ends: list[tuple[End, dict[str, Any]]] = [
        (End(RunStatus.SUCCESS, None), {"outcome": {"type": "success", "pendingToolCallIds": ["c"]}}),
        (End(RunStatus.INTERRUPTED, {}), {"outcome": {"type": "cancelled"}}),
        (End(ROLLBACK, {}), {"outcome": {"type": "cancelled"}}),
        (End(RunStatus.ERROR, {}, error={"error": "ValueError", "message": "boom"}), {"message": "ValueError: boom", "code": "ValueError"}),
        (End(RunStatus.TIMEOUT, {}), {"message": "Error: timeout", "code": "Error"}),
    ]  # fmt: skip
    for end, expected in ends:
        run = Played()
        run.begin("agent", "1")
        run.part([{"type": "thinking", "thinking": "Hm"}], id="n")
        run.part("text")
        run.call(0, "{", id="c", name="look")
        run.begin("inner", "3", "team:2")
        assert run.end(end).items() >= expected.items()


def test_a_stopped_stream_ends_with_an_error() -> None:
    run = Played()
    run.begin("agent", "1")
    run.part("text")
    run.events += run.run.stopped("stopping", "The service is shutting down.")
    check(run.events)
    assert run.events[-1]["code"] == "stopping"


def test_the_error_of_the_stream_is_that_of_a_failed_run_without_one() -> None:
    run = Played()
    run.add("error", {"error": "KeyError", "message": "x"})
    assert run.end(End(RunStatus.ERROR, None))["message"] == "KeyError: x"


def test_old_clients_get_no_newer_outcome() -> None:
    run = Played(old=True)
    run.call(0, "{}", id="c", name="look")
    assert run.end()["outcome"] == {"type": "success"}
    run = Played(old=True)
    cancelled = run.end(End(RunStatus.INTERRUPTED, {}))
    assert (cancelled["type"], cancelled["code"]) == ("RUN_ERROR", "cancelled")


def test_interrupts_end_a_run() -> None:
    plain = {"id": "p", "value": "Sure?", "response_schema": {"type": "boolean"}}
    run = Played()
    last = run.end(End(RunStatus.SUCCESS, {}, [QUESTION, plain]))
    assert last["outcome"] == {
        "type": "interrupt",
        "interrupts": [
            {
                "id": "q",
                "reason": "langgraph:interrupt",
                "message": "May I?",
                "toolCallId": "c",
                "expiresAt": "2027-01-01T00:00:00Z",
                "metadata": {"langgraph": {"raw": QUESTION["value"]}},
            },
            {
                "id": "p",
                "reason": "langgraph:interrupt",
                "message": "Sure?",
                "responseSchema": {"type": "boolean"},
                "metadata": {"langgraph": {"raw": "Sure?"}},
            },
        ],
    }
    asked = [orjson.dumps(QUESTION["value"]).decode(), "Sure?"]
    assert [(e["name"], e["value"]) for e in run.of("CUSTOM")] == [("on_interrupt", value) for value in asked]


def test_a_client_that_joins_gets_the_text_so_far_and_appends_to_it() -> None:
    run = Played()
    run.values(messages=[{"type": "human", "id": "u", "content": "hi"}], n=1)
    run.begin("agent", "1")
    run.begin("inner", "3", "team:2")
    run.part("so ")
    run.part("far")
    run.call(0, '{"a"', id="c", name="look")
    run.part([{"type": "thinking", "thinking": "Hm"}], id="n")
    joined = run.events = run.run.joined()
    assert [event["type"] for event in joined] == [
        "RUN_STARTED", "MESSAGES_SNAPSHOT", "STATE_SNAPSHOT", "SUBAGENT_STARTED", "STEP_STARTED", "STEP_STARTED",
        "TOOL_CALL_START", "REASONING_START", "REASONING_MESSAGE_START",
    ]  # fmt: skip
    assert joined[1]["messages"][1] == {
        "id": "m",
        "role": "assistant",
        "content": "so far",
        "toolCalls": [{"id": "c", "type": "function", "function": {"name": "look", "arguments": '{"a"'}}],
    }
    run.call(0, ": 1}")
    run.end()


def test_parts_of_any_form_are_taken() -> None:
    run = Played([1])
    odd: list[Any] = [None, 1, "x", [], {}, [1, 2], [{}, {}], [{"type": "ai"}, None], [{"type": "tool"}, {}]]
    chunk = {"type": "AIMessageChunk"}
    messages: list[Shown] = [
        {**chunk, "content": [None, {"type": "reasoning"}, {"type": "thinking", "thinking": 1}]},
        {"type": "ai", "tool_calls": [None, {}, {"id": "x", "name": "y", "args": "z"}], "usage_metadata": 1},
        {**chunk, "tool_call_chunks": [None, {}, {"args": 1}], "usage_metadata": {"input_tokens": True}},
    ]
    odd += [[message, {}] for message in messages]
    names = (
        "messages",
        "values",
        "tasks",
        "custom",
        "metadata",
        "error",
        "updates",
        "values|odd",
        "messages|a:1||b",
    )
    for name in names:
        for data in odd:
            run.add(name, data)
    run.end(End(RunStatus.SUCCESS, [{"messages": 1}]))
