"""Streamed messages: the model calls that produce them, and their events of protocol v2, block by block.

LangGraph's stream of messages contains neither the calls nor their ends. A callback handler receives both. It is
registered before LangGraph's own handler, so that the call of a message is already known when the message is streamed.

The sequence of events is message-start, then for each block content-block-start, its deltas and content-block-finish, then
message-finish. The blocks of one message never interleave. A block that a model begins before the previous one has
ended is held back.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from json import loads as json_loads
from typing import Any
from uuid import UUID

from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage, ToolMessage
from langchain_core.messages.ai import UsageMetadata, add_usage
from langchain_core.outputs import ChatGenerationChunk, LLMResult
from langgraph.constants import TAG_NOSTREAM

NODES = 1000  # remembered nodes, the newest; fewer than this end between a node's output and its event
Block = dict[str, Any]
Event = dict[str, Any]
ROLES = {"human": "human", "system": "system", "tool": "tool"}  # by message type; other types are `ai`
PROSE = {"text": "text", "reasoning": "reasoning"}  # types with streamed content, and its field
CALLS = {"tool_call_chunk": "tool_call", "server_tool_call_chunk": "server_tool_call"}  # chunk → whole type
OF_CALLS = frozenset({"tool_call_chunk", "tool_call", "invalid_tool_call"})
# Fields whose text arrives in pieces.
JOINED = frozenset({"text", "reasoning", "args", "data", "base64", "transcript"})
# Fields that are left out until a block is finished, and their placeholders by block type.
HEAVY = frozenset({"args", "base64", "data", "output", "transcript", "value"})
NEEDED = {"tool_call": {"args": {}}, "server_tool_call": {"args": {}}, "non_standard": {"value": {}}}
UNREADABLE = "Failed to parse tool call arguments as JSON"


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
        self.ended: deque[ModelCall] = deque()  # in order; the writer removes them
        self._calls: dict[UUID, ModelCall] = {}
        # Messages not streamed yet, by identity.
        self._unstreamed: dict[int, tuple[BaseMessage, ModelCall]] = {}
        self._nodes: OrderedDict[int, Any] = OrderedDict()  # metadata of nodes, by identity

    def call_of(self, message: BaseMessage) -> ModelCall | None:
        """Return the model call of a streamed message; None if the message comes from no model call."""
        entry = self._unstreamed.pop(id(message), None)
        if entry is None:
            return None
        entry[1].streamed += 1
        return entry[1]

    def is_returned(self, metadata: Any) -> bool:
        """Whether a message with this metadata was returned by a node. For messages of no model call."""
        return id(metadata) in self._nodes

    def forget(self, call: ModelCall) -> None:
        """Forget the answer of a call whose chunks have all been streamed. The whole answer will not be streamed."""
        if call.answer is not None:
            self._unstreamed.pop(id(call.answer), None)

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
            self._unstreamed[id(chunk.message)] = (chunk.message, call)

    def on_llm_end(self, response: LLMResult, *, run_id: UUID, **_: Any) -> None:
        call = self._calls.pop(run_id, None)
        if call is None:
            return
        first = response.generations[0] if response.generations else None
        message = getattr(first[0], "message", None) if first else None
        if isinstance(message, BaseMessage):
            call.answer = message
            self._unstreamed[id(message)] = (message, call)
        self.ended.append(call)

    def on_llm_error(self, error: BaseException, *, run_id: UUID, **_: Any) -> None:
        call = self._calls.pop(run_id, None)
        if call is not None:
            call.error = error
            self.ended.append(call)


class MessageBlocks:
    """A message that is being streamed. Its events are yielded as its chunks arrive."""

    def __init__(self, message: BaseMessage) -> None:
        self.id = message.id or ""
        self._open: deque[_Block] = deque()  # the first block streams, the others are held back
        self._by_key: dict[Any, _Block] = {}
        self._count = 0
        self._usage: UsageMetadata | None = None
        self._metadata: dict[str, Any] = {}

    def begin(self, message: BaseMessage, metadata: Mapping[str, Any]) -> Event:
        """Return the first event of a message. `metadata` is the metadata of the graph's stream."""
        start: Event = {"event": "message-start", "role": ROLES.get(message.type, "ai"), "id": self.id}
        if isinstance(message, ToolMessage):
            start["tool_call_id"] = message.tool_call_id
        known = message.response_metadata or {}
        described = {
            "provider": known.get("model_provider") or metadata.get("ls_provider"),
            "model": known.get("model_name") or metadata.get("ls_model_name"),
            "langgraph_node": metadata.get("langgraph_node"),
        }
        start["metadata"] = {name: value for name, value in described.items() if isinstance(value, str)}
        return start

    def add(self, message: BaseMessage) -> Iterator[Event]:
        """Yield the events of a chunk. A whole message counts as its only chunk."""
        for key, block in _slices(message):
            yield from self._take(key, block)
        self._metadata.update(message.response_metadata or {})
        if isinstance(message, AIMessage) and message.usage_metadata:
            self._usage = add_usage(self._usage, message.usage_metadata)

    def finish(self) -> Iterator[Event]:
        """Yield the events that end the open blocks and the message."""
        for block in self._open:
            yield from block.begin()
            yield block.finish()
        self._open.clear()
        end: Event = {"event": "message-finish"}
        if self._usage:
            end["usage"] = self._usage
        reason = self._metadata.get("finish_reason") or self._metadata.get("stop_reason")
        if isinstance(reason, str):
            end["reason"] = reason
        if self._metadata:
            end["metadata"] = self._metadata
        yield end

    def _take(self, key: Any, slice: Block) -> Iterator[Event]:
        block = self._by_key.get(key)
        if block is None or block.is_finished:
            if _is_empty(slice) or (block is not None and _goes_on(slice)):
                return
            block = self._by_key[key] = _Block(self._count)
            self._count += 1
            self._open.append(block)
        block.merge(slice)
        if block.is_begun:
            yield from block.delta(slice)
        while len(self._open) > 1 and self._open[0].may_end:
            yield from self._open[0].begin()
            yield self._open.popleft().finish()
        yield from self._open[0].begin()


