"""Tracebacks as the author of a graph wants them: from their own code on, without what called it."""

from __future__ import annotations

import os
import traceback
from collections.abc import Iterator

HERE = os.path.dirname(os.path.abspath(__file__)) + os.sep
IMPORTS = "<frozen importlib"
# What lies between us and a node of a graph: the library's loop and its threads.
CALLERS = (
    "/langgraph/pregel/",
    "/langgraph/_internal/",
    "/langchain_core/runnables/",
    "/concurrent/futures/",
    "/asyncio/",
    "/importlib/__init__.py",
)


def user_traceback(error: BaseException) -> str:
    """A traceback without our frames, the import machinery's, and the library's above the first of anybody else."""
    shown = traceback.TracebackException.from_exception(error)
    for part in _parts(shown):
        part.stack = traceback.StackSummary.from_list(_below_callers(list(part.stack)))
    return "".join(shown.format()).rstrip()


def _below_callers(stack: list[traceback.FrameSummary]) -> list[traceback.FrameSummary]:
    kept = [frame for frame in stack if not frame.filename.startswith((HERE, IMPORTS))]
    for position, frame in enumerate(kept):
        if not any(caller in frame.filename for caller in CALLERS):
            return kept[position:]
    return kept  # the library itself failed


def _parts(shown: traceback.TracebackException) -> Iterator[traceback.TracebackException]:
    """The exception, its causes, and what is in it if it is a group."""
    waiting, seen = [shown], set[int]()
    while waiting:
        part = waiting.pop()
        if id(part) in seen:
            continue
        seen.add(id(part))
        yield part
        waiting += [each for each in (part.__cause__, part.__context__) if each is not None]
        waiting += part.exceptions or ()
