"""Times of a run's nodes, as its saver observes them.

LangGraph calls the saver at each step and at the end of each task anyway, so a run pays only for reading the clock.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from langgraph.checkpoint.base import Checkpoint

from ..masking import masked

MAX_SPANS = 500  # of an attempt; later ones are counted and dropped
MAX_DEPTH = 8  # levels of subgraphs
MAX_NAME = 100
NULL_TASK = "00000000-0000-0000-0000-000000000000"  # the writes of a command, which belong to no node
TASKS = "__pregel_tasks"  # the channel of Send objects
ERROR, INTERRUPT, RESUME = "__error__", "__interrupt__", "__resume__"
PULL, PUSH = "~__pregel_pull, ", "~__pregel_push, "
START = f"{PULL}__start__"  # the task that writes the input

Span = dict[str, Any]


class Step(NamedTuple):
    """When a step began, and the nodes of the `Send` objects in its checkpoint. The checkpoint itself may be large."""

    began: float
    sent_to: tuple[str, ...]


class NodeTimes:
    """Records when each step of a run began and each of its tasks ended.

    A node runs from the checkpoint before its step until its writes are saved. Several threads may call a recorder.
    """

    def __init__(self) -> None:
        self.began = time.monotonic()
        self._steps: dict[tuple[str, str], Step] = {}  # by namespace and checkpoint id
        self._tasks: dict[str, tuple[str, str, str, float, str | None]] = {}
        self._seen: dict[str, float] = {}  # subgraphs and callers, with the time of the first observation
        self._loaded: dict[str, tuple[str, ...]] = {}  # `sent_to` of the checkpoints of earlier runs, by id
        self.dropped = 0

    def begin_step(self, ns: str, checkpoint: Checkpoint) -> None:
        """Record that a checkpoint is saved: the tasks of the next step begin."""
        if len(self._steps) < MAX_SPANS:
            self._steps[ns, checkpoint["id"]] = Step(time.monotonic(), _sent_to(checkpoint))
            if ns:
                self.observe(ns)

    def observe(self, ns: str) -> None:
        """Record that a subgraph, or a model or tool that a node calls, begins: its outer nodes are running."""
        if len(self._seen) < MAX_SPANS:
            self._seen.setdefault(ns, time.monotonic())

    def continue_from(self, checkpoint: Checkpoint) -> None:
        """Record a checkpoint that the run has loaded. Its step began in an earlier run."""
        if len(self._loaded) < MAX_SPANS:
            self._loaded[checkpoint["id"]] = _sent_to(checkpoint)

    def end_task(
        self, ns: str, checkpoint_id: str, task_id: str, path: str, writes: Sequence[tuple[str, Any]]
    ) -> None:
        """Record that a task ended, and how. The answer that a node has read from `interrupt` is not its end."""
        if not path or path == START or not writes or task_id == NULL_TASK:
            return
        channel, value = writes[0]
        status = None
        if channel in (ERROR, INTERRUPT, RESUME):
            if all(name == RESUME for name, _ in writes):
                return
            channels = {name for name, _ in writes}
            status = (
                error_name(value) if channel == ERROR else "interrupted" if INTERRUPT in channels else None
            )
        if task_id in self._tasks or len(self._tasks) < MAX_SPANS:
            self._tasks[task_id] = (ns, checkpoint_id, path, time.monotonic(), status)
        else:
            self.dropped += 1

    def spans(self, unfinished: Iterable[Mapping[str, Any]] = ()) -> list[Span]:
        """Return the spans of the nodes in milliseconds from `began`.

        `unfinished` are the tasks at which the run stopped. A node that did not end lasts until the end of the run.
        """
        tasks = tuple(self._tasks.items())
        spans = {
            task_id: self._span(task_id, *task) for task_id, task in tasks if task[0].count("|") < MAX_DEPTH
        }
        for ns in tuple(self._seen):
            self._add_outer(spans, ns)
        last = max((at for (ns, _), (at, _) in tuple(self._steps.items()) if not ns), default=self.began)
        for task in unfinished:
            if task["id"] not in spans:
                spans[task["id"]] = self._open_span(task["id"], task["name"], last, None)
        return list(spans.values())

    def _span(self, id: str, ns: str, checkpoint_id: str, path: str, end: float, status: str | None) -> Span:
        step = self._steps.get((ns, checkpoint_id))
        begun = self.began if step is None else step.began
        within = node_around(ns)
        if step is None and within is not None:
            begun = self._start_of(within)
        span = {
            "id": id,
            "kind": "node",
            "name": _name_of(path, self._loaded.get(checkpoint_id, ()) if step is None else step.sent_to)[
                :MAX_NAME
            ],
            "from": self.milliseconds(begun),
            "until": self.milliseconds(end),
            "checkpoint": checkpoint_id,
            "within": within,
        }
        if ns:
            span["ns"] = ns
        if status is not None:
            span["error"] = status
        return span

    def _start_of(self, task_id: str) -> float:
        """Return when a task began, or when the run began if that is not known."""
        task = self._tasks.get(task_id)
        step = None if task is None else self._steps.get((task[0], task[1]))
        return self.began if step is None else step.began

    def _add_outer(self, spans: dict[str, Span], ns: str) -> None:
        """Add spans of the nodes around a subgraph that have not ended."""
        within = None
        for depth, outer in enumerate(nodes_around(ns)):
            if outer.id not in spans and depth < MAX_DEPTH:
                begun = min(at for seen, at in tuple(self._seen.items()) if seen.startswith(outer.ns))
                spans[outer.id] = self._open_span(outer.id, outer.name, begun, within)
            within = outer.id

    def _open_span(self, id: str, name: str, begun: float, within: str | None) -> Span:
        return {
            "id": id,
            "kind": "node",
            "name": name[:MAX_NAME],
            "from": self.milliseconds(begun),
            "until": None,
            "checkpoint": None,
            "within": within,
        }

    def milliseconds(self, at: float) -> float:
        return round((at - self.began) * 1000, 2)


class Outer(NamedTuple):
    """A node around a subgraph."""

    id: str
    name: str
    ns: str  # of the subgraph


def nodes_around(ns: str) -> list[Outer]:
    """Return the nodes around a subgraph, the outermost first.

    A namespace is a list of `name:task`. A number after it counts the subgraphs that one task has called.
    """
    nodes, parts = [], ns.split("|") if ns else []
    for depth, part in enumerate(parts):
        name, colon, id = part.rpartition(":")
        if colon:
            nodes.append(Outer(id, name, "|".join(parts[: depth + 1])))
    return nodes


def node_around(ns: str) -> str | None:
    """Return the id of the node around a subgraph; None for the graph itself."""
    nodes = nodes_around(ns)
    return nodes[-1].id if nodes else None


def _sent_to(checkpoint: Checkpoint) -> tuple[str, ...]:
    """Return the nodes of the first `Send` objects in a checkpoint."""
    sends = checkpoint["channel_values"].get(TASKS) or ()
    return tuple(str(getattr(send, "node", "task"))[:MAX_NAME] for send in sends[:MAX_SPANS])


def _name_of(path: str, sent_to: Sequence[str]) -> str:
    """Return the node of a task's path. A path of a `Send` has its position among those of the checkpoint."""
    if path.startswith(PULL):
        return path.removeprefix(PULL)
    position = path.removeprefix(PUSH).partition(", ")[0]
    return sent_to[int(position)] if position.isdigit() and int(position) < len(sent_to) else "task"


def error_name(error: Any) -> str:
    """Return the class of an error. Its name is the project's, which may have put a secret into it."""
    return masked(type(error).__name__) if isinstance(error, BaseException) else "Error"
