"""Which model call each streamed message is of, and how the calls ended.

The library's stream of messages says neither. A callback handler knows both; it is given to the graph before the
library's own, so that what it notes of a message is known when the message is streamed.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.messages import BaseMessage
from langchain_core.outputs import ChatGenerationChunk, LLMResult
from langgraph.constants import TAG_NOSTREAM

NODES = 1000  # as many of the newest are remembered: more do not end between a node's output and its event


@dataclass
class ModelCall:
    """One call of a chat model."""

    run_id: str
    produced: int = 0  # messages that will be in the stream
    streamed: int = 0  # of them, those that have been
    is_reported: bool = False  # its message has been sent whole
    error: BaseException | None = None
    answer: BaseMessage | None = None

    @property
    def is_streamed(self) -> bool:
        """Whether all that will be in the stream has been; the answer is, where there were no chunks of it."""
        return self.streamed >= (self.produced or (self.answer is not None))


class ModelCalls(BaseCallbackHandler):
    """Notes the model calls of one run. Nodes may call models from several threads at a time."""

    run_inline = True  # else the library starts a thread for each call of it

    def __init__(self) -> None:
        self.over: deque[ModelCall] = deque()  # ended, in this order; whoever streams takes them out
        self._calls: dict[UUID, ModelCall] = {}
        self._said: dict[int, tuple[BaseMessage, ModelCall]] = {}  # by identity, until it is streamed
        self._nodes: OrderedDict[int, Any] = OrderedDict()  # metadata of nodes, by identity

    def call_of(self, message: BaseMessage) -> ModelCall | None:
        """The call a streamed message is of; None for one that comes from no model."""
        found = self._said.pop(id(message), None)
        if found is None:
            return None
        found[1].streamed += 1
        return found[1]

    def is_returned(self, metadata: Any) -> bool:
        """Whether a message with this metadata, of no model call, is one that a node has returned."""
        return id(metadata) in self._nodes

    def forget(self, call: ModelCall) -> None:
        """All of a call has been streamed: its whole answer will not be."""
        if call.answer is not None:
            self._said.pop(id(call.answer), None)

    def on_chain_start(
        self,
        serialized: dict[str, Any] | None,
        inputs: Any,
        *,
        run_id: UUID,
        metadata: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        if metadata and kwargs.get("name") == metadata.get("langgraph_node"):
            self._nodes[id(metadata)] = metadata
            while len(self._nodes) > NODES:
                self._nodes.popitem(last=False)

    def on_chat_model_start(
        self,
        serialized: dict[str, Any] | None,
        messages: list[list[BaseMessage]],
        *,
        run_id: UUID,
        tags: list[str] | None = None,
        metadata: dict[str, Any] | None = None,
        **_: Any,
    ) -> None:
        if metadata and TAG_NOSTREAM not in (tags or ()):
            self._calls[run_id] = ModelCall(str(run_id))

    def on_llm_new_token(self, token: Any, *, chunk: Any = None, run_id: UUID, **_: Any) -> None:
        call = self._calls.get(run_id)
        if call is not None and isinstance(chunk, ChatGenerationChunk):
            call.produced += 1
            self._said[id(chunk.message)] = (chunk.message, call)

    def on_llm_end(self, response: LLMResult, *, run_id: UUID, **_: Any) -> None:
        call = self._calls.pop(run_id, None)
        if call is None:
            return
        first = response.generations[0] if response.generations else None
        message = getattr(first[0], "message", None) if first else None
        if isinstance(message, BaseMessage):
            call.answer = message
            self._said[id(message)] = (message, call)
        self.over.append(call)

    def on_llm_error(self, error: BaseException, *, run_id: UUID, **_: Any) -> None:
        call = self._calls.pop(run_id, None)
        if call is not None:
            call.error = error
            self.over.append(call)
