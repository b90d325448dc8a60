"""What runs ask of people, and which of it is answered, as events of protocol v2.

They are written for every run on a thread, however it is watched: they are rare, and whoever opens the thread next needs
them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import BaseCheckpointSaver, CheckpointTuple
from langgraph.types import PregelTask, StateSnapshot

from ..commands import INTERRUPT_ID
from ..serialization import dumps
from .log import Namespace, ProtocolLog

INTERRUPTED = "__interrupt__"  # the library's names of what a task has written but its output
CONTROL = frozenset({INTERRUPTED, "__resume__", "__error__", "__error_source_node__"})


class OpenInterrupt(NamedTuple):
    """An interrupt that waits for an answer."""

    namespace: Namespace  # of the graph whose node asks
    id: str
    value: Any


def open_interrupts(tasks: Iterable[PregelTask], ns: Namespace = ()) -> list[OpenInterrupt]:
    """Those of a state, each with the innermost task that raised it."""
    found: list[OpenInterrupt] = []
    for task in tasks:
        state = task.state if isinstance(task.state, StateSnapshot) else None
        inner = open_interrupts(state.tasks, _namespace_of(state)) if state is not None else []
        found += inner or [OpenInterrupt(ns, item.id, item.value) for item in task.interrupts]
    return found


async def answered(saver: BaseCheckpointSaver[Any], config: RunnableConfig, resume: Any) -> list[str]:
    """The ids of the interrupts that a run answers which resumes with this."""
    if isinstance(resume, Mapping) and resume and all(INTERRUPT_ID.fullmatch(str(key)) for key in resume):
        return [str(key) for key in resume]
    found = await saver.aget_tuple(config)
    return [] if found is None else _open(found)


def write_requested(log: ProtocolLog, asked: Iterable[OpenInterrupt], known: Mapping[str, Namespace]) -> None:
    """Say what waits for an answer; `known` are the namespaces where it was seen to be raised."""
    for question in asked:
        ns = known.get(question.id, question.namespace)
        tail = f"input|{'|'.join(ns)}|{question.id}"
        for value in (question.value, None):  # the id alone, where the value is too large
            data = {"interrupt_id": question.id, "payload": value, "value": value}
            if log.write("input.requested", ns, dumps(data), id_tail=tail):
                break


def write_answered(log: ProtocolLog, ids: list[str]) -> None:
    if ids:
        log.write("input.answered", (), dumps({"interrupt_ids": ids}))


def _open(found: CheckpointTuple) -> list[str]:
    """The interrupts of the newest checkpoint's tasks that have not ended; one that was answered may ask again."""
    writes = found.pending_writes or []
    ended = {task for task, channel, _ in writes if channel not in CONTROL}
    asked = [value for task, channel, value in writes if channel == INTERRUPTED and task not in ended]
    items = [item for value in asked for item in (value if isinstance(value, (list, tuple)) else [value])]
    return list(dict.fromkeys(item.id for item in items if hasattr(item, "id")))


def _namespace_of(state: StateSnapshot) -> Namespace:
    ns = (state.config.get("configurable") or {}).get("checkpoint_ns") or ""
    return tuple(ns.split("|")) if ns else ()
