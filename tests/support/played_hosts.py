"""A pool of fake graph hosts: a few lines that speak the frame protocol and then misbehave in one way."""

from __future__ import annotations

import dataclasses
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import workers
from shared.deployments.limits import HostLimits
from shared.errors import HostError
from shared.settings import Settings
from tests.support.greened import World, constants
from tests.support.waiting import until
from workers.runner import host_pool
from workers.runner.host import Host, HostCommand
from workers.runner.host_pool import HostPool, PreparedHost

ROOT = Path(workers.__file__).parents[1]
HOST = ROOT / "workers/graph_host"

ACTOR = """
import json, os, socket, subprocess, sys, time
sys.path.insert(0, sys.argv[2])
import frames
peer = socket.socket(fileno=int(sys.argv[1]))
peer.setblocking(True)
part, note = sys.argv[3], sys.argv[4]
say = lambda kind, id, body: peer.sendall(frames.encode(kind, id, body))
if part == "leaves at once":
    print("no such library", flush=True)
    sys.exit(3)
if part == "cannot load":
    say(frames.READY, frames.NOBODY, b'{"error": {"step": "load", "message": "no such file\\\\u0000"}}')
    time.sleep(60)
if part == "never ready":
    time.sleep(60)
if part == "has a child":
    open(note, "w").write(str(subprocess.Popen(["sleep", "60"]).pid))
if part == "leaves a process":
    open(note, "w").write(str(subprocess.Popen(["sleep", "60"], start_new_session=True).pid))
    sys.exit(1)
def multiply():
    with open(note, "w") as notes:
        for _ in range(30):
            print(subprocess.Popen(["sleep", "60"]).pid, file=notes, flush=True)
    time.sleep(60)
if part == "multiplies as it loads":
    multiply()
say(frames.READY, frames.NOBODY, b'{"graphs": [], "versions": {}}')
decoder = frames.Decoder()
held, runs = [], []
while True:
    data = peer.recv(65536)
    if not data:
        sys.exit()
    for kind, id, body in decoder.feed(data):
        if kind == frames.STOP:
            sys.exit(0)
        if kind == frames.CHECK and part == "forgets":
            say(frames.CHECKED, id, b"[]")
        if kind == frames.PING and part not in ("silent", "deaf"):
            time.sleep(0.1 if part == "slow" else 0)
            condition = {"queued": 3, "starved": [run.hex() for run in runs], "damage": None}
            if part == "is damaged":
                condition = {"queued": 0, "starved": [], "damage": "a node broke it" if runs else None}
            say(frames.PONG, id, json.dumps(condition).encode() if part in ("has no threads", "is damaged") else b"")
        if kind != frames.RUN:
            continue
        runs.append(id)
        if part == "nonsense":
            peer.sendall(b"\\xff" * 64)
        elif part == "wrong shapes":
            say(frames.CHECKPOINT, id, frames.pack([b"[]"]))
        elif part == "odd log lines":
            say(frames.LOG, id, b"[1]")
        elif part == "closes its socket":
            peer.close()
            time.sleep(60)
        elif part == "shares its socket":
            child = subprocess.Popen(["sleep", "600"], pass_fds=(peer.fileno(),), start_new_session=True)
            open(note, "w").write(str(child.pid))
            sys.exit(4)
        elif part == "hoards":
            held.append(b"x" * 200 * 1024 * 1024)
        elif part in ("fills its home", "fills it with removed files"):
            for number in range(40):
                held.append(open(os.path.join(os.environ["HOME"], str(number)), "wb", 0))
                if part == "fills it with removed files":
                    os.unlink(held[-1].name)
                held[-1].write(bytes(100_000))
        elif part == "writes a large file":
            try:
                with open(os.path.join(os.environ["HOME"], "large"), "wb", 0) as file:
                    while True:
                        file.write(bytes(100_000))
            except OSError as error:
                say(frames.EVENT, id, f"values\\n{error.strerror}".encode())
        elif part == "multiplies":
            import threading
            threading.Thread(target=multiply, daemon=True).start()  # as a node does that is not asynchronous
        elif part == "deaf":
            time.sleep(60)
        elif part == "prints halves":
            os.write(1, b"\\n" + "hell\u00f6".encode()[:5])
            time.sleep(0.1)
            os.write(1, "hell\u00f6".encode()[5:] + b" world\\n" + b"x" * 10_000 + b"\\nend")
            sys.exit()
        elif part in ("exhausts its heap", "aborts", "starts one that exhausts its heap"):
            os.write(1, b"before\\n\\nlast\\n")
            if part != "aborts":
                os.write(2, b"\\n<--- Last few GCs --->\\n\\n[1:0x1] 9 ms: Mark-Compact 70.1 (77.0) MB\\n")
                os.write(2, b"FATAL ERROR: Reached heap limit Allocation failed - JavaScript heap out of memory\\n")
                os.write(2, b"----- Native stack trace -----\\n\\n 1: 0x74 native\\n")
            if part != "starts one that exhausts its heap":
                os.abort()
        elif part == "floods its socket":
            peer.sendall(frames.encode(frames.LOG, id, b'{"level": "INFO", "message": "x"}') * 60_000)
        elif part == "floods its output":
            subprocess.Popen(["yes"])
        elif part not in ("pongs only", "forgets"):
            say(frames.EVENT, id, b"values\\n{}")
"""


