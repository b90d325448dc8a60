"""Queries: graph work other than runs, such as reading a thread's state or history, and updating its state.

The document of a QUERY frame has `op`, `graph_id`, `thread_id`, and the `config` and `context` for a graph factory. The
ops and their other keys:

    state    `checkpoint` (null: the newest), `subgraphs`; with `left_by`, the id of a past run: the state as the run left
             it at its last `checkpoint`
    history  `limit`, `before` (checkpoint id or null), `filter` (of metadata), `checkpoint_ns`, `values` (false: omit)
    update   `checkpoint` (or null), `supersteps`: [[{`values`, `command`, `as_node`} …] …]
    recording  `run_id`, `checkpoint_id` (root checkpoint that the run began from, or null): `replays/recordings.py`
    embed    `ops`: store operations as in `store.py`; without graph and thread
    score    `input`, `reference`, `output`, `run`: a call of the project's scorer (`replays/scoring.py`); without graph
             and thread
    authenticate, authorize  calls of the project's authorization (`project/auth.py`); without graph and thread

The answer to each op but `update` is one JSON document. An `update` stores nothing itself. Its answer contains the
data to store, so that the runner can store it in one transaction.
"""

from __future__ import annotations

import asyncio
from json import dumps as json_dumps
from typing import Any

from langchain_core.runnables import RunnableConfig
from langgraph.errors import InvalidUpdateError
from langgraph.pregel import Pregel
from langgraph.types import StateSnapshot, StateUpdate

from . import frames
from .checkpoints.run_checkpoints import RunCheckpoints, configured, current_run, tuple_question
from .checkpoints.storage import Overlay
from .connection import Connection
from .inputs import command_of, query_config
from .loader import READ_STATE, UPDATE_STATE, LoadedGraph
from .outcome import empty_record, interrupts_by_task, read_state, state_record
from .output import current_run_id
from .project.loopback import current_user
from .project.users import AUTH_USER, configurable_of
from .replays.recordings import recording
from .serialization import dumps, error_record, without_nul
from .store import SemanticIndex

MAX_ANSWER_BYTES = 48 * 1024 * 1024  # less than the limit of a frame


