"""The public conformance suite for checkpoint savers, over a real socket and a real PostgreSQL."""

from __future__ import annotations

import asyncio
import json
import socket
import subprocess
import threading
from collections.abc import AsyncGenerator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from uuid import NAMESPACE_OID, UUID, uuid5

import pytest
from langgraph.checkpoint.conformance import checkpointer_test, validate
from sqlalchemy import Row, select
from sqlalchemy.dialects.postgresql import insert

import workers
from shared.infra.postgres import connection
from shared.models import RUN, THREAD
from shared.threads import checkpoint_reads
from shared.threads.checkpoints import Write
from tests.support import factories, javascript
from workers.graph_host import frames
from workers.graph_host.checkpoints.run_checkpoints import RunCheckpoints, current_run
from workers.graph_host.checkpoints.saver import HostSaver
from workers.graph_host.checkpoints.storage import Storage
from workers.graph_host.connection import Connection

NODE_HOST = Path(workers.__file__).parent / "node_host"
SUITE_SECONDS = 120
MIN_TESTS = 500
# Parts of the titles of tests for JavaScript that are to fail, with the reason.
DEVIATIONS = {
    "store the metadata without alteration": "scalars of `configurable` are added, so that histories are found by them",
    "only store channel_values that have changed": "a value whose version is not stored yet is sent, or it would be lost",
    "migrate pending sends": "checkpoints of libraries before the oldest supported version do not exist",
    "no config or options are specified": "a run reads no thread but its own",
    "thread_id is not specified": "a run reads no thread but its own",
}


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


@pytest.fixture
def run(db: object) -> Row[Any]:
    run_id = factories.run(factories.deployment(), status="running", attempt=1, owner="here")
    with connection() as conn:
        return conn.execute(select(RUN).where(RUN.c.run_id == run_id)).one()


def test_the_saver_passes_the_whole_conformance_suite(run: Row[Any]) -> None:

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


@pytest.mark.release
def test_the_saver_of_the_node_host_passes_the_validation_suite(run: Row[Any]) -> None:
    failures = _failures_of_the_validation_suite(run)

    deviations = {title: {part for part in DEVIATIONS if part in title} for title in failures}
    assert [failures[title] for title, parts in deviations.items() if not parts] == []
    assert set().union(*deviations.values()) == set(DEVIATIONS)


def _failures_of_the_validation_suite(run: Row[Any]) -> dict[str, str]:
    """Run the suite for JavaScript. Returns the messages of the tests that failed, by their titles."""
    place = javascript.refreshed("checkpoints")
    ours, theirs = socket.socketpair()
    pump = Pump(ours, run)
    pump.start()
    variables = {"NODE_HOST": str(NODE_HOST), "SOCKET": str(theirs.fileno()), "RUN_ID": run.run_id.hex}
    with theirs:
        done = subprocess.run(
            [javascript.NODE / "node", "node_modules/vitest/vitest.mjs", "run"],
            cwd=place,
            env=javascript.environment(**variables),
            pass_fds=(theirs.fileno(),),
            capture_output=True,
            text=True,
            timeout=SUITE_SECONDS,
            check=False,
        )
    pump.join()
    ours.close()
    print(done.stderr)
    (file,) = json.loads(done.stdout)["testResults"]
    tests = {test["fullName"]: test for test in file["assertionResults"]}
    assert len(tests) > MIN_TESTS
    return {
        title: f"{title}: {''.join(test['failureMessages'])}"
        for title, test in tests.items()
        if test["status"] != "passed"
    }
