"""A graph host as a real process, with the runner's end of its socket, for tests of the host."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import workers
from tests.support import host_forks
from tests.support.host_forks import ForkedHost
from workers.graph_host import frames
from workers.graph_host.checkpoints.storage import MemoryStorage

PACKAGE = Path(workers.__file__).parent / "graph_host"
ANSWER_SECONDS = 30
MAX_EVENT_BYTES = 1 << 20

Answer = Callable[["Run", int, list[bytes]], list[bytes] | None]


@dataclass
class Run:
    """Everything the host sent about one run."""

    id: UUID = field(default_factory=uuid4)
    thread_id: str = field(default_factory=lambda: str(uuid4()))
    events: list[tuple[str, Any]] = field(default_factory=list)
    stored: list[tuple[int, dict[str, Any], list[bytes]]] = field(default_factory=list)
    logs: list[dict[str, Any]] = field(default_factory=list)
    nodes: list[dict[str, Any]] = field(default_factory=list)  # only of a traced run
    calls: list[dict[str, Any]] = field(default_factory=list)  # only of a traced run
    used: list[int] = field(default_factory=list)
    outcome: dict[str, Any] = field(default_factory=dict)  # empty until the run is done
    values: Any = None
    answer: Any = None

    def named(self, name: str) -> list[Any]:
        """Return the data of the events with this name."""
        return [data for own, data in self.events if own == name]

    @property
    def names(self) -> list[str]:
        return [name for name, _ in self.events]


@dataclass
class Exchange:
    """A request in parts, and the parts received so far, at the runner's end."""

    host: HostProcess
    id: bytes
    head: dict[str, Any] = field(default_factory=dict)  # only of an exchange that the host opened
    parts: list[tuple[bytes, bytes]] = field(default_factory=list)
    credits: int = 0  # credits that the host returned
    gives_credit: bool = True

    def send(self, kind: bytes, data: bytes = b"") -> None:
        self.host.send(frames.PART, self.id, kind + data)

    def received(self, kind: bytes, data: bytes) -> None:
        if kind == frames.CREDIT:
            self.credits += int(data)
            return
        self.parts.append((kind, data))
        if kind in (frames.BODY, frames.TEXT, frames.BYTES) and self.gives_credit:
            self.send(frames.CREDIT, b"1")

    def wait(self, *kinds: bytes) -> Exchange:
        """Read until a part of one of these kinds arrives."""
        self.host.read_until(lambda: any(kind in kinds for kind, _ in self.parts))
        return self

    def wait_end(self) -> Exchange:
        return self.wait(frames.END, frames.FAILED, frames.CLOSE)

    def document(self, kind: bytes) -> Any:
        """Return the JSON of the only part of this kind."""
        (data,) = [data for own, data in self.parts if own == kind]
        return json.loads(data)

    @property
    def kinds(self) -> list[bytes]:
        return [kind for kind, _ in self.parts]

    @property
    def body(self) -> bytes:
        return b"".join(data for kind, data in self.parts if kind == frames.BODY)


