"""Lifecycle events of protocol v2 for the subgraphs of a run, derived from the tasks that execute them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from ..serialization import dumps, error_text
from .log import Namespace, ProtocolLog


class Life(NamedTuple):
    """A running subgraph."""

    namespace: Namespace
    graph_name: str


class SubgraphLives:
    """Writes the `lifecycle` events of one run's subgraphs. Those of the run itself are derived from its log."""

    def __init__(self, log: ProtocolLog) -> None:
        self._log = log
        self._begun: set[Namespace] = {()}
        self._alive: dict[tuple[Namespace, str], Life] = {}  # by the subgraph's task: its namespace and id
        self._tool_calls: dict[str, str] = {}  # task id → id of the model's tool call that it executes

    def has_begun(self, ns: Namespace) -> bool:
        return ns in self._begun

    def note_task(self, ns: Namespace, task: Mapping[str, Any]) -> None:
        """Record that a task begins, which shows that its graph has begun."""
        call = _tool_call(task.get("input"))
        if call is not None:
            self._tool_calls[task["id"]] = call
        self.begin(ns, (task.get("metadata") or {}).get("lc_agent_name"))

    def begin(self, ns: Namespace, agent: str | None = None) -> None:
        """Write start events of this namespace and the namespaces around it, unless already written."""
        if ns in self._begun:
            return
        self.begin(ns[:-1])
        self._begun.add(ns)
        name, _, task = ns[-1].partition(":")
        if not task:
            return  # the surrounding task uses a subgraph again, which has no lifecycle of its own
        data: dict[str, Any] = {
            "event": "started",
            "namespace": list(ns),
            "graph_name": agent or name,
            "trigger_call_id": task,
        }
        if task in self._tool_calls:
            data["cause"] = {"type": "toolCall", "tool_call_id": self._tool_calls[task]}
        life = self._alive[ns[:-1], task] = Life(ns, data["graph_name"])
        self._write(life, data)

    def end_task(self, ns: Namespace, task: Mapping[str, Any]) -> None:
        """Record that a task has ended, and write the end event of its subgraph, if it is one."""
        self._tool_calls.pop(task["id"], None)
        life = self._alive.pop((ns, task["id"]), None)
        if life is None:
            return
        if task.get("interrupts"):
            self._end(life, "interrupted")
        elif task.get("error"):
            self._end(life, "failed", error_text(task["error"]))
        else:
            self._end(life, "completed")

    def end_all(self, event: str, error: str | None) -> None:
        """Write end events of the subgraphs whose tasks have not ended, as the run ends; the innermost first."""
        for life in sorted(self._alive.values(), key=lambda life: len(life.namespace), reverse=True):
            self._end(life, event, error if event == "failed" else None)
        self._alive.clear()

    def _end(self, life: Life, event: str, error: str | None = None) -> None:
        data = {"event": event, "namespace": list(life.namespace), "graph_name": life.graph_name}
        self._write(life, data if error is None else {**data, "error": error})

    def _write(self, life: Life, data: dict[str, Any]) -> None:
        tail = f"lc|{'|'.join(life.namespace)}|{data['event']}"
        self._log.write("lifecycle", life.namespace, dumps(data), id_tail=tail)


def _tool_call(input: Any) -> str | None:
    """Return the id of the tool call in a task's input. Older versions of LangGraph pass a list of calls."""
    if isinstance(input, Mapping) and isinstance(input.get("tool_call"), Mapping):
        input = [input["tool_call"]]
    if not isinstance(input, list):
        return None
    ids = [
        call["id"] for call in input if isinstance(call, Mapping) and call.keys() >= {"id", "name", "args"}
    ]
    return ids[0] if ids and isinstance(ids[0], str) else None
