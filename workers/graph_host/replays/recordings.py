"""The recording of a past run: its tool calls and model calls, taken from its checkpoints.

A checkpoint has the writes of the tasks that ran on it. The messages among them show what tools and models were called
with, and what they returned. Runs that store only their last checkpoint have no writes: their messages are read from
the checkpoint's values.

    tools   [{"id", "name", "args", "at", "content", "status", "artifact"?, "command"? | "interrupt", "may_be_lost"}]
    models  [{"messages": digest of the prompt, "response"}]

`at` is the graph that called the tool: the names of the nodes around it. `artifact`, `command`, `interrupt` and
`response` are values of any type (`replay.encoded`). A `command` has the updates of the tool's task besides its message,
which the tool may have returned as a `Command`, and its targets. `may_be_lost`: another call of the same task may have asked
the question, so that the result of this one was lost. If a subgraph's tool addresses the parent graph, its
message is found among the writes of the subgraph's own task.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby, pairwise
from typing import Any

from langchain_core.messages import AIMessage, BaseMessage, RemoveMessage, ToolMessage, convert_to_messages
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import CheckpointTuple
from langgraph.graph.message import REMOVE_ALL_MESSAGES
from langgraph.pregel import Pregel
from langgraph.types import Overwrite, Send

from ..checkpoints.saver import HostSaver
from .replay import encoded, graph_at, prompt_key

BRANCH = "branch:to:"
SENDS = "__pregel_tasks"
INTERRUPT = "__interrupt__"
DELTAS = "counters_since_delta_snapshot"  # in the metadata of checkpoints with channels that are stored as their changes
RETURN = "__return__"  # of tasks of the functional API
EDITED = "hitl_edited_tool_calls"  # in LangChain: the calls that a reviewer has replaced, by id
MAX_DEPTH = 4  # of messages within a written value


async def recording(
    saver: HostSaver, graph: Pregel, thread_id: str, run_id: str, checkpoint_id: str | None
) -> dict[str, Any]:
    """Return the recording of a run. `checkpoint_id` names the root checkpoint that the run began from."""
    address: RunnableConfig = {"configurable": {"thread_id": thread_id}}
    of_run: dict[str, list[CheckpointTuple]] = defaultdict(list)
    async for item in saver.alist(address, filter={"run_id": run_id}):
        of_run[_place(item.config)[0]].insert(0, item)
    if checkpoint_id is not None:
        of_run.setdefault("", [])
    reader = _Reader(saver, graph)
    # Agents that began later may have the messages of earlier ones in their input.
    for ns, items in sorted(
        of_run.items(), key=lambda each: (-_depth(each[0]), each[1] and _place(each[1][0].config)[1])
    ):
        start = _place(items[0].parent_config)[1] if items else checkpoint_id
        if start is not None:  # a resumed run continues the tasks of a checkpoint of an earlier run
            conf = {"thread_id": thread_id, "checkpoint_ns": ns, "checkpoint_id": start}
            before = await saver.aget_tuple({"configurable": conf})
            if before is not None:
                reader.begin_from(ns, await _whole(saver, before))
        reader.read(ns, [await _whole(saver, item) for item in items])
    return reader.document()


def _place(config: Any) -> tuple[str, str | None]:
    conf = (config or {}).get("configurable") or {}
    return conf.get("checkpoint_ns") or "", conf.get("checkpoint_id")


async def _whole(saver: HostSaver, item: CheckpointTuple) -> CheckpointTuple:
    """Return a checkpoint with the messages of its channels that are stored as their changes."""
    values, versions = item.checkpoint["channel_values"], item.checkpoint["channel_versions"]
    if DELTAS not in (item.metadata or {}):
        return item
    changed = [channel for channel in versions if channel not in values and _is_state(channel)]
    histories = await saver.aget_delta_channel_history(config=item.config, channels=changed)
    rebuilt = {channel: _rebuilt(history) for channel, history in histories.items()}
    return item._replace(checkpoint={**item.checkpoint, "channel_values": {**values, **rebuilt}})


def _rebuilt(history: Mapping[str, Any]) -> list[BaseMessage]:
    """Return the messages of a channel from its last stored value and the writes since."""
    messages = list(_messages(history.get("seed")))
    for _, _, value in history["writes"]:
        if isinstance(value, Overwrite):
            messages, value = [], value.value
        for written in value if isinstance(value, list) else [value]:
            messages = _with_message(messages, written)
    return messages


def _with_message(messages: list[BaseMessage], written: Any) -> list[BaseMessage]:
    """Return messages with a written one: appended, in place of the one with its id, or as removal of that one."""
    if isinstance(written, Mapping) and "content" in written and ("role" in written or "type" in written):
        [written] = convert_to_messages([dict(written)])  # the input of a caller
    if not isinstance(written, BaseMessage):
        return messages
    if written.id == REMOVE_ALL_MESSAGES:
        return []
    others = [message for message in messages if message.id != written.id or written.id is None]
    if isinstance(written, RemoveMessage):
        return others
    if len(others) == len(messages):
        return [*messages, written]
    return [written if message.id == written.id else message for message in messages]


def _is_state(channel: str) -> bool:
    return not channel.startswith(("__", BRANCH))


def _depth(ns: str) -> int:
    return ns.count("|") + 1 if ns else 0


@dataclass
class _Reader:
    """Collects the calls of a run, from the innermost namespace to the root's."""

    saver: HostSaver
    graph: Pregel
    calls: dict[str, tuple[str, Any]] = field(
        default_factory=dict
    )  # call id → (namespace, tool call), in order
    results: dict[str, dict[str, Any]] = field(default_factory=dict)  # by call id
    answered_in: dict[str, set[str]] = field(
        default_factory=lambda: defaultdict(set)
    )  # call id → namespaces with its result
    edited: dict[str, Mapping[str, Any]] = field(default_factory=dict)  # call id → the call of a reviewer
    models: list[dict[str, Any]] = field(default_factory=list)
    interrupts: dict[str, list[Any]] = field(default_factory=lambda: defaultdict(list))  # by namespace
    seen: set[str] = field(default_factory=set)  # ids of answers of models, and of calls with results, so far

    def begin_from(self, ns: str, before: CheckpointTuple) -> None:
        """Read the checkpoint of an earlier run: its messages are known, the tasks that ran on it may be this run's."""
        for message in _messages(before.checkpoint["channel_values"]):
            self._learn_calls(ns, message)
            self.seen.add(_identity(message))
        self._read_writes(ns, before, is_own=False)

    def read(self, ns: str, items: Sequence[CheckpointTuple]) -> None:
        for item in items:
            self._read_writes(ns, item, is_own=True)
        if items:
            for channel, value in items[-1].checkpoint["channel_values"].items():
                if not channel.startswith("__"):
                    self._read_messages(ns, (), list(_messages(value)))

    def document(self) -> dict[str, Any]:
        tools = [
            {**_described(ns, {**call, **self.edited.get(id, {})}), **self.results[id]}
            for id, (ns, call) in self.calls.items()
            if id in self.results
        ]
        return {"tools": [*tools, *self._interrupted()], "models": self.models}

    def _read_writes(self, ns: str, item: CheckpointTuple, *, is_own: bool) -> None:
        """Read the writes on a checkpoint. `is_own`: the run has stored it.

        A task that asks a question ends its run, so its other writes on an own checkpoint are those of a later run.
        """
        values = item.checkpoint["channel_values"]
        for _, group in groupby(item.pending_writes or (), key=lambda write: write[0]):
            writes = [(channel, value) for _, channel, value in group]
            asked = [
                interrupt.value for channel, value in writes if channel == INTERRUPT for interrupt in value
            ]
            self.interrupts[ns] += asked
            if asked and is_own:
                continue
            for channel, value in writes:
                if channel == EDITED and isinstance(value, Mapping):
                    self.edited |= value
                if _is_state(channel) or channel == RETURN:
                    self._read_messages(ns, _messages(values.get(channel)), list(_messages(value)))
            self._read_commands(ns, values, writes)

    def _read_messages(
        self, ns: str, before: Iterator[BaseMessage] | tuple[()], messages: list[BaseMessage]
    ) -> None:
        """Read the messages of one write. `before` are those that its channel has already."""
        prompt = list(before)
        for message in messages:
            identity = _identity(message)
            if isinstance(message, AIMessage) and identity not in self.seen:
                self._learn_calls(ns, message)
                self.models.append(
                    {"messages": prompt_key(prompt), "response": encoded(self.saver.serde, message)}
                )
            elif isinstance(message, ToolMessage):
                self.answered_in[message.tool_call_id].add(ns)
                if identity not in self.seen:
                    self._learn_result(message)
            self.seen.add(identity)
            prompt.append(message)

    def _learn_calls(self, ns: str, message: BaseMessage) -> None:
        for call in getattr(message, "tool_calls", ()):
            if call["id"]:
                self.calls.setdefault(call["id"], (ns, call))

    def _learn_result(self, message: ToolMessage) -> None:
        result = {"content": message.content, "status": message.status}
        if message.artifact is not None:
            result["artifact"] = encoded(self.saver.serde, message.artifact)
        self.results[message.tool_call_id] = result

    def _read_commands(self, ns: str, values: Mapping[str, Any], writes: Sequence[tuple[str, Any]]) -> None:
        """Add the commands that tools may have returned to the results of their calls. `values` are the state before."""
        for segment in _segments(writes):
            messages = list(_messages(segment))
            ids = [message.tool_call_id for message in messages if isinstance(message, ToolMessage)]
            ids = [id for id in ids if id in self.calls and self._is_answered_by(ns, id)]
            if not ids or "command" in self.results[ids[-1]]:
                continue
            id = ids[-1]
            called_in = self.calls[id][0]
            is_for_parent = _depth(called_in) > _depth(ns)
            targets = self._targets(ns, called_in if is_for_parent else None, writes)
            holds_calls = any(getattr(message, "tool_calls", ()) for message in messages)
            is_own = len(ids) == 1 and not holds_calls and (len(segment) > 1 or bool(targets))
            if is_for_parent or is_own:
                update = {channel: _new(value, values.get(channel)) for channel, value in segment.items()}
                command = {
                    "update": update,
                    "goto": targets,
                    "is_for_parent": is_for_parent,
                    "is_of_tool": self._executes(ns, self.calls[id][1]["name"]),
                }
                self.results[id]["command"] = encoded(self.saver.serde, command)

    def _is_answered_by(self, ns: str, id: str) -> bool:
        """Whether a graph is the innermost one that got the result of a call, of those around the call."""
        called_in = self.calls[id][0]
        around = [own for own in self.answered_in[id] if not own or f"{called_in}|".startswith(f"{own}|")]
        return max(around, key=_depth, default=None) == ns

    def _executes(self, ns: str, name: str) -> bool:
        """Whether a `ToolNode` of a graph executes a tool. All updates of its task come from the tool."""
        builder = getattr(self._graph_of(ns), "builder", None)
        nodes = builder.nodes.values() if builder is not None else ()
        return any(name in getattr(node.runnable, "tools_by_name", ()) for node in nodes)

    def _targets(self, ns: str, from_ns: str | None, writes: Sequence[tuple[str, Any]]) -> list[Any]:
        """Return the nodes that a command of a tool went to: those that no edge of its node leads to.

        `from_ns` is the namespace of the subgraph whose tool addresses this graph.
        """
        builder = getattr(self._graph_of(ns), "builder", None)
        if builder is None:
            return []
        if from_ns is not None:
            nodes = {graph_at(from_ns).rpartition("|")[2]}
        else:
            nodes = {
                name for name, node in builder.nodes.items() if type(node.runnable).__name__ == "ToolNode"
            }
        branches = [branch for node in nodes for branch in builder.branches.get(node, {}).values()]
        if any(branch.ends is None for branch in branches):
            return []  # they may lead anywhere
        known = {end for start, end in builder.edges if start in nodes}
        known |= {target for branch in branches for target in branch.ends.values()}
        targets: list[Any] = [
            channel.removeprefix(BRANCH)
            for channel, _ in writes
            if channel.startswith(BRANCH) and channel.removeprefix(BRANCH) not in known
        ]
        if from_ns is not None:
            targets += [value for channel, value in writes if channel == SENDS and isinstance(value, Send)]
        return targets

    def _graph_of(self, ns: str) -> Any:
        if not ns:
            return self.graph
        return dict(self.graph.get_subgraphs(recurse=True)).get(graph_at(ns))

    def _interrupted(self) -> Iterator[dict[str, Any]]:
        """Yield the calls without a result at which a tool may have asked its question.

        A task that executes several calls loses the results of the others when one of them asks.
        """
        for ns, values in self.interrupts.items():
            calls = [call for id, (own, call) in self.calls.items() if own == ns and id not in self.results]
            for position, call in enumerate(calls if values else ()):
                asked = encoded(self.saver.serde, values[min(position, len(values) - 1)])
                is_lost = len(calls) > len(values)
                yield {**_described(ns, call), "interrupt": asked, "may_be_lost": is_lost}


