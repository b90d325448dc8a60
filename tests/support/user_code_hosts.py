"""A runner's calls to graph hosts, with fake hosts: a few lines that speak the frames of calls and exchanges."""

from __future__ import annotations

import dataclasses
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any
from uuid import UUID, uuid4

import workers
from shared.hosts.calls import call
from shared.hosts.exchanges import Exchange, open_exchange
from shared.hosts.pending_calls import HostCall
from shared.infra import broker, encryption
from shared.settings import Settings
from tests.support.greened import World
from workers.runner.host import HostCommand
from workers.runner.host_calls import HostCalls
from workers.runner.host_pool import HostPool, PreparedHost

ROOT = Path(workers.__file__).parents[1]

ACTOR = """
import json, os, socket, sys, time
sys.path.insert(0, sys.argv[2])
import frames
peer = socket.socket(fileno=int(sys.argv[1]))
peer.setblocking(True)
part, note = sys.argv[3], sys.argv[4]
say = lambda kind, id, body: peer.sendall(frames.encode(kind, id, body))
with open(note, "a") as notes:
    print("started", file=notes)
if part == "cannot load":
    say(frames.READY, frames.NOBODY, b'{"error": {"step": "load", "message": "no such file"}}')
    time.sleep(60)
say(frames.READY, frames.NOBODY, b'{"graphs": [], "versions": {}}')
decoder = frames.Decoder()
def answer(id, asked):
    with open(note, "a") as notes:
        print(asked["op"], file=notes)
    if asked["op"] == "die":
        os.kill(os.getpid(), 9)
    if asked["op"] == "die once" and open(note).read().split("\\n").count("die once") == 1:
        os.kill(os.getpid(), 9)
    if asked["op"] == "ask itself":
        own = OwnRequest(id, asked)
        apps[own.id] = own
    elif asked["op"] == "large":
        say(frames.ANSWER, id, frames.pack([json.dumps("x" * asked["size"]).encode()]))
    elif asked["op"] == "refuse":
        say(frames.ANSWER, id, frames.pack([json.dumps({"refused": asked["refused"]}).encode()]))
    elif asked["op"] == "look up":
        say(frames.ASK, id, frames.pack([json.dumps(asked["ask"]).encode()]))
    elif asked["op"] == "nonsense":
        say(frames.ANSWER, id, b"\\xff")
    elif asked["op"] != "silent":
        say(frames.ANSWER, id, frames.pack([json.dumps({"pid": os.getpid(), "asked": asked}).encode()]))
class OwnRequest:
    def __init__(self, query, asked):
        self.query, self.asked, self.id, self.room = query, asked, os.urandom(16), 16
        self.answer = {"head": None, "bytes": 0, "end": None, "start": ""}
        head = {name: asked[name] for name in ("method", "path", "query", "headers", "user")}
        say(frames.OPEN, self.id, json.dumps({"type": "http", **head}).encode())
        self.left = asked["parts"]
        self.pump()
    def pump(self):
        while self.left and self.room:
            self.left, self.room = self.left - 1, self.room - 1
            say(frames.PART, self.id, frames.BODY + b"x" * self.asked["size"])
        if self.left == 0:
            self.left = -1
            say(frames.PART, self.id, frames.END)
    def received(self, body):
        kind, data = body[:1], body[1:]
        if kind == frames.CREDIT:
            self.room += int(data)
            self.pump()
        elif kind == frames.HEAD:
            self.answer["head"] = json.loads(data)
        elif kind == frames.BODY:
            self.answer["bytes"] += len(data)
            self.answer["start"] += data[:200].decode()[: 2000 - len(self.answer["start"])]
            if self.asked.get("leaves"):
                say(frames.PART, self.id, frames.CLOSE + b"{}")
                self.end("left")
                return
            say(frames.PART, self.id, frames.CREDIT + b"1")
        elif kind in (frames.END, frames.FAILED):
            self.end(data.decode())
    def end(self, how):
        self.answer["end"] = how
        say(frames.ANSWER, self.query, frames.pack([json.dumps(self.answer).encode()]))
        del apps[self.id]
class App:
    def __init__(self, id, head):
        self.id, self.head, self.room, self.out = id, head, 16, []
        self.part(frames.HEAD + b'{"status": 200, "headers": []}')
        if head["do"] == "pour":
            self.out = [frames.BODY + bytes([number % 256]) * head["size"] for number in range(head["parts"])]
            self.out.append(frames.END)
        if head["do"] == "flood":
            # One write, which the runner reads at once: between two writes, credits could come for the parts before.
            peer.sendall(frames.encode(frames.PART, id, frames.BODY + b"x") * 100)
        for part in head.get("says", ()):
            self.part(part.encode())
        if head["do"] == "die":
            self.part(frames.BODY + b"last words")
            time.sleep(0.2)
            os.kill(os.getpid(), 9)
        self.pump()
    def part(self, body):
        say(frames.PART, self.id, body)
    def pump(self):
        while self.out and (self.room or self.out[0][:1] == frames.END):
            body = self.out.pop(0)
            self.room -= body[:1] == frames.BODY
            self.part(body)
            with open(note, "a") as notes:
                print("part", file=notes)
            if self.head["do"] == "echo" and body[:1] == frames.BODY:
                self.part(frames.CREDIT + b"1")
    def received(self, body):
        if body[:1] == frames.CREDIT:
            self.room += int(body[1:])
        elif body[:1] == frames.CLOSE:
            with open(note, "a") as notes:
                print("closed", json.loads(body[1:])["code"], file=notes)
        elif self.head["do"] == "echo":
            self.out.append(body)
        self.pump()
apps = {}
while data := peer.recv(65536):
    for kind, id, body in decoder.feed(data):
        if kind == frames.STOP:
            sys.exit(0)
        if kind == frames.PING:
            say(frames.PONG, id, b"")
        if kind == frames.QUERY:
            answer(id, json.loads(body))
        if kind == frames.REPLY:
            say(frames.ANSWER, id, frames.pack([b"".join(frames.unpack(body)[1:])]))
        if kind == frames.OPEN:
            apps[id] = App(id, json.loads(body))
        if kind == frames.PART and id in apps:
            apps[id].received(body)
"""