class HostProcess:
    """A started host. Reads frames only while a method waits for something."""

    def __init__(self, process: subprocess.Popen[bytes] | ForkedHost, sock: socket.socket) -> None:
        self.process = process
        self.logs: list[dict[str, Any]] = []
        self.ready: dict[str, Any] = {}
        self.pongs = 0
        self.condition: dict[str, Any] = {}  # from the last pong
        self.checks: list[list[str]] = []
        self.answer: Answer = lambda run, kind, parts: None
        self.socket = sock
        self._decoder = frames.Decoder()
        self._runs: dict[bytes, Run] = {}
        self._answers: dict[bytes, list[bytes]] = {}
        self._exchanges: dict[bytes, Exchange] = {}
        self.opened: list[Exchange] = []  # exchanges opened by user code, in order

    def start(self, graph_id: str, input: Any = None, *, run: Run | None = None, **spec: Any) -> Run:
        """Send a RUN frame. `stored` holds the parts of the thread's newest checkpoint."""
        run = run or Run()
        stored = spec.pop("stored", [])
        document = {
            "run_id": str(run.id),
            "thread_id": run.thread_id,
            "graph_id": graph_id,
            "assistant_id": "a",
            "attempt": 1,
            "temporary": True,
            "fresh": not stored,
            "config": {},
            "context": {},
            "stream_mode": ["values"],
            "metadata": {},
            **spec,
        }
        self._runs[run.id.bytes] = run
        body = frames.pack([json.dumps(document).encode(), json.dumps(input).encode(), *stored])
        self.send(frames.RUN, run.id.bytes, body)
        return run

    def run(self, graph_id: str, input: Any = None, **spec: Any) -> Run:
        """Start a run and wait for its end."""
        run = self.start(graph_id, input, **spec)
        self.wait_done(run)
        return run

    def wait_done(self, run: Run) -> Run:
        self.read_until(lambda: bool(run.outcome))
        return run

    def cancel(self, run: Run) -> None:
        self.send(frames.CANCEL, run.id.bytes, b'{"action":"interrupt"}')

    @contextmanager
    def stopped(self) -> Iterator[None]:
        """Suspend the process while the block runs, so that it reads nothing."""
        self.process.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            self.process.send_signal(signal.SIGCONT)

    def query(self, document: Mapping[str, Any]) -> list[bytes]:
        """Send a QUERY frame and wait. Returns the parts of the answer."""
        return self.wait_answer(self.ask(document))

    def ask(self, document: Mapping[str, Any]) -> UUID:
        id = uuid4()
        self._runs[id.bytes] = Run(id)
        self.send(frames.QUERY, id.bytes, json.dumps(document).encode())
        return id

    def wait_answer(self, id: UUID) -> list[bytes]:
        self.read_until(lambda: id.bytes in self._answers)
        return self._answers.pop(id.bytes)

    def open(self, path: str = "/", body: bytes = b"", *, is_whole: bool = True, **head: Any) -> Exchange:
        """Begin a request to the app. `is_whole` sends all of its body at once and ends it."""
        exchange = Exchange(self, uuid4().bytes)
        self._exchanges[exchange.id] = exchange
        document = {
            "type": "http",
            "method": "GET",
            "path": path,
            "raw_path": path,
            "query": "",
            "root_path": "",
            "scheme": "http",
            "http_version": "1.1",
            "headers": [["host", "service.test"]],
            "client": ["10.0.0.1", 5000],
            "server": ["service.test", 80],
            "subprotocols": [],
            "user": None,
            **head,
        }
        self.send(frames.OPEN, exchange.id, json.dumps(document).encode())
        if body:
            exchange.send(frames.BODY, body)
        if is_whole and document["type"] == "http":
            exchange.send(frames.END)
        return exchange

    def request(self, path: str, body: bytes = b"", **head: Any) -> Exchange:
        """Send a request to the app and wait for its end."""
        return self.open(path, body, **head).wait_end()

    def wait_opened(self) -> Exchange:
        """Wait for the next request that user code makes."""
        self.read_until(lambda: bool(self.opened))
        return self.opened.pop(0)

    def send(self, kind: int, id: bytes, body: bytes) -> None:
        self.socket.sendall(frames.encode(kind, id, body))

    def hang_up(self) -> None:
        self.socket.close()

    def read_until(self, condition: Callable[[], bool]) -> None:
        while not condition():
            data = self.socket.recv(1 << 20)
            if not data:
                raise ConnectionError(f"the host ended with {self.process.wait()}")
            for frame in list(self._decoder.feed(data)):
                self._received(*frame)

    def _received(self, kind: int, id: bytes, body: bytes) -> None:
        run = self._runs.get(id, Run())
        if kind == frames.READY:
            self.ready = json.loads(body)
        elif kind == frames.PONG:
            self.pongs += 1
            self.condition = json.loads(body or b"{}")
        elif kind == frames.CHECKED:
            self.checks.append(json.loads(body))
        elif kind == frames.USED:
            run.used.append(int(body.partition(b" ")[0]))
        elif kind == frames.LOG:
            (run.logs if id in self._runs else self.logs).append(json.loads(body))
        elif kind == frames.EVENT:
            name, _, data = body.partition(b"\n")
            assert b"\n" not in data
            run.events.append((name.decode(), json.loads(data)))
        elif kind == frames.NODE:
            run.nodes.append(json.loads(body))
        elif kind == frames.CALL:
            run.calls.append(json.loads(body))
        elif kind == frames.DONE:
            outcome, values, answer = frames.unpack(body)
            run.outcome, run.values, run.answer = map(json.loads, (outcome, values, answer))
        elif kind == frames.ANSWER:
            self._answers[id] = frames.unpack(body)
        elif kind == frames.OPEN:
            self._exchanges[id] = Exchange(self, id, json.loads(body))
            self.opened.append(self._exchanges[id])
        elif kind == frames.PART:
            self._exchanges[id].received(body[:1], body[1:])
        else:
            self._asked(run, id, kind, frames.unpack(body))

    def _asked(self, run: Run, id: bytes, kind: int, parts: list[bytes]) -> None:
        head = json.loads(parts[0])
        if kind in (frames.CHECKPOINT, frames.WRITES):
            run.stored.append((kind, head, parts[1:]))
        answer = self.answer(run, kind, parts)
        if head["ask"]:
            found = [b'{"found":false}'] if answer is None and kind == frames.ASK else answer or []
            self.send(frames.REPLY, id, frames.pack([json.dumps({"ask": head["ask"]}).encode(), *found]))


