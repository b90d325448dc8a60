"""Messages, tool calls and reasoning that a run shows, and the events that open, extend and close them.

A text, a call or a span of reasoning is closed before the next event that ends it: a text before a call of its message,
and everything of a node when the node ends. A client refuses a second start of something that is open, and refuses the
end of a run while anything is open. It accepts that a closed text is opened again: its parts add up.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from web.deployment_api.protocols.ag_ui.messages import (
    Json,
    assistant_fields,
    calls_of,
    json_text,
    role_of,
    tool_text,
    with_ids,
)
from web.deployment_api.protocols.ag_ui.usage import Usage
from web.deployment_api.protocols.conversation import text_of

Emit = Callable[..., None]  # takes the type of an event, the subagent and the fields
CHUNK = "AIMessageChunk"
# Prefixes of the ids that LangChain gives to parts of a message without an id of the model.
GENERATED_IDS = ("lc_run", "run-")


@dataclass
class ToolCall:
    id: str
    name: str
    arguments: list[str] = field(default_factory=list)
    is_open: bool = False
    has_result: bool = False


@dataclass
class Shown:
    """An assistant's message that this run has shown, at least in part."""

    id: str
    task: str  # id of the node's task that writes it
    subagent: str | None
    texts: list[str] = field(default_factory=list)
    calls: dict[str, ToolCall] = field(default_factory=dict)
    by_index: dict[Any, ToolCall] = field(default_factory=dict)  # of a streamed message
    is_open: bool = False  # its text
    is_ended: bool = False
    reasoning: str = ""  # id of the open span
    spans: int = 0


