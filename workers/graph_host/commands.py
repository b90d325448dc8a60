"""Conversion of a request's `command` object to LangGraph's Command, and the check of strict resumes."""

from __future__ import annotations

import re
from typing import Any

from langgraph.types import Command, Send, StateSnapshot

INTERRUPT_ID = re.compile(r"[0-9a-f]{32}")


class UnknownInterruptError(Exception):
    """A strict resume does not match the interrupts that wait for an answer."""


def command_of(command: dict[str, Any]) -> Command[Any] | None:
    """Return LangGraph's Command. An empty command gives None, which continues from the newest checkpoint."""
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
    """Raise UnknownInterruptError unless the resume answers waiting interrupts or continues from a breakpoint.

    Newer versions of LangGraph also have a strict resume. This check behaves the same with all supported versions.
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
