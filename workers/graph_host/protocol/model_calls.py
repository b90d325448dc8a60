"""Assignment of streamed messages to model calls, and the ends of these calls.

LangGraph's stream of messages contains neither. A callback handler receives both. It is registered before LangGraph's
own handler, so that the call of a message is already known when the message is streamed.
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

NODES = 1000  # remembered nodes, the newest; fewer than this end between a node's output and its event


@dataclass
class ModelCall:
    """One call of a chat model."""

    run_id: str
    produced: int = 0  # chunks that will appear in the stream
    streamed: int = 0  # messages that have appeared in the stream
    is_reported: bool = False  # the whole message has been sent
    error: BaseException | None = None
    answer: BaseMessage | None = None

    @property
    def is_streamed(self) -> bool:
        """Whether all messages of this call have been streamed: its chunks, or its answer if it had no chunks."""
        return self.streamed >= (self.produced or (self.answer is not None))


class ModelCalls(BaseCallbackHandler):
    """Records the model calls of one run. Several threads may call models at the same time."""

    run_inline = True  # otherwise LangChain starts a thread for each call of the handler

    def __init__(self) -> None:
        self.over: deque[ModelCall] = deque()  # ended calls in order; the writer removes them
        self._calls: dict[UUID, ModelCall] = {}
        self._said: dict[int, tuple[BaseMessage, ModelCall]] = {}  # messages not streamed yet, by identity
        self._nodes: OrderedDict[int, Any] = OrderedDict()  # metadata of nodes, by identity

    def call_of(self, message: BaseMessage) -> ModelCall | None:
        """Return the model call of a streamed message; None if the message comes from no model call."""
        found = self._said.pop(id(message), None)
        if found is None:
            return None
        found[1].streamed += 1
        return found[1]

    def is_returned(self, metadata: Any) -> bool:
        """Whether a message with this metadata was returned by a node. For messages of no model call."""
        return id(metadata) in self._nodes

    def forget(self, call: ModelCall) -> None:
        """Forget the answer of a call whose chunks have all been streamed. The whole answer will not be streamed."""
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
