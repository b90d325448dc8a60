"""A run as a person reads it: tokens as they come, then what each step changed, questions, errors.

What the run says goes to stdout; what there is to know about it (its thread, its steps) to stderr.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from rich.console import Console
from rich.text import Text

from cli.output import printable

SPOKEN = ("ai", "AIMessageChunk")
SHOWN_CHARACTERS = 2_000


class Transcript:
    """Shows the events of one run."""

    def __init__(self, out: Console, notes: Console) -> None:
        self._out, self._notes = out, notes
        self._speaking: str | None = None  # the message whose text is being printed

    def show(self, event: str, data: Any) -> None:
        """One event of the stream."""
        kind, _, namespace = event.partition("|")
        if kind == "metadata":
            return
        if kind == "error":
            self.finish()  # shown at the end
        elif kind in ("messages", "messages/partial", "messages/complete"):
            self._message(kind, data)
        elif kind == "updates" and isinstance(data, dict):
            self._updates(data, namespace)
        else:
            self.finish()
            self._notes.print(Text.assemble(("· ", "magenta"), (event, "dim")))
            self._out.print(printable(as_text(data)))

    def finish(self) -> None:
        """End the line that tokens are being printed on."""
        if self._speaking is not None:
            self._speaking = None
            self._out.print()

    def _message(self, kind: str, data: Any) -> None:
        """A token: `[chunk, metadata]`; the other forms repeat whole messages and are left to `updates`."""
        if kind != "messages" or not isinstance(data, list) or not data or not isinstance(data[0], dict):
            return
        chunk = data[0]
        text = "".join(texts(chunk.get("content")))
        if not text:
            return
        if chunk.get("type") not in SPOKEN:
            if chunk.get("type") == "tool":
                self.finish()
                self._notes.print(
                    Text.assemble(("⚙ ", "yellow"), (f"{chunk.get('name') or 'tool'}: ", "yellow")), end=""
                )
                self._notes.print(Text(printable(shortened(text)), "dim"))
            return
        mark = str(chunk.get("id"))
        if self._speaking != mark:
            self.finish()
            self._speaking = mark
        self._out.print(Text(printable(text)), end="")

    def _updates(self, data: dict[str, Any], namespace: str) -> None:
        for node, update in data.items():
            if node == "__interrupt__":
                continue  # shown at the end, with what to do
            self.finish()
            place = f"{namespace}/{node}" if namespace else node
            self._notes.print(Text.assemble(("✓ ", "green"), (printable(place), "cyan")))
            rest = (
                {name: value for name, value in update.items() if name != "messages"}
                if isinstance(update, dict)
                else update
            )
            if rest:
                self._out.print(Text(printable(shortened(as_text(rest)))))


def texts(content: Any) -> Iterator[str]:
    """The text of a message: a string, or blocks of which some are text."""
    if isinstance(content, str):
        yield content
    elif isinstance(content, list):
        for block in content:
            if isinstance(block, str):
                yield block
            elif isinstance(block, dict) and isinstance(block.get("text"), str):
                yield block["text"]


def error_text(data: Any) -> str:
    """`ValueError: it broke`, of an error event's data."""
    if isinstance(data, dict):
        return ": ".join(str(data[name]) for name in ("error", "message") if data.get(name))
    return str(data)


def as_text(data: Any) -> str:
    return data if isinstance(data, str) else json.dumps(data, ensure_ascii=False)


def shortened(text: str) -> str:
    return text if len(text) <= SHOWN_CHARACTERS else text[:SHOWN_CHARACTERS] + " …"