def _described(ns: str, call: Mapping[str, Any]) -> dict[str, Any]:
    return {"id": call["id"], "name": call["name"], "args": call["args"], "at": graph_at(ns)}


def _identity(message: BaseMessage) -> str:
    """Return what two copies of a message share: subgraphs write their messages to the parent's state, too."""
    if isinstance(message, ToolMessage):
        return f"result {message.tool_call_id}"
    return message.id or f"object {id(message)}"


def _segments(writes: Sequence[tuple[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yield the updates of a task, each with the messages of one write.

    A node that calls several tools writes one command after the other. Other updates belong to the message that follows
    them; if the last write has no message, to the one before them.
    """
    own = [(channel, value) for channel, value in writes if _is_state(channel)]
    answers = [
        n for n, (_, value) in enumerate(own) if any(isinstance(m, ToolMessage) for m in _messages(value))
    ]
    if len(answers) < 2:
        yield dict(own)
    elif answers[-1] == len(own) - 1:
        for start, end in pairwise([-1, *answers]):
            yield dict(own[start + 1 : end + 1])
    else:
        for start, end in pairwise([0, *answers[1:], len(own)]):
            yield dict(own[start:end])


def _new(value: Any, before: Any) -> Any:
    """Return an update without the messages that its channel has already: the replay has others in their place."""
    if not isinstance(value, list):
        return value
    known = {message.id for message in _messages(before)}
    return [item for item in value if not (isinstance(item, BaseMessage) and item.id in known)]


def _messages(value: Any, depth: int = 0) -> Iterator[BaseMessage]:
    """Yield the messages in a value of a channel."""
    if isinstance(value, BaseMessage):
        yield value
    elif depth < MAX_DEPTH:
        if isinstance(value, Overwrite):
            value = value.value
        inner = (
            value.values() if isinstance(value, Mapping) else value if isinstance(value, list | tuple) else ()
        )
        for item in inner:
            yield from _messages(item, depth + 1)
