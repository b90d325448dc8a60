"""Messages as content blocks: which are streamed, which wait for the end, and the finished blocks."""

from __future__ import annotations

import json
from typing import Any
from uuid import uuid4

import pytest
from langchain_core.messages import (
    AIMessage,
    AIMessageChunk,
    BaseMessage,
    HumanMessage,
    SystemMessage,
    ToolMessage,
)
from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, LLMResult

from workers.graph_host.protocol.log import ProtocolLog
from workers.graph_host.protocol.messages import MessageBlocks
from workers.graph_host.protocol.writer import ProtocolWriter


def events_of(*messages: BaseMessage) -> list[dict[str, Any]]:
    blocks = MessageBlocks(messages[0])
    events = [blocks.begin(messages[0], {"langgraph_node": "n", "ls_provider": "p"})]
    for message in messages:
        events += blocks.add(message)
    return [*events, *blocks.finish()]


def chunk(content: Any = "", **fields: Any) -> AIMessageChunk:
    return AIMessageChunk(content=content, id="1", **fields)


def call(index: int | None, args: str | None, **known: Any) -> AIMessageChunk:
    piece = {"index": index, "args": args, "id": None, "name": None, **known}
    return chunk(tool_call_chunks=[piece])


def brief(events: list[dict[str, Any]]) -> list[Any]:
    """Reduce events to pairs of block index and what happened to the block."""
    short = {"content-block-start": "start", "content-block-finish": "finish"}
    return [
        (event["index"], event["delta"].get("text") or event["delta"].get("args"))
        if event["event"] == "content-block-delta"
        else (event["index"], short[event["event"]])
        for event in events
        if "index" in event
    ]


