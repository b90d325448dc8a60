"""Events of protocol v2 for open and answered interrupts.

These events are written for every run on a thread, even if no reader of protocol v2 is present. They are rare, and the
next client that opens the thread needs them.
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

INTERRUPTED = "__interrupt__"  # LangGraph's names of the channels that a task writes besides its output
CONTROL = frozenset({INTERRUPTED, "__resume__", "__error__", "__error_source_node__"})


class OpenInterrupt(NamedTuple):
    """An interrupt that waits for an answer."""

    namespace: Namespace  # of the graph whose node raised the interrupt
    id: str
    value: Any


def open_interrupts(tasks: Iterable[PregelTask], ns: Namespace = ()) -> list[OpenInterrupt]:
    """Return the open interrupts of a state, each with the namespace of the innermost task that raised it."""
    found: list[OpenInterrupt] = []
    for task in tasks:
        state = task.state if isinstance(task.state, StateSnapshot) else None
        inner = open_interrupts(state.tasks, _namespace_of(state)) if state is not None else []
        found += inner or [OpenInterrupt(ns, item.id, item.value) for item in task.interrupts]
    return found


async def answered(saver: BaseCheckpointSaver[Any], config: RunnableConfig, resume: Any) -> list[str]:
    """Return the ids of the interrupts that a run with this resume value answers."""
    if isinstance(resume, Mapping) and resume and all(INTERRUPT_ID.fullmatch(str(key)) for key in resume):
        return [str(key) for key in resume]
    found = await saver.aget_tuple(config)
    return [] if found is None else _open(found)


def write_requested(log: ProtocolLog, asked: Iterable[OpenInterrupt], known: Mapping[str, Namespace]) -> None:
    """Write an event for each open interrupt. `known` maps interrupt ids to the namespaces where they were raised."""
    for question in asked:
        ns = known.get(question.id, question.namespace)
        tail = f"input|{'|'.join(ns)}|{question.id}"
        for value in (question.value, None):  # without the value if the event is too large
            data = {"interrupt_id": question.id, "payload": value, "value": value}
            if log.write("input.requested", ns, dumps(data), id_tail=tail):
                break


def write_answered(log: ProtocolLog, ids: list[str]) -> None:
    if ids:
        log.write("input.answered", (), dumps({"interrupt_ids": ids}))


def _open(found: CheckpointTuple) -> list[str]:
    """Return the ids of interrupts of unfinished tasks in a checkpoint.

    Includes answered interrupts of such a task, because the task may raise them again.
    """
    writes = found.pending_writes or []
    ended = {task for task, channel, _ in writes if channel not in CONTROL}
    asked = [value for task, channel, value in writes if channel == INTERRUPTED and task not in ended]
    items = [item for value in asked for item in (value if isinstance(value, (list, tuple)) else [value])]
    return list(dict.fromkeys(item.id for item in items if hasattr(item, "id")))


def _namespace_of(state: StateSnapshot) -> Namespace:
    ns = (state.config.get("configurable") or {}).get("checkpoint_ns") or ""
    return tuple(ns.split("|")) if ns else ()