class _Block:
    """One content block, with its merged content and its streaming state."""

    def __init__(self, index: int) -> None:
        self._index = index
        self._state: Block = {}
        self.is_begun = False
        self.is_finished = False

    @property
    def may_end(self) -> bool:
        """Whether this block seems complete, so that it can end once another block has begun."""
        if self._state["type"] not in CALLS:
            return True
        args = (self._state.get("args") or "").rstrip()
        return args.endswith("}") and _parsed(args) is not None

    def merge(self, slice: Block) -> None:
        state = self._state
        for name, value in slice.items():
            known = state.get(name)
            if name in JOINED and isinstance(known, str) and isinstance(value, str):
                state[name] = known + value
            elif isinstance(known, list) and isinstance(value, list):
                state[name] = [*known, *value]
            elif isinstance(known, dict) and isinstance(value, dict):
                state[name] = {**known, **value}
            elif value is not None or name not in state:
                state[name] = value

    def begin(self) -> Iterator[Event]:
        """Yield the start event and the content received so far. Yields nothing on later calls."""
        if self.is_begun:
            return
        self.is_begun = True
        yield {"event": "content-block-start", "index": self._index, "content": _outline(self._state)}
        yield from self.delta(self._state)

    def delta(self, slice: Block) -> Iterator[Event]:
        delta = _delta(slice)
        if delta is not None:
            yield {"event": "content-block-delta", "index": self._index, "delta": delta}

    def finish(self) -> Event:
        self.is_finished = True
        return {"event": "content-block-finish", "index": self._index, "content": _whole(self._state)}


