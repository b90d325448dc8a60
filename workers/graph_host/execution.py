"""Execution of one run, from its RUN frame to its DONE frame."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from functools import partial
from typing import Any

from langchain_core.runnables import RunnableConfig
from langgraph.errors import EmptyInputError
from langgraph.pregel import Pregel

from . import frames
from .call_records import CallRecords
from .checkpoints.node_times import NodeTimes
from .checkpoints.run_checkpoints import RunCheckpoints, configured, current_run
from .checkpoints.storage import MemoryStorage, Storage
from .connection import Connection
from .events import EventWriter, StreamRequest
from .inputs import (
    MissingNodeError,
    UnknownInterruptError,
    check_resume,
    command_of,
    run_config,
    run_metadata,
    traced_as,
)
from .loader import RUN, LoadedGraph
from .loop import Loop, current_depth
from .outcome import Outcome, current_usage, finished_state, has_changes, is_over, read_state
from .output import Limiter, current_run_id
from .project.loopback import current_user
from .project.users import AUTH_USER, configurable_of
from .protocol.log import PROTOCOL, answered_interrupts, waiting_interrupts, write_answered, write_requested
from .protocol.transforming import transformed
from .replays import interception
from .replays.replay import Replay
from .serialization import dumps, error_record, loads
from .spans import CallTimes

log = logging.getLogger("runyard")

Chunk = tuple[tuple[str, ...], str, Any]  # namespace, mode, payload

# How long a cancelled node may continue before the run ends without it.
GIVE_UP_SECONDS = 5.0


@dataclass(frozen=True)
class ByteLimits:
    """Size limits in bytes."""

    event_bytes: int = 1 << 20
    state_bytes: int = 16 << 20
    checkpoint_bytes: int = 32 << 20


class Execution:
    """A run in progress. `start()` creates its task. The DONE frame is sent exactly once."""

    def __init__(
        self,
        connection: Connection,
        entry: LoadedGraph,
        id: bytes,
        spec: dict[str, Any],
        input: bytes,
        stored: list[bytes],
        *,
        limits: ByteLimits,
        limiter: Limiter,
        versions: dict[str, str],
    ) -> None:
        self._connection = connection
        self._entry = entry
        self._id = id
        self._spec = spec
        self._input = input
        self._limits = limits
        self._limiter = limiter
        self._metadata = run_metadata(spec, versions["langgraph"])
        self._times = None if spec.get("temporary") else NodeTimes()
        self._checkpoints = self._make_checkpoints(stored)
        replay = spec.get("replay")
        self._replay = Replay(replay, entry.saver.serde) if replay else None
        request = StreamRequest.of(spec)
        self._modes, self._subgraphs = request.modes, request.subgraphs
        self._events = EventWriter(connection, id, request, max_bytes=limits.event_bytes)
        self._records = self._make_records(request)
        self._calls = CallTimes(self._times, self._report_usage, self._records)
        self._cancelled = False
        self._has_begun = False
        self._is_done = False
        self._graph: Pregel | None = None
        self._task: asyncio.Task[None] | None = None
        self._giving_up: asyncio.Task[None] | None = None  # the reference keeps the task alive

    def start(self) -> asyncio.Task[None]:
        """Create the task that executes the run. The task never raises."""
        self._task = self._connection.loop.create_task(self._run())
        return self._task

    def cancel(self) -> None:
        """Cancel the run. If a node ignores the cancellation, the run ends without it after GIVE_UP_SECONDS."""
        if self._cancelled or self._task is None:
            return
        self._cancelled = True
        if self._has_begun:  # a task cancelled before its first step would never send DONE
            self._task.cancel()
        if not self._is_done:  # otherwise the task only reads the state, and ends when that is cancelled
            self._connection.loop.call_later(GIVE_UP_SECONDS, self._give_up)

    def widen(self, modes: list[str]) -> None:
        """Begin to send events of these stream modes, as far as LangGraph was asked for them."""
        self._events.widen(modes)

    @property
    def is_movable(self) -> bool:
        """Whether a new attempt would repeat no step: either no step is done yet, or each done step is stored."""
        is_stored = not self._spec.get("temporary") and self._spec.get("durability") != "exit"
        return is_stored or (self._events.shows_state and self._events.states <= 1)

    def _make_checkpoints(self, stored: list[bytes]) -> RunCheckpoints:
        spec = self._spec
        is_temporary = bool(spec.get("temporary"))
        configurable = configurable_of(spec)
        newest = stored if stored and loads(stored[0]).get("found") else None
        return RunCheckpoints(
            thread_id=str(spec["thread_id"]),
            storage=MemoryStorage()
            if is_temporary
            else Storage(self._connection, self._id, str(spec["thread_id"])),
            metadata={"user_id": "", **configured(configurable), **self._metadata},
            waits=spec.get("durability") == "sync" and not is_temporary,
            is_fresh=is_temporary or bool(spec.get("fresh")) or bool(stored and newest is None),
            newest=newest,
            times=self._times,
        )

    def _make_records(self, request: StreamRequest) -> CallRecords | None:
        """Return the sender of call records of a traced run."""
        if not request.traced:
            return None
        send = partial(self._connection.send, frames.CALL, self._id)
        return CallRecords(send, has_nodes=request.reports_nodes, has_subgraphs=request.subgraphs)

    async def _run(self) -> None:
        self._has_begun = True
        self._connection.flush_late()  # of the runs that start together, each takes long
        current_run.set(self._checkpoints)
        current_run_id.set(self._id)
        current_depth.set(self._spec.get("depth", 0))
        current_usage.set(self._calls)
        current_user.set(configurable_of(self._spec).get(AUTH_USER))
        if self._replay is not None:
            interception.install()
            self._replay.enter()
        try:
            if not self._cancelled:
                with traced_as(self._spec.get("langsmith_tracer")):
                    await self._stream_graph()
        except UnknownInterruptError as error:
            outcome = Outcome("error", error_record(error), keeps_thread=True)
        except asyncio.CancelledError as error:
            outcome = Outcome("cancelled") if self._cancelled else Outcome("error", error_record(error))
        except BaseException as error:  # any exception of the graph is the run's outcome
            outcome = Outcome("cancelled") if self._cancelled else Outcome("error", error_record(error))
            log.error("run failed", exc_info=error)
        else:
            outcome = Outcome("cancelled" if self._cancelled else "success")
        await self._finish(outcome)

    async def _stream_graph(self) -> None:
        config = run_config(self._spec, self._metadata)
        context = self._spec.get("context") or {}
        entry = self._entry
        if entry.graph is not None:
            await self._stream(entry.graph, config, context)
            return
        async with entry.opened(config, RUN, context) as graph:
            await self._stream(graph, config, context)

    async def _stream(self, graph: Pregel, config: RunnableConfig, context: dict[str, Any]) -> None:
        self._graph = graph
        await self._check_resume(graph, config)
        await self._send_answers(config)
        events, connection = self._events, self._connection
        if not _shows_state(graph):
            events.show_part()
        if "lifecycle" in self._modes:
            events.emit("lifecycle", (), dumps({"event": "started", "namespace": []}))
        options = self._options(graph, context)
        source = self._with_library_events if "events" in self._modes else self._plain
        if events.protocol is not None:
            config["callbacks"] = [events.protocol.calls]
        stream = source(graph, config, options)
        if events.protocol is not None:
            stream = transformed(graph, events.protocol, stream)
        async with contextlib.aclosing(stream):
            async for ns, mode, payload in stream:
                events.write(ns, mode, payload)
                if connection.is_full:
                    await connection.drained()
        self._checkpoints.is_over = True
        events.finish()

    async def _check_resume(self, graph: Pregel, config: RunnableConfig) -> None:
        """Refuse a resume without state or without the waiting node, and a strict one that matches no interrupt.

        LangGraph would otherwise start the graph without input, or drop the answer to a node that another revision of
        the graph had. A resume from a given checkpoint is allowed: it runs the interrupted step of that checkpoint
        again.
        """
        spec = self._spec
        command = spec.get("command") or {}
        resume = command.get("resume")
        if resume is None or spec.get("resume_from_checkpoint"):
            return
        is_strict = spec.get("strict_resume")
        if self._checkpoints.is_fresh and not is_strict and command.keys() == {"resume"}:
            raise EmptyInputError("There is nothing to resume on a thread without state")
        state = await graph.aget_state(config)
        has_task = bool(state.tasks or command.get("goto"))
        if not has_task and await waiting_interrupts(self._entry.saver, config):
            raise MissingNodeError
        if is_strict and "checkpoint_id" not in (config.get("configurable") or {}):
            check_resume(resume, state)

    async def _send_answers(self, config: RunnableConfig) -> None:
        """Write events that mark the interrupts answered by this run's resume.

        Other clients that have the thread open then know that these interrupts need no answer any more.
        """
        spec = self._spec
        resume = (spec.get("command") or {}).get("resume")
        if resume is None or spec.get("temporary") or spec.get("resume_from_checkpoint"):
            return
        ids = await answered_interrupts(self._entry.saver, config, resume)
        write_answered(self._events.protocol_log(), ids)

    def _options(self, graph: Pregel, context: dict[str, Any]) -> dict[str, Any]:
        spec = self._spec
        durability = spec.get("durability") or "async"
        if spec.get("temporary") and not self._modes & {"checkpoints", "debug", PROTOCOL}:
            # No client reads the checkpoints in between, and one checkpoint at the end is cheaper.
            durability = "exit"
            self._checkpoints.skips_root = not has_changes(graph)
        return {
            "stream_mode": self._events.graph_modes,
            "subgraphs": self._subgraphs,
            "interrupt_before": spec.get("interrupt_before"),
            "interrupt_after": spec.get("interrupt_after"),
            "durability": durability,
            "context": self._entry.context_for(graph, context),
            "output_keys": graph.output_channels,
        }

    async def _plain(
        self, graph: Pregel, config: RunnableConfig, options: dict[str, Any]
    ) -> AsyncGenerator[Chunk, None]:
        stream = graph.astream(self._graph_input(), config, **options)
        async with contextlib.aclosing(stream):  # type: ignore[type-var]
            with contextlib.ExitStack() as stack:
                is_first = True
                async for chunk in stream:
                    if is_first:
                        is_first = False
                        self._skip_queue(stream, stack)
                    yield chunk if options["subgraphs"] else ((), *chunk)  # type: ignore[misc]

    def _skip_queue(self, stream: Any, stack: contextlib.ExitStack) -> None:
        """Write chunks that nodes stream from now on as events when they are streamed, until the stack is closed.

        LangGraph passes them through a queue, which its generator reads. A chunk takes the queue while others are in it,
        so that events keep their order, and while the runner does not read.
        """
        loop, queue = self._connection.loop, _queue_of(stream)
        if queue is None or self._events.protocol is not None or not isinstance(loop, Loop):
            return
        events, connection, subgraphs = self._events, self._connection, self._subgraphs

        def receive(chunk: Chunk) -> None:
            if self._cancelled or connection.is_full or not queue.empty():
                queue.put_nowait(chunk)
                return
            ns, mode, payload = chunk
            try:
                events.write(ns if subgraphs else (), mode, payload)
            except Exception:  # any error of the payload's own code, which the queue's reader raises again
                queue.put_nowait(chunk)

        stack.enter_context(loop.receiving(queue, receive))

    async def _with_library_events(
        self, graph: Pregel, config: RunnableConfig, options: dict[str, Any]
    ) -> AsyncGenerator[Chunk, None]:
        """Yield the chunks of the graph's stream, taken from LangChain's event stream.

        Every other event of that stream is written as an event of the mode `events`.
        """
        root = self._spec["run_id"]
        stream = graph.astream_events(self._graph_input(), config, version="v2", **options)
        async with contextlib.aclosing(stream):  # type: ignore[type-var]
            async for event in stream:
                if event["event"] == "on_chain_stream" and event["run_id"] == root:
                    chunk: Any = event["data"].get("chunk")
                    yield chunk if options["subgraphs"] else ((), *chunk)
                    continue
                if event["event"] == "on_chain_end" and event["run_id"] == root:
                    self._events.finish()  # the graph's end is its last event
                self._events.on_library_event(event)

    def _graph_input(self) -> Any:
        if self._spec.get("resume_from_checkpoint"):
            return None
        command = self._spec.get("command")
        return loads(self._input) if command is None else command_of(command)

    def _report_usage(self, total: int) -> None:
        self._connection.send(frames.USED, self._id, b"%d %b" % (total, dumps(self._calls.by_model())))

    def _give_up(self) -> None:
        if not self._is_done:
            log.warning("a node ignored the cancellation of its run: going on without it")
            self._giving_up = self._connection.loop.create_task(self._abandon())

    async def _abandon(self) -> None:
        current_run.set(self._checkpoints)
        current_run_id.set(self._id)
        await self._finish(Outcome("cancelled"))

    async def _finish(self, outcome: Outcome) -> None:
        if self._is_done:
            return
        self._is_done = True
        self._checkpoints.is_over = True
        try:
            await self._add_state(outcome)
        except BaseException as error:  # reading the state runs user code: serializers, reducers, schemas
            log.exception("the state after the run could not be read")
            if outcome.status == "success":
                outcome.fail(error_record(error))
            outcome.unchanged = True
        self._report(outcome)

    async def _add_state(self, outcome: Outcome) -> None:
        """Fill in the thread's state after the run. Skips reading it if the last streamed values are the state."""
        if self._graph is None or outcome.keeps_thread:
            outcome.unchanged = True
            return
        events = self._events
        saved = self._checkpoints.last.get("")
        if outcome.status == "success" and saved and is_over(self._graph, saved.checkpoint, events.values):
            values = events.values_json or dumps(events.values)
            outcome.use(finished_state(self._checkpoints.thread_id, saved), values)
            return
        state = await read_state(self._graph, self._checkpoints.thread_id)
        outcome.use_snapshot(state, self._checkpoints.thread_id)

    def _report(self, outcome: Outcome) -> None:
        """Send the last events and DONE."""
        events = self._events
        if len(outcome.values) > self._limits.state_bytes:
            size, limit = len(outcome.values), self._limits.state_bytes
            outcome.fail(
                {"error": "StateTooLarge", "message": f"state of {size} bytes: the limit is {limit} bytes"}
            )
            outcome.values, outcome.unchanged = b"null", True
        events.end_subgraphs(outcome.lifecycle()["event"])
        try:
            self._end_protocol(outcome)
        except Exception:  # any error of the project's own objects
            log.exception("the last events of protocol v2 could not be written")
        if outcome.error and outcome.status == "error":
            events.emit("error", (), dumps(outcome.error))
        if "lifecycle" in self._modes:
            events.emit("lifecycle", (), dumps(outcome.lifecycle()))
        events.is_closed = True
        self._checkpoints.storage.is_closed = True
        outcome.usage, outcome.node_usage = self._calls.by_model(), self._calls.by_node()
        outcome.first_token_ago = self._calls.first_token_ago()
        outcome.spans = self._calls.document(outcome.unfinished_tasks())
        if self._records is not None:
            self._records.close("cancelled" if outcome.status == "cancelled" else "unfinished")
        outcome.replay = self._replay and self._replay.report()
        shown_json = events.shown_json
        if shown_json is None and not events.shows_state:
            shown_json = dumps(events.shown)
        answer = outcome.answer(events.shown, shown_json)
        body = frames.pack([dumps(outcome.document()), outcome.values, answer])
        self._limiter.forget(self._id)
        self._connection.send(frames.DONE, self._id, body)

    def _end_protocol(self, outcome: Outcome) -> None:
        """Write the open interrupts as events of protocol v2, also if no reader of that protocol was there so far."""
        events = self._events
        interrupts = [] if self._spec.get("temporary") else outcome.waiting_interrupts
        if events.protocol is not None:
            events.protocol.close(outcome.lifecycle()["event"], outcome.error, interrupts)
        elif interrupts:
            write_requested(events.protocol_log(), interrupts, {})


def _queue_of(stream: Any) -> asyncio.Queue[Any] | None:
    """Return the queue of LangGraph's generator, or None if the graph's class or LangGraph's version streams otherwise."""
    if getattr(stream, "ag_code", None) is not Pregel.astream.__code__ or stream.ag_frame is None:
        return None
    queue = stream.ag_frame.f_locals.get("stream")
    return queue if isinstance(queue, asyncio.Queue) else None


def _shows_state(graph: Pregel) -> bool:
    """Whether a graph's output contains its whole state."""
    output, state = graph.output_channels, graph.stream_channels_asis
    return output == state or (isinstance(output, list) and set(state) <= set(output))
