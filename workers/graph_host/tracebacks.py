"""Tracebacks for authors of graphs: they start at the user's code and leave out its callers."""

from __future__ import annotations

import os
import traceback
from collections.abc import Iterator

HERE = os.path.dirname(os.path.abspath(__file__)) + os.sep
IMPORTS = "<frozen importlib"
# Frames between the host and a node of a graph: LangGraph's loop and its threads.
CALLERS = (
    "/langgraph/pregel/",
    "/langgraph/_internal/",
    "/langchain_core/runnables/",
    "/concurrent/futures/",
    "/asyncio/",
    "/importlib/__init__.py",
)


def user_traceback(error: BaseException) -> str:
    """Format a traceback without the frames of this package, of imports, and of LangGraph above the user's code."""
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
    """Yield the exception, its causes and contexts, and the exceptions of groups."""
    waiting, seen = [shown], set[int]()
    while waiting:
        part = waiting.pop()
        if id(part) in seen:
            continue
        seen.add(id(part))
        yield part
        waiting += [each for each in (part.__cause__, part.__context__) if each is not None]
        waiting += part.exceptions or ()
