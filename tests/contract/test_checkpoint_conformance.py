"""The public conformance suite for checkpoint savers, over a real socket and a real PostgreSQL."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
from collections.abc import AsyncGenerator, Iterator
from contextlib import contextmanager
from typing import Any
from uuid import NAMESPACE_OID, UUID, uuid5

from langgraph.checkpoint.conformance import checkpointer_test, validate
from sqlalchemy import Row, select
from sqlalchemy.dialects.postgresql import insert

from shared.infra.postgres import connection
from shared.models import RUN, THREAD
from shared.threads import checkpoint_reads
from shared.threads.checkpoints import Write
from tests.support import factories
from workers.graph_host import frames
from workers.graph_host.checkpoints.run_checkpoints import RunCheckpoints, current_run
from workers.graph_host.checkpoints.saver import HostSaver
from workers.graph_host.checkpoints.storage import Storage
from workers.graph_host.connection import Connection


class Pump(threading.Thread):
    """The runner's end of the socket. Maps the suite's thread ids, which may be any text, to UUIDs."""

    def __init__(self, sock: socket.socket, run: Row[Any]) -> None:
        super().__init__(daemon=True)
        self._socket = sock
        self._run = run
        self._names: dict[UUID, str] = {}

    def run(self) -> None:
        decoder = frames.Decoder()
        while data := self._socket.recv(1 << 20):
            for kind, id, body in decoder.feed(data):
                document, *blobs = frames.unpack(body)
                head = json.loads(document)
                answer = self._answer(kind, head, blobs)
                if head["ask"]:
                    parts = [json.dumps({"ask": head["ask"]}).encode(), *answer]
                    self._socket.sendall(frames.encode(frames.REPLY, id, frames.pack(parts)))

    def _answer(self, kind: int, head: dict[str, Any], blobs: list[bytes]) -> list[bytes]:
        run = self._run
        if kind == frames.ASK:
            ask = {key: self._mapped(key, value) for key, value in head.items()}
            with connection() as conn:
                document, *found = checkpoint_reads.answer(conn, run.deployment_id, ask, thread_id=None)
            return [self._named(document), *found]
        thread_id = self._thread(head["thread_id"])
        write = Write(run.deployment_id, thread_id, run.run_id, run.attempt, str(run.owner), head, blobs)
        assert factories.store(write) == set()
        return []

    def _mapped(self, key: str, value: Any) -> Any:
        if key in ("thread_id", "source", "target"):
            return str(self._thread(value))
        if key == "thread_ids":
            return [str(self._thread(name)) for name in value]
        return value

    def _thread(self, name: str) -> UUID:
        thread_id = uuid5(NAMESPACE_OID, name)
        if thread_id not in self._names:
            self._names[thread_id] = name
            with connection() as conn:
                made = insert(THREAD).values(deployment_id=self._run.deployment_id, thread_id=thread_id)
                conn.execute(made.on_conflict_do_nothing())
        return thread_id

    def _named(self, document: bytes) -> bytes:
        answer = json.loads(document)
        for record in (answer, *answer.get("items", ())):
            if "thread_id" in record:
                record["thread_id"] = self._names[UUID(record["thread_id"])]
        return json.dumps(answer).encode()


@contextmanager
def connected(run: Row[Any]) -> Iterator[HostSaver]:
    """Yield a saver on the running event loop, connected to a pump."""
    ours, theirs = socket.socketpair()
    loop = asyncio.get_running_loop()
    host = Connection(ours, loop, lambda kind, id, body: None)
    token = current_run.set(
        RunCheckpoints(thread_id="", storage=Storage(host, run.run_id.bytes, "barrier"), keeps_foreign=True)
    )
    pump = Pump(theirs, run)
    pump.start()
    try:
        yield HostSaver()
    finally:
        current_run.reset(token)
        loop.remove_reader(ours)
        loop.remove_writer(ours)
        ours.close()
        pump.join()
        theirs.close()


def test_the_saver_passes_the_whole_conformance_suite(db: object) -> None:
    run_id = factories.run(factories.deployment(), status="running", attempt=1, owner="here")
    with connection() as conn:
        run: Any = conn.execute(select(RUN).where(RUN.c.run_id == run_id)).one()

    @checkpointer_test(name="runyard")
    async def saver() -> AsyncGenerator[HostSaver, None]:
        with connected(run) as made:
            yield made

    report = asyncio.run(validate(saver))

    failures = {name: result.failures for name, result in report.results.items() if result.failures}
    assert failures == {}
    assert {name: result.passed for name, result in report.results.items()} == dict.fromkeys(
        report.results, True
    )
    assert report.conformance_level() == "FULL"