class Query:
    """One query in progress. `run()` sends the ANSWER frame exactly once."""

    def __init__(
        self,
        connection: Connection,
        entry: LoadedGraph,
        id: bytes,
        document: dict[str, Any],
        versions: dict[str, str],
    ) -> None:
        self._connection = connection
        self._entry = entry
        self._id = id
        self._document = document
        self._thread_id = str(document["thread_id"])
        self._storage = Overlay(connection, id, self._thread_id)
        self._checkpoints = RunCheckpoints(
            thread_id=self._thread_id,
            storage=self._storage,
            metadata={
                **configured(configurable_of(document)),
                "thread_id": self._thread_id,
                "graph_id": entry.graph_id,
                "langgraph_version": versions["langgraph"],
                **(document.get("metadata") or {}),
            },
            ships_all=True,
            records=None if document["op"] == "update" else {},
        )

    async def run(self) -> None:
        """Compute and send the answer. Errors become refusals; only a cancellation is raised."""
        current_run.set(self._checkpoints)
        current_run_id.set(self._id)
        current_user.set(configurable_of(self._document).get(AUTH_USER))
        try:
            parts = await self._answer()
            if sum(map(len, parts)) > MAX_ANSWER_BYTES:
                error = {"error": "AnswerTooLarge", "message": "the answer is too large: ask for less"}
                parts = [refusal(error, "too_large")]
        except asyncio.CancelledError:
            raise
        except InvalidUpdateError as error:
            parts = [refusal(error_record(error), "invalid")]
        except BaseException as error:  # any error of the user's schemas, reducers and factories
            parts = [refusal(error_record(error), "failed")]
        self._connection.send(frames.ANSWER, self._id, frames.pack(parts))

    async def _answer(self) -> list[bytes]:
        access = UPDATE_STATE if self._document["op"] == "update" else READ_STATE
        entry, config = self._entry, query_config(self._document)
        if entry.graph is not None:
            return await self._answer_from(entry.graph)
        async with entry.opened(config, access, self._document.get("context") or {}) as graph:
            return await self._answer_from(graph)

    async def _answer_from(self, graph: Pregel) -> list[bytes]:
        match self._document["op"]:
            case "state":
                return [dumps(await self._state(graph))]
            case "history":
                return [dumps(await self._history(graph))]
            case "update":
                return await self._update(graph)
            case "recording":
                return [dumps(await self._recording(graph))]
            case op:
                return [refusal({"error": "UnknownQuery", "message": f"this host cannot answer '{op}'"})]

    async def _state(self, graph: Pregel) -> dict[str, Any]:
        if self._document.get("left_by"):
            return await self._state_left_by(graph)
        config = query_config(self._document, self._document.get("checkpoint"))
        deep = bool(self._document.get("subgraphs"))
        try:
            snapshot = await graph.aget_state(config, subgraphs=deep)
        except ValueError as error:
            if _is_unknown_subgraph(error):
                return empty_state(self._thread_id, self._document.get("checkpoint") or {})
            raise
        return state_document(snapshot, self._thread_id, deep=deep)

    async def _state_left_by(self, graph: Pregel) -> dict[str, Any]:
        """Return the state as a past run left it: its last checkpoint serves as the thread's newest one."""
        address = query_config(self._document, self._document["checkpoint"])
        question = {**tuple_question(address), "left_by": self._document["left_by"]}
        self._checkpoints.newest = await self._storage.ask(frames.ASK, question, [])
        return state_document(await graph.aget_state(query_config(self._document)), self._thread_id)

    async def _history(self, graph: Pregel) -> list[dict[str, Any]]:
        document = self._document
        before: RunnableConfig | None = None
        if document.get("before"):
            before = {"configurable": {"checkpoint_id": document["before"]}}
        config = query_config(self._document, {"checkpoint_ns": document.get("checkpoint_ns")})
        states = graph.aget_state_history(
            config, filter=document.get("filter") or None, before=before, limit=document["limit"]
        )
        try:
            return [
                state_document(snapshot, self._thread_id, values=document.get("values", True))
                async for snapshot in states
            ]
        except ValueError as error:
            if _is_unknown_subgraph(error):
                return []
            raise

    async def _recording(self, graph: Pregel) -> dict[str, Any]:
        run_id, checkpoint_id = self._document["run_id"], self._document.get("checkpoint_id")
        return await recording(self._entry.saver, graph, self._thread_id, run_id, checkpoint_id)

    async def _update(self, graph: Pregel) -> list[bytes]:
        document = self._document
        supersteps = [[_state_update(update) for update in step] for step in document["supersteps"]]
        try:
            config = await graph.abulk_update_state(
                query_config(self._document, document.get("checkpoint")), supersteps
            )
        except ValueError as error:
            if _is_unknown_subgraph(error):
                raise InvalidUpdateError(str(error)) from error
            raise
        snapshot = await read_state(graph, self._thread_id)
        written_at = config.get("configurable") or {}
        answer = {
            "checkpoint": {
                "thread_id": self._thread_id,
                "checkpoint_ns": written_at.get("checkpoint_ns", ""),
                "checkpoint_id": written_at.get("checkpoint_id"),
            },
            "state": state_record(snapshot, self._thread_id),
            "interrupts": interrupts_by_task(snapshot.tasks),
            "written": [[kind, header, len(blobs)] for kind, header, blobs in self._storage.written],
        }
        blobs = [blob for _, _, parts in self._storage.written for blob in parts]
        return [without_nul(dumps(answer)), dumps(snapshot.values), *blobs]


async def answer_embed(
    connection: Connection, index: SemanticIndex | None, id: bytes, document: dict[str, Any]
) -> None:
    """Answer a query for the vectors of store operations, for callers outside of graphs."""
    ops = document["ops"]
    try:
        if index is None:
            raise LookupError("this project's store has no index")
        await index.aadd_vectors(ops)
        answer = dumps([{name: op.get(name) for name in ("vectors", "indexed_by", "near")} for op in ops])
    except Exception as error:  # any error of the user's embeddings
        answer = refusal(error_record(error))
    connection.send(frames.ANSWER, id, frames.pack([answer]))


def state_document(
    snapshot: StateSnapshot, thread_id: str, *, deep: bool = False, values: bool = True
) -> dict[str, Any]:
    """Return a state in the shape of the API.

    `deep` includes the states of the subgraphs that wait in its tasks. `values` includes the state's values.
    """
    record = {**({"values": snapshot.values} if values else {}), **state_record(snapshot, thread_id)}
    if deep:
        for task, task_record in zip(snapshot.tasks, record["tasks"], strict=True):
            if isinstance(task.state, StateSnapshot):
                task_record["state"] = state_document(task.state, thread_id, deep=True)
                task_record["checkpoint"] = None
    return record


def refusal(error: dict[str, str], kind: str = "failed") -> bytes:
    """Return an answer that refuses the query. `kind` is invalid, failed or too_large."""
    return json_dumps({"refused": {**error, "kind": kind}}).encode()


def _state_update(update: dict[str, Any]) -> StateUpdate:
    command = update.get("command")
    values: Any = update.get("values") if command is None else command_of(command)
    return StateUpdate(values, update.get("as_node"))


def _is_unknown_subgraph(error: ValueError) -> bool:
    return type(error) is ValueError and str(error).startswith("Subgraph ")


def empty_state(thread_id: str, address: dict[str, Any]) -> dict[str, Any]:
    """Return an empty state for an address that has no state."""
    place = {"checkpoint_ns": "", **address, "thread_id": thread_id} if address.get("checkpoint_id") else None
    return {"values": {}, **empty_record(place)}