class Transcript:
    """The messages of one run. `values` is the state before the run: its messages have been shown already."""

    def __init__(self, emit: Emit, values: Any) -> None:
        self._emit = emit
        self.usage = Usage()
        self._counted: set[str] = set()  # messages whose usage is counted
        self._aliases: dict[str, str] = {}
        self._newest: dict[str, Shown] = {}  # by task
        self.reset(values)

    def reset(self, values: Any) -> None:
        """Begin again after the messages of a state. The client has these messages, and no others."""
        self._messages: dict[str, Shown] = {}
        self._calls: dict[str, ToolCall] = {}
        self._known: set[str] = set()
        self._known_calls: set[str] = set()
        self.know(values)

    def know(self, values: Any) -> None:
        """Mark the messages of a state as known: events never show them again."""
        for id, message in with_ids(values):
            self._known.add(id)
            self._known_calls.update(id for id, _, _ in calls_of(message))

    @property
    def pending_calls(self) -> list[str]:
        """Calls that this run has shown without a result, in order."""
        return [call.id for call in self._calls.values() if not call.has_result]

    def add(self, message: Json, metadata: Mapping[str, Any], subagent: str | None) -> None:
        """Show a message of the stream: a part of one, or a whole one."""
        role = role_of(message)
        if role == "tool":
            self._show_result(message, subagent)
        elif role == "assistant":
            is_part = message.get("type") == CHUNK
            shown = self._shown_of(message, _task_of(metadata), subagent, is_part=is_part)
            if shown is not None:
                (self._extend if is_part else self._complete)(shown, message, metadata)

    def reconcile(self, values: Any, subagent: str | None) -> None:
        """Show the messages of a state that the stream has not shown, such as those that a node returned as objects."""
        for id, message in with_ids(values):
            if id not in self._known and (role := role_of(message)) in ("assistant", "tool"):
                self.add({**message, "id": id, "type": "ai" if role == "assistant" else "tool"}, {}, subagent)

    def close_task(self, task: str) -> None:
        """Close everything that a node's task has opened."""
        self._newest.pop(task, None)
        for shown in self._messages.values():
            if shown.task == task:
                self._close(shown)

    def close_all(self) -> None:
        for shown in self._messages.values():
            self._close(shown)
        self._newest.clear()

    def unfinished(self) -> Iterator[Json]:
        """Yield the messages shown so far as AG-UI messages, for a client that joins."""
        for shown in self._messages.values():
            calls = [(call.id, call.name, "".join(call.arguments)) for call in shown.calls.values()]
            if shown.texts or calls:
                owner = {"subagentRunId": shown.subagent} if shown.subagent else {}
                fields = assistant_fields("".join(shown.texts), calls)
                yield {"id": shown.id, "role": "assistant", **fields, **owner}

    def reopen(self) -> None:
        """Emit the starts of everything that is open, for a client that joins."""
        for shown in self._messages.values():
            if shown.reasoning:
                self._start_reasoning(shown)
            if shown.is_open:
                self._emit("TEXT_MESSAGE_START", shown.subagent, messageId=shown.id, role="assistant")
            for call in shown.calls.values():
                if call.is_open:
                    self._start_call(shown, call)

    def _shown_of(self, message: Json, task: str, subagent: str | None, *, is_part: bool) -> Shown | None:
        """Return what is shown of a message, None if the client knows the message from before the run."""
        id = str(message.get("id") or f"{task or 'node'}-message")
        newest = self._newest.get(task) if task else None
        if id in self._known:
            return None
        if newest is not None and _are_one(newest.id, id):  # the model sent its id with only some parts
            fits = not newest.is_ended if is_part else text_of(message) == "".join(newest.texts)
            self._aliases |= {id: newest.id} if fits else {}
        id = self._aliases.get(id, id)
        shown = self._messages.get(id)
        if shown is None:
            shown = self._messages[id] = Shown(id, task, subagent)
        if task:
            self._newest[task] = shown
        return shown

    def _extend(self, shown: Shown, message: Json, metadata: Mapping[str, Any]) -> None:
        for kind, text in _pieces(message):
            self._add_piece(shown, kind, text)
        chunks = message.get("tool_call_chunks")
        for chunk in chunks if isinstance(chunks, list) else ():
            if isinstance(chunk, dict):
                self._add_call_chunk(shown, chunk)
        if self.usage.add(message, metadata):
            self._counted.add(shown.id)
        if message.get("chunk_position") == "last":
            self._close(shown)
            shown.is_ended = True

    def _complete(self, shown: Shown, message: Json, metadata: Mapping[str, Any]) -> None:
        """Show what is missing of a whole message, and close it."""
        if not shown.texts:
            for kind, text in _pieces(message):
                if kind == "text" or shown.spans == 0 or shown.reasoning:
                    self._add_piece(shown, kind, text)
        for id, name, arguments in calls_of(message):
            if id not in self._known_calls and id not in self._calls:
                self._begin_call(shown, id, name)
                self._add_arguments(shown, shown.calls[id], arguments)
        if shown.id not in self._counted and self.usage.add(message, metadata):
            self._counted.add(shown.id)
        self._close(shown)
        shown.is_ended = True

    def _add_piece(self, shown: Shown, kind: str, text: str) -> None:
        if kind == "text":
            self._add_text(shown, text)
        elif kind == "reasoning":
            self._add_reasoning(shown, text)
        else:
            self._add_signature(shown, text)

    def _add_text(self, shown: Shown, text: str) -> None:
        self._end_reasoning(shown)
        if not shown.is_open:
            shown.is_open = True
            self._emit("TEXT_MESSAGE_START", shown.subagent, messageId=shown.id, role="assistant")
        shown.texts.append(text)
        self._emit("TEXT_MESSAGE_CONTENT", shown.subagent, messageId=shown.id, delta=text)

    def _end_text(self, shown: Shown) -> None:
        if shown.is_open:
            shown.is_open = False
            self._emit("TEXT_MESSAGE_END", shown.subagent, messageId=shown.id)

    def _add_reasoning(self, shown: Shown, text: str) -> None:
        self._end_text(shown)
        if not shown.reasoning:
            self._open_reasoning(shown)
        self._emit("REASONING_MESSAGE_CONTENT", shown.subagent, messageId=shown.reasoning, delta=text)

    def _add_signature(self, shown: Shown, signature: str) -> None:
        """Show the signature or the encrypted text of a span of reasoning, which the model gets again later."""
        self._end_text(shown)
        if not shown.reasoning:
            self._open_reasoning(shown)
        self._emit(
            "REASONING_ENCRYPTED_VALUE",
            shown.subagent,
            subtype="message",
            entityId=shown.reasoning,
            encryptedValue=signature,
        )

    def _open_reasoning(self, shown: Shown) -> None:
        shown.spans += 1
        shown.reasoning = f"{shown.id}-reasoning" + (f"-{shown.spans}" if shown.spans > 1 else "")
        self._start_reasoning(shown)

    def _start_reasoning(self, shown: Shown) -> None:
        self._emit("REASONING_START", shown.subagent, messageId=shown.reasoning)
        self._emit("REASONING_MESSAGE_START", shown.subagent, messageId=shown.reasoning, role="reasoning")

    def _end_reasoning(self, shown: Shown) -> None:
        if shown.reasoning:
            self._emit("REASONING_MESSAGE_END", shown.subagent, messageId=shown.reasoning)
            self._emit("REASONING_END", shown.subagent, messageId=shown.reasoning)
            shown.reasoning = ""

    def _add_call_chunk(self, shown: Shown, chunk: Json) -> None:
        id, name, index = chunk.get("id"), chunk.get("name"), chunk.get("index")
        call = shown.by_index.get(index if index is not None else id)
        if name and (call is None or (id and id != call.id)):
            id = str(id or f"{shown.id}-call-{len(shown.calls)}")
            if id in self._known_calls or id in self._calls:
                return
            call = self._begin_call(shown, id, str(name))
            shown.by_index[index if index is not None else id] = call
            shown.by_index[None] = call  # parts without an index and an id belong to the newest call
        if call is not None and chunk.get("args"):
            self._add_arguments(shown, call, json_text(chunk["args"]))

    def _begin_call(self, shown: Shown, id: str, name: str) -> ToolCall:
        self._end_reasoning(shown)
        self._end_text(shown)
        call = shown.calls[id] = self._calls[id] = ToolCall(id, name)
        self._start_call(shown, call)
        return call

    def _start_call(self, shown: Shown, call: ToolCall) -> None:
        call.is_open = True
        self._emit(
            "TOOL_CALL_START",
            shown.subagent,
            toolCallId=call.id,
            toolCallName=call.name,
            parentMessageId=shown.id,
        )

    def _add_arguments(self, shown: Shown, call: ToolCall, arguments: str) -> None:
        if not call.is_open:
            self._start_call(shown, call)
        call.arguments.append(arguments)
        self._emit("TOOL_CALL_ARGS", shown.subagent, toolCallId=call.id, delta=arguments)

    def _show_result(self, message: Json, subagent: str | None) -> None:
        call_id = message.get("tool_call_id")
        id = str(message.get("id") or f"{call_id}-result")
        if id in self._known or not isinstance(call_id, str):
            return
        self._known.add(id)
        call = self._calls.get(call_id)
        if call is not None:
            call.has_result = True
            for shown in self._messages.values():
                if call_id in shown.calls:
                    self._close(shown)
        elif call_id not in self._known_calls:
            self._known_calls.add(call_id)
            name = str(message.get("name") or "tool")
            self._emit("TOOL_CALL_START", subagent, toolCallId=call_id, toolCallName=name)
            self._emit("TOOL_CALL_ARGS", subagent, toolCallId=call_id, delta="{}")
            self._emit("TOOL_CALL_END", subagent, toolCallId=call_id)
        content = tool_text(message)
        self._emit(
            "TOOL_CALL_RESULT", subagent, messageId=id, toolCallId=call_id, content=content, role="tool"
        )

    def _close(self, shown: Shown) -> None:
        self._end_reasoning(shown)
        self._end_text(shown)
        for call in shown.calls.values():
            if call.is_open:
                call.is_open = False
                self._emit("TOOL_CALL_END", shown.subagent, toolCallId=call.id)


