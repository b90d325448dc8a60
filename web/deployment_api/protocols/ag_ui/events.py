"""The events of a run in AG-UI: parts of the run's stream go in, AG-UI events come out.

`RunEvents` knows neither HTTP nor the database. It closes everything that it opened: a client refuses the end of a run
while a message, a call, a step or a subagent is open, and any event after the end.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from shared.infra.postgres import loads
from shared.models import RunStatus
from shared.runs.end_event import ROLLBACK
from web.deployment_api.protocols.ag_ui import interrupts, messages, state
from web.deployment_api.protocols.ag_ui.steps import OpenSteps
from web.deployment_api.protocols.ag_ui.transcript import Transcript
from web.deployment_api.protocols.conversation import MESSAGES

Event = dict[str, Any]

PROTOCOL_VERSION = "1.0"
# Stream modes of a run whose events `RunEvents` reads.
STREAM_MODES = ("messages-tuple", "values", "tasks", "custom")


@dataclass(frozen=True, slots=True)
class RunName:
    """The names by which a client knows a run. `is_old`: the client speaks a version before 1.0."""

    thread_id: str
    run_id: str
    parent_run_id: str | None = None
    is_old: bool = False


@dataclass(frozen=True, slots=True)
class End:
    """The end of a run: its status, the thread's values, the open interrupts, and the error of a failed run."""

    status: str
    values: Any
    interrupts: Sequence[Mapping[str, Any]] = ()
    error: Mapping[str, Any] | None = None


@dataclass(slots=True)
class Subagent:
    """A subgraph that is running."""

    id: str  # the id of its task, with a number if the task is repeated: clients refuse a second start of an id
    name: str
    parent: str | None


