"""The wire's `command` object → the graph library's Command."""

from __future__ import annotations

from typing import Any

from langgraph.types import Command, Send


def command_of(command: dict[str, Any]) -> Command[Any] | None:
    """The graph library's command; None, which goes on from the newest checkpoint, when it says nothing."""
    if all(command.get(key) is None for key in ("update", "resume", "goto")):
        return None
    update = command.get("update")
    if isinstance(update, list):
        update = [tuple(pair) if isinstance(pair, list) else pair for pair in update]
    goto = command.get("goto")
    targets = goto if isinstance(goto, list) else [goto] if goto else []
    return Command(
        update=update,
        resume=command.get("resume"),
        goto=[Send(t["node"], t.get("input")) if isinstance(t, dict) else t for t in targets],
    )
