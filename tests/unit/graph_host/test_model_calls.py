"""Which model call a streamed message is of, where calls end on another thread than the one that streams."""

from __future__ import annotations

import json
from typing import Any
from uuid import uuid4

from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage
from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, LLMResult

from workers.graph_host.protocol.log import ProtocolLog
from workers.graph_host.protocol.writer import ProtocolWriter

METADATA = {"langgraph_node": "agent"}


class Streamed:
    """One model call whose messages are streamed when the test says so."""

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
        """The names of the events that are written of these."""
        for message in messages:
            self._writer.handlers["messages"]((), (message, METADATA))
        self._writer.close("completed", None, ())
        return [event["event"] for event in self.sent]


def test_a_call_that_is_over_before_its_last_chunk_is_streamed_is_one_message() -> None:
    """A synchronous node's thread runs ahead of the loop that streams."""
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
