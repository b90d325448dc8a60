"""The bare graphs, run in this process, as a target: the cost of a run without a server.

A run on a thread uses LangGraph's in-memory checkpointer or a durable one. A stateless run has no checkpointer.
"""

from __future__ import annotations

import asyncio
import importlib
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from uuid import uuid4

from bench.targets import Call, Event, Recorded

GRAPHS = Path(__file__).parent / "graphs"
NAMES = ("echo", "steps", "tokens", "llm", "idle", "block", "burn")
# Synchronous nodes run on the loop's default pool, whose size would otherwise depend on the number of cores.
THREADS = 32
LABEL = "in-process"


class InProcess:
    shares_our_process = True

    def __init__(self, *, durable: bool = False) -> None:
        """Load the graphs. With `durable`, PostgreSQL has a run's writes when the run ends. Raises TargetError."""
        # imported here because measuring a server does not need LangGraph
        from langgraph.checkpoint.memory import InMemorySaver

        from bench.embedded_server import EmbeddedServer
        from bench.lean import LeanSaver
        from cli.machine import embedded

        self.label = f"{LABEL} durable" if durable else LABEL
        sys.path.insert(0, str(GRAPHS))
        module = importlib.import_module("workloads")
        self._lean = LeanSaver() if durable else None
        self.database = EmbeddedServer(embedded.postgres) if durable else None
        saver = self._lean or InMemorySaver()
        self._stateless = {name: getattr(module, name) for name in NAMES}
        self._threaded = {
            name: graph.builder.compile(checkpointer=saver) for name, graph in self._stateless.items()
        }
        self._pool: ThreadPoolExecutor | None = None
        self._is_open = False

    async def create_thread(self) -> str:
        if self._lean and self.database and not self._is_open:
            self._is_open = True
            await self._lean.open(self.database.url)
        return str(uuid4())

    async def run(self, call: Call, *, timeout_seconds: float) -> Recorded:
        self._use_threads()
        outcome = Recorded(sent_at=time.time())
        try:
            async with asyncio.timeout(timeout_seconds):
                answer = await self._run(call, outcome.recorded)
            if call.proof not in answer:
                outcome.error = "not the answer expected"
        except TimeoutError:
            outcome.error = "timeout"
        outcome.ended_at = time.time()
        return outcome

    async def aclose(self) -> None:
        if self._pool is not None:
            self._pool.shutdown(wait=False)
            self._pool = None
        if self._lean and self.database:
            await self._lean.aclose()
            self.database.stop()

    async def _run(self, call: Call, events: list[Event]) -> str:
        answer = await self._answer(call, events)
        if self._lean and call.thread_id:
            await self._lean.commit(call.thread_id)
        return answer

    async def _answer(self, call: Call, events: list[Event]) -> str:
        """Return the whole answer as text."""
        graph = (self._threaded if call.thread_id else self._stateless)[call.graph]
        config = {"configurable": {"thread_id": call.thread_id}} if call.thread_id else None
        if call.stream_mode is None:
            return str(await graph.ainvoke(call.input, config))
        name = "messages" if call.stream_mode == "messages-tuple" else call.stream_mode
        async for data in graph.astream(call.input, config, stream_mode=name):
            events.append(Event(time.time(), name, _as_on_the_wire(name, data)))
        return str([event.data for event in events])

    def _use_threads(self) -> None:
        if self._pool is None:
            self._pool = ThreadPoolExecutor(THREADS)
            asyncio.get_running_loop().set_default_executor(self._pool)


def _as_on_the_wire(name: str, data: Any) -> Any:
    return [{"content": data[0].content}, {}] if name == "messages" else data