def played(part: str, note: Path, home: Path, heap_mb: int | None = None) -> HostCommand:
    """Return the command of a host that plays this part."""
    argv = [sys.executable, "-c", ACTOR, "{socket}", str(HOST), part, str(note)]
    return HostCommand(
        argv, str(ROOT), {"PATH": os.environ["PATH"], "HOME": str(home)}, home=home, heap_mb=heap_mb
    )


class Occupant:
    """A run in a host, which records the frames it receives."""

    def __init__(self) -> None:
        self.id = uuid4().bytes
        self.frames: list[tuple[int, bytes]] = []
        self.deaths: list[HostError] = []
        self.parse: Callable[[bytes], Any] = lambda body: None

    def received(self, kind: int, body: bytes) -> None:
        self.parse(body)
        self.frames.append((kind, body))

    def host_died(self, error: HostError) -> None:
        self.deaths.append(error)

    def wait_until_drained(self) -> None:
        """Return at once: the run applies no back-pressure."""

    def enter(self, host: Host) -> Occupant:
        host.enter(self.id, self, b"run")
        return self


class Stage:
    """A pool whose new hosts play the part in `part`."""

    def __init__(self, world: World, **settings: Any) -> None:
        base = Settings.from_env({"RUNYARD_DATA_DIR": str(world.tmp_path)})
        self.part = "plays along"
        self.heap_mb: int | None = None  # of hosts that play a JavaScript host
        self.note = world.tmp_path / "note"
        self.lines: list[tuple[str, str, UUID | None]] = []
        self.output: Callable[..., None] = lambda *line: self.lines.append(line)
        self.home = world.tmp_path / "home"
        self.home.mkdir(exist_ok=True)
        self.pids: list[int] = []
        self.starts = 0
        self.revision = uuid4()
        self.limits = HostLimits()  # for the deployment of every revision
        self.pool = HostPool(dataclasses.replace(base, **settings), self.prepare)

    def prepare(self, revision_id: UUID) -> PreparedHost:
        self.starts += 1
        return PreparedHost(played(self.part, self.note, self.home, self.heap_mb), self.output, self.limits)

    @property
    def started(self) -> list[int]:
        """Process ids that a host wrote to the note file when it started children."""
        return [int(pid) for pid in self.note.read_text().split()] if self.note.exists() else []

    def acquire(self, revision: UUID | None = None, **fields: Any) -> Host:
        host = self.pool.acquire(revision or self.revision, **fields)
        self.pids.append(host.pid)
        return host


@contextmanager
def stage(world: World, **settings: Any) -> Iterator[Stage]:
    with constants(host_pool, PING_SECONDS=0.05):
        made = Stage(world, **settings)
        try:
            yield made
        finally:
            made.pool.close()
            until(lambda: not any(is_alive(pid) for pid in made.pids))


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False