def _slices(message: BaseMessage) -> Iterator[tuple[Any, Block]]:
    """Yield the blocks of a chunk as `(key, block)`. The key identifies the block within its message."""
    content = message.content
    calls = message.tool_call_chunks if isinstance(message, AIMessageChunk) else ()
    if isinstance(content, str) and not message.additional_kwargs and isinstance(message, AIMessageChunk):
        blocks: list[Any] = [{"type": "text", "text": content}] if content else []
    else:
        blocks = _blocks(message)
    for position, block in enumerate(blocks):
        if not isinstance(block, dict) or (calls and block.get("type") in OF_CALLS):
            continue
        index = block.get("index")
        yield (block.get("type"), position if index is None else index), block
    for position, call in enumerate(calls):
        index = call.get("index")
        chunk: Block = {"type": "tool_call_chunk", **{k: v for k, v in call.items() if k != "type"}}
        yield ("tool_call_chunk", ("at", position) if index is None else index), chunk
    if not isinstance(message, AIMessageChunk):
        for position, invalid in enumerate(getattr(message, "invalid_tool_calls", None) or ()):
            yield ("invalid_tool_call", position), {**invalid, "type": "invalid_tool_call"}


def _blocks(message: BaseMessage) -> list[Any]:
    try:
        return list(message.content_blocks)
    except Exception:  # any error of a provider's translator, or unknown content
        text = message.content if isinstance(message.content, str) else ""
        return [{"type": "text", "text": text}] if text else []


def _is_empty(slice: Block) -> bool:
    field = PROSE.get(slice.get("type", ""))
    return field is not None and not slice.get(field) and not (slice.keys() - {"type", "index", field})


def _goes_on(slice: Block) -> bool:
    """Whether this is a later piece of a tool call."""
    return slice.get("type") in CALLS and not slice.get("name")


def _delta(slice: Block) -> Block | None:
    """Return the delta of a slice; None if its content is sent only when the block is finished."""
    type_ = slice.get("type", "")
    field = PROSE.get(type_)
    if field is not None:
        return {"type": f"{type_}-delta", field: slice[field]} if slice.get(field) else None
    if type_ in CALLS:
        return {"type": "tool-call-delta", "args": slice["args"]} if slice.get("args") else None
    if isinstance(slice.get("data"), str) and slice["data"]:
        encoding = {"encoding": slice["encoding"]} if "encoding" in slice else {}
        return {"type": "data-delta", "data": slice["data"], **encoding}
    return None


def _outline(state: Block) -> Block:
    """Return a block without the content that its deltas or its finish event transmit."""
    type_ = state.get("type", "")
    field = PROSE.get(type_)
    if field is not None:
        return {**{k: v for k, v in state.items() if k not in (field, "index", "annotations")}, field: ""}
    if type_ in CALLS:
        known = {"id": state.get("id"), "name": state.get("name"), "args": ""}
        index = {} if state.get("index") is None else {"index": state["index"]}
        return {"type": type_, **known, **index}
    return {**{k: v for k, v in state.items() if k not in HEAVY}, **NEEDED.get(type_, {})}


def _whole(state: Block) -> Block:
    """Return the finished block. A call whose arguments are not a JSON object becomes an invalid tool call."""
    type_ = state.get("type", "")
    if type_ not in CALLS:
        return state
    dropped = {"type", "id", "name", "args", *(("index",) if type_ == "tool_call_chunk" else ())}
    rest = {k: v for k, v in state.items() if k not in dropped and v is not None}
    id, name, raw = state.get("id"), state.get("name"), state.get("args") or "{}"
    args = _parsed(raw)
    if args is None:
        return {"type": "invalid_tool_call", "id": id, "name": name, "args": raw, "error": UNREADABLE, **rest}
    return {"type": CALLS[type_], "id": id or "", "name": name or "", "args": args, **rest}


def _parsed(args: str) -> dict[str, Any] | None:
    try:
        document = json_loads(args)
    except ValueError:
        return None
    return document if isinstance(document, dict) else None
