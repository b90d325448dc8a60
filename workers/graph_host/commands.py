"""The wire's `command` object → the graph library's Command, and whether a resume answers what is asked."""

from __future__ import annotations

import re
from typing import Any

from langgraph.types import Command, Send, StateSnapshot

INTERRUPT_ID = re.compile(r"[0-9a-f]{32}")


class UnknownInterruptError(Exception):
    """A resume that was to be strict does not fit the interrupts that wait for an answer."""


def command_of(command: dict[str, Any]) -> Command[Any] | None:
    """The graph library's command; None, which continues from the newest checkpoint, when it says nothing."""
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


def check_resume(resume: Any, state: StateSnapshot) -> None:
    """Raise UnknownInterruptError unless the resume answers what waits, or continues from a breakpoint.

    The newer graph libraries know a strict resume too; here it is the same with all that are supported.
    """
    pending = {interrupt.id for task in state.tasks for interrupt in task.interrupts}
    if isinstance(resume, dict) and all(INTERRUPT_ID.fullmatch(str(key)) for key in resume):
        if not resume:
            raise UnknownInterruptError("The resume map names no interrupt")
        unknown = sorted(str(key) for key in resume if key not in pending)
        if unknown:
            raise UnknownInterruptError(f"Unknown or already answered interrupt: {', '.join(unknown)}")
    elif len(pending) > 1:
        ids = ", ".join(sorted(pending))
        raise UnknownInterruptError(f"Several interrupts wait: the one that is meant must be named: {ids}")
    elif not state.next:
        raise UnknownInterruptError("Nothing waits for an answer")