def finished(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [event["content"] for event in events if event["event"] == "content-block-finish"]


def test_text_streams_as_one_block() -> None:
    events = events_of(chunk("a"), chunk(""), chunk("b", response_metadata={"finish_reason": "stop"}))

    assert events == [
        {
            "event": "message-start",
            "role": "ai",
            "id": "1",
            "metadata": {"provider": "p", "langgraph_node": "n"},
        },
        {"event": "content-block-start", "index": 0, "content": {"type": "text", "text": ""}},
        {"event": "content-block-delta", "index": 0, "delta": {"type": "text-delta", "text": "a"}},
        {"event": "content-block-delta", "index": 0, "delta": {"type": "text-delta", "text": "b"}},
        {"event": "content-block-finish", "index": 0, "content": {"type": "text", "text": "ab"}},
        {"event": "message-finish", "reason": "stop", "metadata": {"finish_reason": "stop"}},
    ]


def test_a_block_ends_before_the_next_begins() -> None:
    events = events_of(
        chunk("a"), call(1, "", id="c", name="f"), call(1, '{"x":'), call(1, " 1}"), call(1, ""), chunk("b")
    )

    assert brief(events) == [
        (0, "start"),
        (0, "a"),
        (0, "finish"),
        (1, "start"),
        (1, '{"x":'),
        (1, " 1}"),
        (1, "finish"),
        (2, "start"),
        (2, "b"),
        (2, "finish"),
    ]
    assert finished(events)[1] == {"type": "tool_call", "id": "c", "name": "f", "args": {"x": 1}}


def test_calls_that_a_model_writes_at_once_are_sent_one_after_the_other() -> None:
    events = events_of(
        call(0, "", id="a", name="f"),
        call(1, "", id="b", name="g"),
        call(0, '{"x":'),
        call(1, '{"y": '),
        call(0, " 1}"),
        call(1, "2}"),
    )

    assert brief(events) == [
        (0, "start"),
        (0, '{"x":'),
        (0, " 1}"),
        (0, "finish"),
        (1, "start"),
        (1, '{"y": '),
        (1, "2}"),
        (1, "finish"),
    ]
    assert [(block["id"], block["args"]) for block in finished(events)] == [("a", {"x": 1}), ("b", {"y": 2})]


@pytest.mark.parametrize("args", ['{"broken', "[1]"])
def test_a_call_that_cannot_be_read_is_invalid(args: str) -> None:
    (block,) = finished(events_of(call(0, args, id="c", name="f")))
    assert (block["type"], block["id"], block["name"], block["args"]) == ("invalid_tool_call", "c", "f", args)
    assert block["error"]


def test_a_call_without_arguments_has_none() -> None:
    assert finished(events_of(call(None, "", id="c", name="f"))) == [
        {"type": "tool_call", "id": "c", "name": "f", "args": {}}
    ]


def test_reasoning_and_text_are_blocks_of_their_own() -> None:
    events = events_of(
        chunk([{"type": "reasoning", "reasoning": "h", "index": 0}]),
        chunk([{"type": "reasoning", "reasoning": "m", "index": 0, "extras": {"signature": "s"}}]),
        chunk([{"type": "text", "text": "so", "index": 1}]),
    )

    assert [event["delta"] for event in events if "delta" in event] == [
        {"type": "reasoning-delta", "reasoning": "h"},
        {"type": "reasoning-delta", "reasoning": "m"},
        {"type": "text-delta", "text": "so"},
    ]
    first, second = finished(events)
    assert (first["reasoning"], first["extras"]) == ("hm", {"signature": "s"})
    assert second["text"] == "so"


def test_heavy_content_comes_with_the_end_of_its_block_alone() -> None:
    image = {"type": "image", "base64": "AAAA", "mime_type": "image/png"}
    events = events_of(chunk([image]))

    assert events[1]["content"] == {"type": "image", "mime_type": "image/png"}
    assert finished(events) == [image]
    assert not any("delta" in event for event in events)

    used = [
        {"input_tokens": 5, "output_tokens": 0, "total_tokens": 5},
        {"input_tokens": 0, "output_tokens": 2, "total_tokens": 2},
    ]
    events = events_of(*(chunk("a", usage_metadata=piece) for piece in used))
    assert {k: v for k, v in events[-1]["usage"].items() if v} == {
        "input_tokens": 5,
        "output_tokens": 2,
        "total_tokens": 7,
    }


def test_a_whole_message_goes_through_the_same_life() -> None:
    message = AIMessage(
        "hi",
        id="1",
        tool_calls=[{"id": "c", "name": "f", "args": {"x": 1}}],
        invalid_tool_calls=[
            {"id": "d", "name": "g", "args": "{", "error": "no", "type": "invalid_tool_call"}
        ],
    )
    events = events_of(message)

    assert [block["type"] for block in finished(events)] == ["text", "tool_call", "invalid_tool_call"]
    assert finished(events)[1]["args"] == {"x": 1}
    assert [event["event"] for event in events].count("content-block-delta") == 1


@pytest.mark.parametrize(
    ("message", "start"),
    [
        (HumanMessage("a", id="1"), {"role": "human"}),
        (SystemMessage("a", id="1"), {"role": "system"}),
        (AIMessage("a", id="1"), {"role": "ai"}),
        (ToolMessage("a", id="1", tool_call_id="c"), {"role": "tool", "tool_call_id": "c"}),
    ],
)
def test_a_message_says_whose_it_is(message: BaseMessage, start: dict[str, str]) -> None:
    first, *_ = events = events_of(message)
    assert {**first, **start} == first
    assert finished(events) == [{"type": "text", "text": "a"}]


def test_content_that_no_translator_understands_is_shown_as_text_or_not_at_all() -> None:
    class Odd(AIMessage):
        @property
        def content_blocks(self) -> Any:
            raise ValueError("what is this?")

    assert finished(events_of(Odd("a", id="1"))) == [{"type": "text", "text": "a"}]
    assert finished(events_of(Odd([{"type": "x"}], id="1"))) == []


# The model call to which a streamed message belongs


METADATA = {"langgraph_node": "agent"}


class Streamed:
    """A finished model call whose messages the test streams later."""

    def __init__(self, *chunks: AIMessageChunk, answer: BaseMessage) -> None:
        self.sent: list[dict[str, Any]] = []
        log = ProtocolLog(lambda head, params: self.sent.append(json.loads(params)["data"]), max_bytes=10_000)
        self._writer = ProtocolWriter(log)
        self.id = uuid4()
        calls = self._writer.calls
        calls.on_chat_model_start(None, [], run_id=self.id, metadata=METADATA)
        for chunk in chunks:
            calls.on_llm_new_token("", chunk=ChatGenerationChunk(message=chunk), run_id=self.id)
        calls.on_llm_end(LLMResult(generations=[[ChatGeneration(message=answer)]]), run_id=self.id)

    def stream(self, *messages: BaseMessage) -> list[str]:
        """Stream the messages and return the names of the resulting events."""
        for message in messages:
            self._writer.handlers["messages"]((), (message, METADATA))
        self._writer.close("completed", None, ())
        return [event["event"] for event in self.sent]


def test_a_call_that_is_over_before_its_last_chunk_is_streamed_is_one_message() -> None:
    """The thread of a synchronous node may finish the call before the loop streams its chunks."""
    last = AIMessageChunk("", id="m", chunk_position="last")
    chunks = [AIMessageChunk("one ", id="m"), AIMessageChunk("two", id="m"), last]

    events = Streamed(*chunks, answer=AIMessage(content="one two", id="m")).stream(*chunks)

    assert events == [
        "message-start",
        "content-block-start",
        "content-block-delta",
        "content-block-delta",
        "content-block-finish",
        "message-finish",
    ]


def test_an_answer_without_chunks_is_of_its_call_however_late_it_is_streamed() -> None:
    answer = AIMessage(content="whole", id="m")
    call = Streamed(answer=answer)

    events = call.stream(AIMessage(content="other", id="o"), answer)

    assert (events.count("message-start"), events.count("message-finish")) == (2, 2)
    assert {event["run_id"] for event in call.sent if event["message_id"] == "m"} == {str(call.id)}