class Scene:
    """A runner's calls, and a revision whose fake hosts play a part."""

    def __init__(self, world: World, part: str, **settings: Any) -> None:
        base = Settings.from_env({"RUNYARD_DATA_DIR": str(world.tmp_path)})
        self.settings = dataclasses.replace(base, worker=f"runner-{uuid4().hex[:6]}", **settings)
        self.part = part
        self.note = world.tmp_path / "note"
        self.revision = uuid4()
        self.notified: list[UUID] = []
        self.is_reached = True  # whether notifications reach the runner
        self.pool = HostPool(self.settings, self.prepare)
        self.host_calls = HostCalls(self.settings, self.pool)

    def prepare(self, revision_id: UUID) -> PreparedHost:
        frames_at = str(ROOT / "workers/graph_host")
        argv = [sys.executable, "-c", ACTOR, "{socket}", frames_at, self.part, str(self.note)]
        command = HostCommand(argv, str(ROOT), {"PATH": os.environ["PATH"]})
        return PreparedHost(command, lambda level, message, run_id: None)

    def notify(self, task: str, queue: str, id: UUID | str) -> None:
        """Deliver a notification directly to the runner, without a broker."""
        assert (task, queue) == (broker.PREPARE_HOSTS, broker.hosts_queue(self.settings.pool))
        self.notified.append(UUID(str(id)))
        if self.is_reached:
            self.host_calls.prepare_all([UUID(str(id))])

    def call(
        self,
        op: str,
        seconds: float = 20,
        start_seconds: float = 30,
        revision: UUID | None = None,
        limits: Mapping[str, Any] = MappingProxyType({}),
        **fields: Any,
    ) -> bytes:
        """Call the fake host. `limits` are further fields of the HostCall, `fields` of its document."""
        return call(
            HostCall(
                deployment_id=UUID(int=1),
                revision_id=revision or self.revision,
                pool=self.settings.pool,
                document={"op": op, **fields},
                timeout_seconds=seconds,
                **{"start_seconds": start_seconds, **limits},
            )
        )

    def open(self, do: str, start_seconds: float = 30, **fields: Any) -> AbstractContextManager[Exchange]:
        """Open an exchange with the app of the fake host. `do` selects what the app does."""
        return open_exchange(
            HostCall(
                deployment_id=UUID(int=1),
                revision_id=self.revision,
                pool=self.settings.pool,
                document={"do": do, **fields},
                start_seconds=start_seconds,
            )
        )

    def noted(self) -> list[str]:
        """Return the lines that the hosts wrote about their actions."""
        return self.note.read_text().splitlines()


@contextmanager
def scene(world: World, part: str = "", **settings: Any) -> Iterator[Scene]:
    encryption.configure([encryption.new_key()])
    made = Scene(world, part, **settings)
    broker.notifier.notify = made.notify  # type: ignore[method-assign]
    try:
        yield made
    finally:
        del broker.notifier.notify
        made.host_calls.close()
        made.pool.close()