class Checkpointed:
    """A runner for durable runs: keeps the checkpoints that a host stores and returns them to any host."""

    def __init__(self, host: HostProcess) -> None:
        self.thread_id = Run().thread_id
        self.stored: list[tuple[int, dict[str, Any], list[bytes]]] = []
        self.move_to(host)

    def move_to(self, host: HostProcess) -> None:
        self.host = host
        host.answer = self._answer

    def run(self, graph_id: str, input: Any = None, **spec: Any) -> Run:
        return self.host.wait_done(self.start(graph_id, input, **spec))

    def start(self, graph_id: str, input: Any = None, **spec: Any) -> Run:
        run = Run(thread_id=self.thread_id)
        newest = self._get({"checkpoint_ns": "", "checkpoint_id": None})
        spec["stored"] = newest if b'"found":true' in newest[0] else []
        return self.host.start(graph_id, input, run=run, temporary=False, **spec)

    def _answer(self, run: Run, kind: int, parts: list[bytes]) -> list[bytes] | None:
        head = json.loads(parts[0])
        if kind != frames.ASK:
            self.stored.append((kind, head, parts[1:]))
            return []
        return self._memory().ask_blocking(frames.ASK, head, [])

    def _get(self, ask: dict[str, Any]) -> list[bytes]:
        return self._memory().ask_blocking(frames.ASK, {"op": "get_tuple", **ask}, [])

    def _memory(self) -> MemoryStorage:
        memory = MemoryStorage()
        for kind, head, blobs in self.stored:
            memory.send(kind, head, blobs)
        return memory

    def query(self, op: str, graph_id: str, **asked: Any) -> Any:
        """Query the thread and return the answer. Keeps the checkpoints that an update writes."""
        document, *parts = self.host.query(
            {"op": op, "graph_id": graph_id, "thread_id": self.thread_id, **asked}
        )
        answer = json.loads(document)
        if op == "update" and "refused" not in answer:
            blobs = iter(parts[1:])
            for kind, head, count in answer["written"]:
                self.stored.append((kind, head, [next(blobs) for _ in range(count)]))
            answer["values"] = json.loads(parts[0])
        return answer


@contextmanager
def connected(process: subprocess.Popen[bytes] | ForkedHost, ours: socket.socket) -> Iterator[HostProcess]:
    """Wait until a host is ready, and end it afterwards."""
    try:
        host = HostProcess(process, ours)
        host.read_until(lambda: bool(host.ready))
        yield host
    finally:
        ours.close()
        process.kill()
        process.wait()


@contextmanager
def graph_host(
    directory: Path,
    graphs: Mapping[str, Any],
    *,
    arguments: Sequence[str] = (),
    variables: Mapping[str, str] | None = None,
    from_scratch: bool = False,
    **config: Any,
) -> Iterator[HostProcess]:
    """Run a host on `directory` while the block runs. Yields it after READY, or after the reason why it cannot work.

    `variables` are the deployment's environment variables. `from_scratch` starts a new interpreter, as a runner does;
    otherwise the host is forked with its libraries loaded.
    """
    ours, theirs = socket.socketpair()
    ours.settimeout(ANSWER_SECONDS)
    environment = {
        **(variables or {}),
        "PATH": os.environ["PATH"],
        "GRAPH_HOST_CONFIG": json.dumps({"graphs": graphs, **config}),
    }
    with theirs:
        if from_scratch:
            process: subprocess.Popen[bytes] | ForkedHost = subprocess.Popen(
                [sys.executable, str(PACKAGE), "--socket", str(theirs.fileno()), *arguments],
                cwd=directory,
                env=environment,
                pass_fds=(theirs.fileno(),),
                start_new_session=True,
            )
        else:
            process = host_forks.fork(PACKAGE, theirs, arguments, directory, environment)
    with connected(process, ours) as host:
        yield host