class RunEvents:
    """State machine for the events of one run. `values` is the state before the run; `subgraphs` shows subagents."""

    def __init__(self, name: RunName, values: Any, *, subgraphs: bool = True) -> None:
        self._name, self._values = name, values
        self._shows_subgraphs = subgraphs and not name.is_old
        self._out: list[Event] = []
        self._sent_state = state.shown(values)
        self._attempt: int | None = None
        self._is_repeated = False  # the newest attempt has not shown its checkpoint yet
        self._begun: set[str] = set()  # namespaces with a step that has begun: later values are new
        self._steps: dict[str | None, OpenSteps] = {None: OpenSteps()}  # by subagent
        self._subagents: dict[str, Subagent] = {}  # by task, outermost first
        self._ids: set[str] = set()  # of all subagents so far
        self._error: Mapping[str, Any] | None = None
        self._transcript = Transcript(self._emit, values)

    def started(self) -> list[Event]:
        """Return the first events of a run."""
        self._start()
        self._emit("STATE_SNAPSHOT", snapshot=self._sent_state)
        return self._take()

    def joined(self) -> list[Event]:
        """Return the first events for a client that joins, after the parts that have been added so far."""
        self._take()
        self._start()
        shown = messages.snapshot(self._values)
        ids = {message["id"] for message in shown}
        unfinished = [message for message in self._transcript.unfinished() if message["id"] not in ids]
        self._emit("MESSAGES_SNAPSHOT", messages=[*shown, *unfinished])
        self._sent_state = state.shown(self._values)
        self._emit("STATE_SNAPSHOT", snapshot=self._sent_state)
        for subagent in self._subagents.values():
            self._announce(subagent)
        for owner, steps in self._steps.items():
            for _, step in steps.items():
                self._emit("STEP_STARTED", owner, stepName=step)
        self._transcript.reopen()
        return self._take()

    def add(self, name: str, data: bytes) -> list[Event]:
        """Return the events for one event of the run's log."""
        base, _, namespace = name.partition("|")
        handler = HANDLERS.get(base)
        if handler is not None and (not namespace or self._shows_subgraphs):
            handler(self, namespace, loads(data))
        return self._take()

    def lost(self) -> list[Event]:
        """Close everything, because parts of the run's stream are lost. The end shows what is missing."""
        self._close_all()
        self._begun.add("")  # the first step may be among them: the next values are new
        return self._take()

    def finished(self, end: End) -> list[Event]:
        """Return the last events of a run, of which the last one is terminal."""
        self._values = end.values
        if end.status == RunStatus.SUCCESS:
            self._transcript.reconcile(self._values, None)
        self._close_all({"interrupts": end.interrupts})
        self._snapshots()
        self._finish(end)
        return self._take()

    def ended(self, end: End) -> list[Event]:
        """Return all events of a stream without a run to follow: the state of the thread, and the end."""
        self._start()
        self._values = end.values
        self._snapshots()
        self._finish(end)
        return self._take()

    def stopped(self, code: str, message: str) -> list[Event]:
        """Return the last events of a stream that ends before its run."""
        self._close_all()
        self._fail(code, message)
        return self._take()

    def cut_off(self, code: str, message: str) -> list[Event]:
        """Return the last event of a stream whose client may lack the newest events."""
        self._take()
        self._fail(code, message)
        return self._take()

    def _finish(self, end: End) -> None:
        if end.status in (RunStatus.ERROR, RunStatus.TIMEOUT):
            error = end.error or self._error or {}
            code = str(error.get("error") or "Error")
            self._fail(code, f"{code}: {error.get('message') or end.status}")
        elif end.status in (RunStatus.INTERRUPTED, ROLLBACK):
            if self._name.is_old:
                self._fail("cancelled", "The run was cancelled")
            else:
                self._end({"type": "cancelled"})
        elif end.interrupts:
            for interrupt in end.interrupts:
                self._out.append(interrupts.custom_event(interrupt))
            self._end({"type": "interrupt", "interrupts": [*map(interrupts.shown, end.interrupts)]})
        else:
            pending = [] if self._name.is_old else self._transcript.pending_calls
            self._end({"type": "success", **({"pendingToolCallIds": pending} if pending else {})})

    def _start(self) -> None:
        name = self._name
        parent = {"parentRunId": name.parent_run_id} if name.parent_run_id else {}
        ids = {"threadId": name.thread_id, "runId": name.run_id}
        self._emit("RUN_STARTED", **ids, **parent, protocolVersion=PROTOCOL_VERSION)

    def _end(self, outcome: Event) -> None:
        ids = {"threadId": self._name.thread_id, "runId": self._name.run_id}
        self._emit("RUN_FINISHED", **ids, outcome=outcome, **self._usage())

    def _fail(self, code: str, message: str) -> None:
        self._emit("RUN_ERROR", message=message, code=code, **self._usage())

    def _usage(self) -> Event:
        entries = self._transcript.usage.entries()
        return {"usage": entries} if entries else {}

    def _snapshots(self) -> None:
        self._sent_state = state.shown(self._values)
        self._emit("STATE_SNAPSHOT", snapshot=self._sent_state)
        # A state without messages would empty the client's conversation, which is nowhere else.
        if isinstance(self._values, dict) and isinstance(self._values.get(MESSAGES), list):
            self._emit("MESSAGES_SNAPSHOT", messages=messages.snapshot(self._values))

    # Parts of the stream

    def _on_metadata(self, namespace: str, data: Any) -> None:
        """Note which attempt begins. A further attempt starts at the newest checkpoint."""
        attempt = data.get("attempt") if isinstance(data, dict) else None
        if self._attempt is not None and attempt != self._attempt:
            self._close_all()
            self._begun.clear()
            self._is_repeated = True
        self._attempt = attempt

    def _on_messages(self, namespace: str, data: Any) -> None:
        if not isinstance(data, list) or len(data) != 2 or not isinstance(data[0], dict):
            return
        metadata = data[1] if isinstance(data[1], dict) else {}
        self._transcript.add(data[0], metadata, self._subagent(namespace))

    def _on_values(self, namespace: str, values: Any) -> None:
        if namespace not in self._begun:
            self._begin(namespace, values)
            return
        subagent = self._subagent(namespace)
        self._transcript.reconcile(values, subagent)
        if not namespace:
            self._values = values
            self._send_state()

    def _begin(self, namespace: str, values: Any) -> None:
        """Take the values with which a graph begins: its messages are older than its first step."""
        if namespace:
            self._transcript.know(values)
            return
        self._values = values
        if self._is_repeated:
            self._is_repeated = False
            self._transcript.reset(values)
            self._snapshots()
        else:
            self._transcript.know(values)
            self._send_state()

    def _send_state(self) -> None:
        shown = state.shown(self._values)
        event = state.change(self._sent_state, shown)
        if event is not None:
            self._sent_state = shown
            self._out.append(event)

    def _on_tasks(self, namespace: str, task: Any) -> None:
        if not isinstance(task, dict) or not isinstance(task.get("id"), str):
            return
        self._begun.add(namespace)
        subagent = self._subagent(namespace)
        if "result" in task or "error" in task:
            self._end_task(task, subagent)
        else:
            self._begin_task(task["id"], str(task.get("name")), subagent)

    def _begin_task(self, id: str, name: str, owner: str | None) -> None:
        step = self._steps.setdefault(owner, OpenSteps()).open(id, name)
        if step is not None:
            self._emit("STEP_STARTED", owner, stepName=step)

    def _end_task(self, task: Mapping[str, Any], owner: str | None) -> None:
        id = task["id"]
        self._transcript.close_task(id)
        self._end_subagent(id, task)
        step = self._steps[owner].close(id) if owner in self._steps else None
        if step is not None:
            self._emit("STEP_FINISHED", owner, stepName=step)

    def _on_custom(self, namespace: str, data: Any) -> None:
        owner = self._subagent(namespace)
        if isinstance(data, dict) and isinstance(data.get("name"), str) and "value" in data:
            self._emit("CUSTOM", owner, name=data["name"], value=data["value"])
        else:
            self._emit("CUSTOM", owner, name="langgraph", value=data)

    def _on_error(self, namespace: str, data: Any) -> None:
        if isinstance(data, dict):
            self._error = data

    # Subagents

    def _subagent(self, namespace: str) -> str | None:
        """Return the id of the subgraph of a namespace, and announce it and those around it at their first part."""
        owner = None
        for part in namespace.split("|") if namespace else ():
            name, _, task = part.rpartition(":")
            if not name:
                continue  # a number distinguishes the calls of one task
            if task not in self._subagents:
                self._subagents[task] = self._begin_subagent(name, task, owner)
            owner = self._subagents[task].id
        return owner

    def _begin_subagent(self, name: str, task: str, parent: str | None) -> Subagent:
        id, number = task, 1
        while id in self._ids:
            number += 1
            id = f"{task}#{number}"
        self._ids.add(id)
        subagent = Subagent(id, name, parent)
        self._announce(subagent)
        return subagent

    def _announce(self, subagent: Subagent) -> None:
        parent = {"parentSubagentRunId": subagent.parent} if subagent.parent else {}
        self._emit("SUBAGENT_STARTED", subagentRunId=subagent.id, name=subagent.name, **parent)

    def _end_subagent(self, task: str, result: Mapping[str, Any]) -> None:
        """End the subgraph of a task, and the subgraphs inside it first."""
        subagent = self._subagents.get(task)
        if subagent is None:
            return
        for inner_task, inner in [*self._subagents.items()]:
            if inner.parent == subagent.id:
                self._transcript.close_task(inner_task)
                self._end_subagent(inner_task, {})
        for inner_task, step in self._steps.pop(subagent.id, OpenSteps()).items():
            self._transcript.close_task(inner_task)
            self._emit("STEP_FINISHED", subagent.id, stepName=step)
        del self._subagents[task]
        if result.get("error"):
            message = messages.json_text(result["error"])
            self._emit("SUBAGENT_ERROR", subagentRunId=subagent.id, message=message)
            return
        ids = [str(one.get("id")) for one in result.get("interrupts") or () if isinstance(one, dict)]
        outcome: Event = {"type": "suspended", "interruptIds": ids} if ids else {"type": "success"}
        self._emit("SUBAGENT_FINISHED", subagentRunId=subagent.id, outcome=outcome)

    def _close_all(self, result: Mapping[str, Any] | None = None) -> None:
        """Close everything that is open. `result` is that of the outermost subgraphs."""
        self._transcript.close_all()
        for task in [task for task, subagent in self._subagents.items() if subagent.parent is None]:
            self._end_subagent(task, result or {})
        for _, step in self._steps[None].items():
            self._emit("STEP_FINISHED", stepName=step)
        self._steps[None] = OpenSteps()

    def _emit(self, type: str, subagent: str | None = None, **fields: Any) -> None:
        owner = {"subagentRunId": subagent} if subagent else {}
        self._out.append({"type": type, **fields, **owner})

    def _take(self) -> list[Event]:
        out, self._out = self._out, []
        return out


HANDLERS = {
    "metadata": RunEvents._on_metadata,
    "messages": RunEvents._on_messages,
    "values": RunEvents._on_values,
    "tasks": RunEvents._on_tasks,
    "custom": RunEvents._on_custom,
    "error": RunEvents._on_error,
}
