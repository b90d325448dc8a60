"""A run's stream as text: tokens as they arrive, then the changes of each step.

The run's output goes to stdout. Information about the run, such as its thread and its steps, goes to stderr.
Nodes write messages as objects, dicts and tuples. Only objects are streamed as messages.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from rich.console import Console
from rich.text import Text

from cli.output import as_text, printable, shortened

ASSISTANT = frozenset({"ai", "AIMessageChunk", "assistant"})
TOOL = frozenset({"tool", "ToolMessageChunk"})
HUMAN = frozenset({"human", "user"})
ROLES = ASSISTANT | TOOL | HUMAN | {"system", "developer", "function"}


@dataclass(frozen=True)
class ShownMessage:
    """A message with its role and text."""

    role: str
    text: str
    id: str | None = None
    name: str | None = None
    is_streamed: bool = False  # a message object, which LangGraph usually also streams as a message event


def message_of(data: Any) -> ShownMessage | None:
    """Parse a message in any of its forms. Returns None if the data is not a message."""
    if isinstance(data, str):
        return ShownMessage("human", data)
    if _is_pair(data):
        return ShownMessage(data[0], "".join(_texts(data[1])))
    if not isinstance(data, dict) or "content" not in data:
        return None
    role = str(data.get("role") or data.get("type"))
    return ShownMessage(
        role=role,
        text="".join(_texts(data["content"])),
        id=data.get("id"),
        name=data.get("name"),
        is_streamed="role" not in data and "response_metadata" in data,
    )


def messages_of(update: Any) -> Iterator[ShownMessage]:
    """Yield the messages in a value that a node wrote to `messages`: one message or a list."""
    for data in update if isinstance(update, list) and not _is_pair(update) else [update]:
        message = message_of(data)
        if message is not None:
            yield message


def _is_pair(data: Any) -> bool:
    """Return whether a list is a `(role, content)` tuple. JSON has no tuples, so it arrives as a list."""
    return isinstance(data, list) and len(data) == 2 and isinstance(data[0], str) and data[0] in ROLES


def _texts(content: Any) -> Iterator[str]:
    """Yield the texts of a message's content, which is a string or a list of blocks."""
    if isinstance(content, str):
        yield content
    elif isinstance(content, list):
        for block in content:
            if isinstance(block, str):
                yield block
            elif isinstance(block, dict) and isinstance(block.get("text"), str):
                yield block["text"]


class Transcript:
    """Prints the events of one run.

    `streams_messages`: the stream has an event for each message object that a node returns and that was not in the
    node's input. The transcript then prints only those messages of a step's update that had no such event.
    """

    def __init__(self, out: Console, notes: Console, *, streams_messages: bool = True) -> None:
        self._out, self._notes = out, notes
        self._streams_messages = streams_messages
        self._speaking: str | None = None  # id of the message whose line is being printed
        self._printed: dict[str, str] = {}  # printed text by message id

    def show(self, event: str, data: Any) -> None:
        """Print one event of the stream."""
        kind, _, namespace = event.partition("|")
        if kind in ("metadata", "messages/metadata"):
            return
        if kind == "error":
            self.finish()  # the command prints the error at the end
        elif kind == "messages":
            self._token(data)
        elif kind in ("messages/partial", "messages/complete"):
            for message in messages_of(data):
                self._whole(message)
        elif kind == "updates" and isinstance(data, dict):
            self._updates(data, namespace)
        else:
            self.finish()
            self._notes.print(Text.assemble(("· ", "magenta"), (event, "dim")))
            self._out.print(printable(as_text(data)))

    def finish(self) -> None:
        """End the line of the message that is being printed."""
        if self._speaking is not None:
            self._speaking = None
            self._out.print()

    def _token(self, data: Any) -> None:
        """Print the message in `[message, metadata]`: a chunk or a whole one."""
        chunk = message_of(data[0]) if isinstance(data, list) and data else None
        if chunk is not None:
            self._print(chunk, chunk.text)

    def _whole(self, message: ShownMessage) -> None:
        """Print the part of a whole message that has not been printed yet."""
        printed = self._printed.get(message.id or "", "")
        if message.text.startswith(printed):
            self._print(message, message.text[len(printed) :])

    def _print(self, message: ShownMessage, text: str) -> None:
        if message.id:
            self._printed[message.id] = self._printed.get(message.id, "") + text
        if not text:
            return
        if message.role in TOOL:
            self._print_tool_result(message, text)
        if message.role not in ASSISTANT:
            return
        if self._speaking is None or self._speaking != message.id:
            self.finish()
            self._speaking = message.id or ""
        self._out.print(Text(printable(text)), end="")

    def _print_tool_result(self, message: ShownMessage, text: str) -> None:
        self.finish()
        self._notes.print(
            Text.assemble(("⚙ ", "yellow"), (printable(f"{message.name or 'tool'}: "), "yellow")), end=""
        )
        self._notes.print(Text(printable(shortened(text)), "dim"))

    def _updates(self, data: dict[str, Any], namespace: str) -> None:
        for node, update in data.items():
            if node == "__interrupt__":
                continue  # the command prints the question at the end, with the way to answer it
            self.finish()
            path = f"{namespace}/{node}" if namespace else node
            self._notes.print(Text.assemble(("✓ ", "green"), (printable(path), "cyan")))
            # A node that ran several times in one step has a list of updates.
            for one in update if isinstance(update, list) else [update]:
                self._update(one)

    def _update(self, update: Any) -> None:
        rest = update
        if isinstance(update, dict):
            rest = {name: value for name, value in update.items() if name != "messages"}
            for message in self._unprinted(list(messages_of(update.get("messages")))):
                self._whole(message)
                self.finish()
        if rest:
            self._out.print(Text(printable(shortened(as_text(rest)))))

    def _unprinted(self, messages: list[ShownMessage]) -> list[ShownMessage]:
        """Return the messages of an update that the stream had no event for.

        A node may return the whole conversation. Message objects up to the newest human or printed message are older
        than this step and are omitted. Message objects after it had no event: the model was called without the run's
        callbacks, or it reused an earlier message's id.
        """
        if not self._streams_messages:
            return messages
        known = [message.id in self._printed or message.role in HUMAN for message in messages]
        older = len(known) - known[::-1].index(True) if True in known else 0
        return [message for n, message in enumerate(messages) if n >= older or not message.is_streamed]


def error_text(data: Any) -> str:
    """Return the data of an error event, or a run's error, as a line such as `ValueError: it broke`."""
    if isinstance(data, dict):
        return ": ".join(str(data[name]) for name in ("error", "message") if data.get(name))
    return str(data)