def _task_of(metadata: Mapping[str, Any]) -> str:
    """Return the id of the task that streams a message: the last one in the namespace of its checkpoints."""
    namespace = metadata.get("langgraph_checkpoint_ns") or metadata.get("checkpoint_ns")
    return namespace.rpartition("|")[2].rpartition(":")[2] if isinstance(namespace, str) else ""


def _are_one(one: str, other: str) -> bool:
    """Return whether one id is the model's and the other LangChain's. Parts of one message may have either."""
    return one != other and one.startswith(GENERATED_IDS) != other.startswith(GENERATED_IDS)


def _pieces(message: Json) -> Iterator[tuple[str, str]]:
    """Yield the pieces of a message in order: `text`, `reasoning`, or the `signature` of reasoning. None is empty."""
    extra = message.get("additional_kwargs")
    reasoning = extra.get("reasoning_content") if isinstance(extra, dict) else None
    if isinstance(reasoning, str) and reasoning:
        yield "reasoning", reasoning
    content = message.get("content")
    if not isinstance(content, list):
        if text := text_of(message):
            yield "text", text
        return
    for block in content:
        for kind, text in _of_block({"type": "text", "text": block} if isinstance(block, str) else block):
            if isinstance(text, str) and text:
                yield kind, text


def _of_block(block: Any) -> Iterator[tuple[str, Any]]:
    if not isinstance(block, dict):
        return
    match block.get("type"):
        case "thinking" | "reasoning":
            yield "reasoning", block.get("thinking") or block.get("reasoning")
            summary = block.get("summary")
            for item in summary if isinstance(summary, list) else ():
                yield "reasoning", item.get("text") if isinstance(item, dict) else None
            extras = block.get("extras")
            signed = extras if isinstance(extras, dict) else {}
            yield (
                "signature",
                block.get("signature") or signed.get("signature") or block.get("encrypted_content"),
            )
        case "redacted_thinking":
            yield "signature", block.get("data")
        case _:
            yield "text", block.get("text")
