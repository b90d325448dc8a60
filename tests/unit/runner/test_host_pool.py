"""The pool of graph hosts: started, chosen, watched, evicted; and no process left behind.

Most hosts here are a few lines that speak the frames and then misbehave in one way; the first is real.
"""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import gevent
import pytest
from gevent.event import AsyncResult

import workers
from shared.deployments.limits import HostLimits
from shared.errors import HostDied, HostError, HostUnusable, NotBegun
from shared.settings import Settings
from tests.support.greened import World, child, greened
from tests.support.waiting import until
from workers.graph_host import frames
from workers.isolation.cgroups import ControlGroup
from workers.runner import host as one_host
from workers.runner import host_pool, quarantine
from workers.runner.host import Host, HostCommand
from workers.runner.host_pool import GaveUp, HostPool
from workers.runner.quarantine import ALONE, OPEN

__all__ = ["child"]

ROOT = Path(workers.__file__).parents[1]
HOST = ROOT / "workers/graph_host"
KITCHEN = ROOT / "tests/projects/kitchen"

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
    say(frames.READY, frames.NOBODY, b'{"error": {"step": "load", "message": "no such file"}}')
    time.sleep(60)
if part == "never ready":
    time.sleep(60)
if part == "has a child":
    open(note, "w").write(str(subprocess.Popen(["sleep", "60"]).pid))
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
        if kind == frames.CHECK and part in ("forgets", "has them all"):
            say(frames.CHECKED, id, body if part == "has them all" else b"[]")
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
        elif part == "hoards":
            held.append(b"x" * 200 * 1024 * 1024)
        elif part == "multiplies":
            import threading
            threading.Thread(target=multiply, daemon=True).start()  # as a node does that is not asynchronous
        elif part == "deaf":
            time.sleep(60)
        elif part == "prints":
            print("hello", flush=True)
        elif part == "prints halves":
            os.write(1, b"\\n" + "hell\u00f6".encode()[:5])
            time.sleep(0.1)
            os.write(1, "hell\u00f6".encode()[5:] + b" world\\n" + b"x" * 10_000 + b"\\nend")
            sys.exit()
        elif part == "floods its socket":
            peer.sendall(frames.encode(frames.LOG, id, b'{"level": "INFO", "message": "x"}') * 200_000)
        elif part == "floods its output":
            subprocess.Popen(["yes"])
        elif part not in ("pongs only", "forgets", "has them all"):
            say(frames.EVENT, id, b"values\\n{}")
"""


class Occupant:
    """A run in a host."""

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
        """There is room."""

    def enter(self, host: Host) -> Occupant:
        host.enter(self.id, self, b"run")
        return self


class Stage:
    """A pool whose hosts play the part they are told."""

    def __init__(self, world: World, **settings: Any) -> None:
        base = Settings.from_env({"RUNYARD_DATA_DIR": str(world.tmp_path)})
        self.part = "plays along"
        self.note = world.tmp_path / "note"
        self.lines: list[tuple[str, str, UUID | None]] = []
        self.output: Callable[..., None] = lambda *line: self.lines.append(line)
        self.pids: list[int] = []
        self.starts = 0
        self.revision = uuid4()
        self.limits = HostLimits()  # of every revision's deployment
        self.pool = HostPool(dataclasses.replace(base, **settings), self.prepare, lambda _: self.limits)

    def prepare(self, revision_id: UUID) -> tuple[HostCommand, Callable[..., None]]:
        self.starts += 1
        argv = [sys.executable, "-c", ACTOR, "{socket}", str(HOST), self.part, str(self.note)]
        command = HostCommand(argv, str(ROOT), {"PATH": os.environ["PATH"]})
        return command, self.output

    @property
    def started(self) -> list[int]:
        """What a host has noted that it started."""
        return [int(pid) for pid in self.note.read_text().split()]

    def acquire(self, revision: UUID | None = None, **fields: Any) -> Host:
        host = self.pool.acquire(revision or self.revision, **fields)
        self.pids.append(host.pid)
        return host


@contextmanager
def stage(world: World, **settings: Any) -> Iterator[Stage]:
    host_pool.PING_SECONDS = 0.05
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


@greened
def test_a_real_host_runs_a_graph(world: World) -> None:
    settings = Settings.from_env({"RUNYARD_DATA_DIR": str(world.tmp_path)})
    env = {
        "PATH": os.environ["PATH"],
        "GRAPH_HOST_CONFIG": json.dumps({"graphs": {"echo": "./kitchen.py:echo"}}),
    }
    command = HostCommand([sys.executable, str(HOST), "--socket", "{socket}"], str(KITCHEN), env)
    pool = HostPool(settings, lambda _: (command, lambda *_: None))
    host = pool.acquire(uuid4())
    occupant = Occupant()
    spec = {
        "run_id": str(UUID(bytes=occupant.id)),
        "thread_id": str(uuid4()),
        "graph_id": "echo",
        "assistant_id": "a",
        "attempt": 1,
        "temporary": True,
        "fresh": True,
        "config": {},
        "context": {},
        "stream_mode": ["values"],
        "metadata": {},
    }
    host.enter(occupant.id, occupant, frames.pack([json.dumps(spec).encode(), b'{"text": "hi"}']))
    until(lambda: occupant.frames and occupant.frames[-1][0] == frames.DONE)
    assert b'"status":"success"' in occupant.frames[-1][1].replace(b" ", b"")

    pool.close()
    until(lambda: not is_alive(host.pid))


@greened
def test_a_host_is_started_once_for_all_who_come_at_once(world: World) -> None:
    with stage(world) as s:
        found = [gevent.spawn(s.acquire) for _ in range(10)]
        gevent.joinall(found, raise_error=True)

        assert s.starts == 1
        assert len({greenlet.value for greenlet in found}) == 1


@greened
def test_frames_of_a_run_reach_it(world: World) -> None:
    with stage(world) as s:
        occupant = Occupant().enter(s.acquire())

        until(lambda: occupant.frames == [(frames.EVENT, b"values\n{}")])


@greened
def test_a_host_that_leaves_at_once_is_told_with_its_code(world: World) -> None:
    with stage(world) as s:
        s.part = "leaves at once"
        with pytest.raises(HostUnusable, match="exited with code 3"):
            s.acquire()
        until(lambda: ("INFO", "no such library", None) in s.lines)


@greened
def test_a_host_that_cannot_load_the_project_says_why_and_is_gone(world: World) -> None:
    with stage(world) as s:
        s.part = "cannot load"
        made = []
        opened = s.pool._open
        s.pool._open = lambda start: made.append(opened(start)) or made[-1]  # type: ignore[method-assign,func-returns-value]
        with pytest.raises(HostUnusable, match="no such file"):
            s.acquire()

        until(lambda: not is_alive(made[0].pid))


@greened
def test_a_host_that_never_gets_ready_is_given_up(world: World) -> None:
    with stage(world, host_start_seconds=0.3) as s:
        s.part = "never ready"
        with pytest.raises(HostUnusable, match="not ready within"):
            s.acquire()
        s.part = "plays along"
        s.acquire()


@greened
def test_a_program_that_is_not_there_is_unusable(world: World) -> None:
    settings = Settings.from_env({"RUNYARD_DATA_DIR": str(world.tmp_path)})
    command = HostCommand(["/no/such/python", "{socket}"], str(ROOT), {})
    pool = HostPool(settings, lambda _: (command, lambda *_: None))
    with pytest.raises(HostUnusable, match="could not be started"):
        pool.acquire(uuid4())
    pool.close()


@greened
def test_an_environment_that_cannot_be_made_is_told_to_all_who_wait(world: World) -> None:
    settings = Settings.from_env({"RUNYARD_DATA_DIR": str(world.tmp_path)})

    def prepare(revision_id: UUID) -> Any:
        gevent.sleep(0.05)
        raise HostUnusable("no environment")

    pool = HostPool(settings, prepare)
    revision = uuid4()
    waiting = [gevent.spawn(pool.acquire, revision) for _ in range(3)]
    gevent.joinall(waiting)
    assert all(isinstance(greenlet.exception, HostUnusable) for greenlet in waiting)
    pool.close()


@greened
def test_the_least_busy_host_is_chosen(world: World) -> None:
    with stage(world, hosts_per_revision=2) as s:
        first = s.acquire()
        s.pool._request(s.revision, OPEN).done.get()
        Occupant().enter(first)
        second = s.acquire()
        assert second is not first
        Occupant().enter(second)
        Occupant().enter(second)

        assert s.acquire() is first


@greened
def test_a_busy_slow_host_gets_company(world: World) -> None:
    with stage(world, hosts_per_revision=2) as s:
        s.part = "slow"
        first = s.acquire()
        Occupant().enter(first)
        until(lambda: first.delay > host_pool.SLOW_SECONDS)
        s.part = "plays along"
        s.acquire()
        until(lambda: len(list(s.pool.all())) == 2)

        assert s.acquire() is not first


@greened
def test_runs_that_get_no_thread_in_their_host_go_to_another(world: World) -> None:
    with stage(world, hosts_per_revision=2) as s:
        s.part = "has no threads"
        full = s.acquire()
        first, second = Occupant().enter(full), Occupant().enter(full)
        s.part = "plays along"
        until(lambda: len(list(s.pool.all())) == 2)
        until(lambda: set(s.pool.starved()) == {UUID(bytes=first.id), UUID(bytes=second.id)})

        full.leave(first.id)
        assert list(s.pool.starved()) == [UUID(bytes=second.id)]
        assert s.acquire() is not full


@greened
def test_runs_that_get_no_thread_stay_where_no_host_has_any(world: World) -> None:
    with stage(world, hosts_per_revision=2) as s:
        s.part = "has no threads"
        occupant = Occupant().enter(s.acquire())
        until(lambda: len(list(s.pool.all())) == 2)
        until(lambda: all(host.queued for host in s.pool.all()))

        assert list(s.pool.starved()) == []
        assert not occupant.deaths


@greened
def test_a_revision_has_no_more_hosts_than_allowed(world: World) -> None:
    with stage(world, hosts_per_revision=1) as s:
        s.part = "slow"
        host = s.acquire()
        Occupant().enter(host)
        until(lambda: host.delay > host_pool.SLOW_SECONDS)
        for _ in range(3):
            s.acquire()

        assert s.starts == 1


@greened
def test_a_silent_host_gets_no_new_runs(world: World) -> None:
    one_host.STALLED_SECONDS = 0.2
    with stage(world) as s:
        s.part = "silent"
        first = s.acquire()
        until(lambda: not first.is_healthy)
        s.part = "plays along"

        assert s.acquire() is not first
        until(lambda: any("blocked" in message for _, message, _ in s.lines))
    one_host.STALLED_SECONDS = 5.0


@greened
def test_a_run_may_have_a_host_of_its_own(world: World) -> None:
    with stage(world) as s:
        shared = s.acquire()
        alone = s.acquire(group=quarantine.group(uuid4(), ALONE))
        occupant = Occupant().enter(alone)
        assert alone is not shared
        assert s.acquire() is shared

        alone.leave(occupant.id)
        until(lambda: not is_alive(alone.pid))
        assert not occupant.deaths


@greened
def test_dead_hosts_do_not_keep_live_ones_from_starting(world: World) -> None:
    with stage(world, hosts_per_revision=1) as s:
        s.pool._watcher.kill()  # it has not looked yet
        for _ in range(5):
            host = s.acquire()
            assert host.died is None
            os.kill(host.pid, signal.SIGKILL)
            until(lambda host=host: host.died)


@greened
def test_the_host_used_longest_ago_makes_room(world: World) -> None:
    with stage(world, max_hosts=2) as s:
        revisions = [uuid4() for _ in range(3)]
        oldest, busy = s.acquire(revisions[0]), s.acquire(revisions[1])
        occupant = Occupant().enter(busy)
        s.acquire(revisions[2])

        until(lambda: not is_alive(oldest.pid))
        assert busy.died is None
        assert not occupant.deaths


@greened
def test_runs_that_want_hosts_of_their_own_wait_for_slots_and_take_nobody_else_s(world: World) -> None:
    with stage(world, max_hosts=2) as s:
        warm = [s.acquire(uuid4()), s.acquire(uuid4())]
        used: list[Host] = []

        def run_alone() -> Occupant:
            host = s.acquire(group=quarantine.group(uuid4(), ALONE))
            occupant = Occupant().enter(host)
            used.append(host)
            assert len([host for host in s.pool.all() if host.group != OPEN]) <= 2
            until(lambda: occupant.frames)
            host.leave(occupant.id)
            return occupant

        alone = [gevent.spawn(run_alone) for _ in range(7)]
        gevent.joinall(alone, raise_error=True)

        assert len(set(used)) == 7
        assert not any(greenlet.value.deaths for greenlet in alone)
        assert [host.died for host in warm] == [None, None]


@greened
def test_who_waits_for_a_slot_gets_the_next_that_is_free(world: World) -> None:
    with stage(world, max_hosts=1) as s:
        busy = s.acquire()
        occupant = Occupant().enter(busy)
        waiting = gevent.spawn(s.acquire, uuid4())
        gevent.idle()
        assert not waiting.ready()
        assert s.starts == 1

        busy.leave(occupant.id)
        assert waiting.get(timeout=20) is not busy
        assert not occupant.deaths


@greened
def test_more_revisions_than_slots_are_all_served_and_no_slot_is_taken_twice(world: World) -> None:
    with stage(world, max_hosts=2) as s:

        def run(revision: UUID) -> Occupant:
            occupant = Occupant().enter(host := s.acquire(revision))
            assert sum(is_alive(pid) for pid in set(s.pids)) <= 2
            until(lambda: occupant.frames)
            host.leave(occupant.id)
            return occupant

        revisions = [uuid4() for _ in range(3)]
        running = [gevent.spawn(run, revision) for revision in revisions * 2]
        gevent.joinall(running, raise_error=True)

        assert not any(greenlet.value.deaths for greenlet in running)


@greened
def test_who_waits_for_a_slot_may_give_up(world: World) -> None:
    with stage(world, max_hosts=1) as s:
        busy = s.acquire()
        occupant = Occupant().enter(busy)
        ended: AsyncResult = AsyncResult()
        waiting = gevent.spawn(s.acquire, uuid4(), unless=ended)
        gevent.idle()
        ended.set(None)
        waiting.join(timeout=20)
        assert isinstance(waiting.exception, GaveUp)

        busy.leave(occupant.id)
        assert s.acquire() is busy, "nobody wants its slot any more"
        assert s.starts == 1


@greened
def test_of_those_who_wait_the_revision_with_fewest_hosts_goes_first(world: World) -> None:
    with stage(world, max_hosts=2) as s:
        alone = [quarantine.group(uuid4(), ALONE) for _ in range(4)]
        first, second = s.acquire(group=alone[0]), s.acquire(group=alone[1])
        occupant = Occupant().enter(first)
        Occupant().enter(second)
        third = gevent.spawn(s.acquire, group=alone[2])
        gevent.idle()
        other = gevent.spawn(s.acquire, uuid4(), group=alone[3])
        gevent.idle()
        first.leave(occupant.id)

        Occupant().enter(other.get(timeout=20))
        assert not third.ready()
        third.kill()


@greened
def test_a_host_that_is_never_idle_gives_way_to_who_has_waited_long(world: World) -> None:
    host_pool.SLOT_WAIT_SECONDS = 0.1
    with stage(world, max_hosts=2) as s:
        long, short = s.acquire(uuid4()), s.acquire(uuid4())
        Occupant().enter(long)
        occupants = [Occupant().enter(short) for _ in range(2)]
        waiting = gevent.spawn(s.acquire, uuid4())
        until(lambda: short.is_retiring)
        again = gevent.spawn(s.acquire, short.revision_id)
        for occupant in occupants:
            short.leave(occupant.id)

        assert waiting.get(timeout=20) not in (long, short)
        assert again.get(timeout=20) is not short
        assert long.died is None
    host_pool.SLOT_WAIT_SECONDS = 5.0


@greened
def test_a_host_that_answers_pings_only_gets_no_runs_and_its_quiet_ones_go_elsewhere(world: World) -> None:
    one_host.QUIET_SECONDS = 0.2
    with stage(world) as s:
        s.part = "pongs only"
        unfit = s.acquire()
        first = Occupant().enter(unfit)
        until(lambda: unfit._asked)
        second = Occupant().enter(unfit)  # after the check that is never answered
        until(lambda: first.deaths and second.deaths)
        assert all(isinstance(occupant.deaths[0], NotBegun) for occupant in (first, second))
        s.part = "plays along"
        assert s.acquire() is not unfit

        for occupant in (first, second):
            unfit.leave(occupant.id)
        until(lambda: not is_alive(unfit.pid))
        assert [len(occupant.deaths) for occupant in (first, second)] == [1, 1]
    one_host.QUIET_SECONDS = 5.0


@greened
def test_a_host_that_says_it_is_damaged_gets_no_runs_and_stops_when_it_is_empty(world: World) -> None:
    with stage(world) as s:
        s.part = "is damaged"
        damaged = s.acquire()
        occupant = Occupant().enter(damaged)
        until(lambda: not damaged.is_healthy)
        s.part = "plays along"
        assert s.acquire() is not damaged
        assert not occupant.deaths

        damaged.leave(occupant.id)
        until(lambda: not is_alive(damaged.pid))
        assert [message for _, message, _ in s.lines] == ["a node broke it: its process gets no new runs"]


@greened
def test_a_run_that_its_host_does_not_know_goes_elsewhere(world: World) -> None:
    one_host.QUIET_SECONDS = 0.2
    with stage(world) as s:
        s.part = "forgets"
        host = s.acquire()
        occupant = Occupant().enter(host)
        until(lambda: occupant.deaths)

        assert isinstance(occupant.deaths[0], NotBegun)
        assert host.is_healthy
    one_host.QUIET_SECONDS = 5.0


@greened
def test_a_quiet_run_that_its_host_executes_is_left_alone(world: World) -> None:
    one_host.QUIET_SECONDS = one_host.LONG_QUIET_SECONDS = 0.1
    with stage(world) as s:
        s.part = "has them all"
        host = s.acquire()
        occupant = Occupant().enter(host)
        asked: list[bytes] = []
        send = host.send
        host.send = lambda kind, id, body: (
            asked.append(body) if kind == frames.CHECK else None,
            send(kind, id, body),
        )[1]  # type: ignore[method-assign]
        until(lambda: len(asked) >= 3)

        assert host.is_healthy
        assert not occupant.deaths
    one_host.QUIET_SECONDS, one_host.LONG_QUIET_SECONDS = 5.0, 30.0


@greened
def test_a_run_that_is_heard_of_costs_no_check(world: World) -> None:
    one_host.QUIET_SECONDS = 0.2
    with stage(world) as s:
        host = s.acquire()
        sent: list[int] = []
        send = host.send
        host.send = lambda kind, id, body: (sent.append(kind), send(kind, id, body))[1]  # type: ignore[method-assign]
        occupant = Occupant().enter(host)
        until(lambda: sent.count(frames.PING) >= 10)

        assert occupant.frames
        assert frames.CHECK not in sent
    one_host.QUIET_SECONDS = 5.0


@greened
def test_an_idle_host_leaves_and_a_busy_one_stays(world: World) -> None:
    with stage(world, host_idle_seconds=0.2) as s:
        idle, busy = s.acquire(uuid4()), s.acquire(uuid4())
        occupant = Occupant().enter(busy)
        until(lambda: not is_alive(idle.pid))
        assert busy.died is None

        busy.leave(occupant.id)
        until(lambda: not is_alive(busy.pid))
        assert not occupant.deaths


@greened
def test_a_revision_is_warmed_once(world: World) -> None:
    with stage(world) as s:
        gevent.joinall([gevent.spawn(s.pool.warm, s.revision) for _ in range(3)], raise_error=True)
        s.acquire()

        assert s.starts == 1


@pytest.mark.parametrize(
    ("how", "told"),
    [(signal.SIGKILL, "was killed by SIGKILL"), (signal.SIGSEGV, "was killed by SIGSEGV")],
    ids=["kill", "segfault"],
)
def test_how_a_host_ended_is_told(how: signal.Signals, told: str) -> None:
    host = object.__new__(Host)
    host._group = None
    host._process = Ended(-how)  # type: ignore[assignment]
    assert host._how_it_ended() == told
    host._process = Ended(128 + how)  # type: ignore[assignment]
    assert host._how_it_ended() == told


def test_a_host_that_the_kernel_ended_for_its_memory_is_told_of_so(tmp_path: Path) -> None:
    host = object.__new__(Host)
    host._group = ControlGroup(tmp_path / "host", tasks=1, memory_bytes=1)
    (tmp_path / "host" / "memory.events").write_text("oom 1\noom_kill 2\n")
    host._process = Ended(-signal.SIGKILL)  # type: ignore[assignment]
    host.memory_mb = 512
    assert host._how_it_ended() == "used more than 512 MiB"


class Ended:
    def __init__(self, code: int) -> None:
        self.code = code

    def wait(self, timeout: float) -> int:
        return self.code


@greened
def test_a_host_that_is_killed_takes_its_own_runs_only(world: World) -> None:
    with stage(world) as s:
        ours, other = s.acquire(uuid4()), s.acquire(uuid4())
        occupant, bystander = Occupant().enter(ours), Occupant().enter(other)
        os.kill(ours.pid, signal.SIGKILL)
        until(lambda: occupant.deaths)

        assert occupant.deaths[0].message == "was killed by SIGKILL"
        assert not bystander.deaths
        with pytest.raises(HostDied):
            Occupant().enter(ours)


@greened
def test_bytes_that_are_no_frame_end_their_host(world: World) -> None:
    ends_by_its_words(world, "nonsense")


@greened
def test_frames_of_a_wrong_shape_end_their_host(world: World) -> None:
    ends_by_its_words(world, "wrong shapes")


@greened
def test_log_lines_of_a_wrong_shape_end_their_host(world: World) -> None:
    ends_by_its_words(world, "odd log lines")


def ends_by_its_words(world: World, part: str) -> None:
    with stage(world) as s:
        s.part = part
        host, occupant = s.acquire(), Occupant()
        occupant.parse = lambda body: json.loads(frames.unpack(body)[0])["ask"]
        occupant.enter(host)
        until(lambda: occupant.deaths)

        assert "cannot be read" in occupant.deaths[0].message
        until(lambda: not is_alive(host.pid))


@greened
def test_a_host_that_closes_its_socket_is_ended(world: World) -> None:
    one_host.TERM_SECONDS = 0.2
    with stage(world) as s:
        s.part = "closes its socket"
        host = s.acquire()
        occupant = Occupant().enter(host)
        until(lambda: occupant.deaths)

        assert occupant.deaths[0].message == "closed its socket"
        until(lambda: not is_alive(host.pid))
    one_host.TERM_SECONDS = 5.0


@greened
def test_a_host_that_stays_silent_is_killed(world: World) -> None:
    with stage(world, host_stall_seconds=0.4) as s:
        s.part = "silent"
        host = s.acquire()
        occupant = Occupant().enter(host)
        until(lambda: occupant.deaths)

        assert "held the event loop" in occupant.deaths[0].message
        until(lambda: not is_alive(host.pid))


@greened
def test_a_full_socket_does_not_stop_the_watch(world: World) -> None:
    """A run too large for a host that reads no more: its sender waits, the silence is still noticed."""
    with stage(world, host_stall_seconds=0.4) as s:
        s.part = "deaf"
        deaf = s.acquire()
        first, second = Occupant().enter(deaf), Occupant()
        entering = gevent.spawn(deaf.enter, second.id, second, bytes(8 * 1024 * 1024))
        entering.link_exception(lambda _: None)
        until(lambda: first.deaths and second.deaths and entering.ready())

        assert isinstance(entering.exception, HostDied)
        until(lambda: not is_alive(deaf.pid))


@greened
def test_a_host_over_its_memory_is_killed(world: World) -> None:
    with stage(world, host_memory_mb=100) as s:
        s.part = "hoards"
        host = s.acquire()
        occupant = Occupant().enter(host)
        until(lambda: occupant.deaths)

        assert "more than 100 MiB" in occupant.deaths[0].message


@greened
def test_what_a_host_started_ends_with_it(world: World) -> None:
    with stage(world) as s:
        s.part = "has a child"
        s.acquire()
        grandchild = int(s.note.read_text())
        assert is_alive(grandchild)
        s.pool.close()

        until(lambda: not is_alive(grandchild))


@greened
def test_what_user_code_prints_is_a_log_line(world: World) -> None:
    with stage(world) as s:
        s.part = "prints"
        Occupant().enter(s.acquire())

        until(lambda: ("INFO", "hello", None) in s.lines)


@greened
def test_what_is_printed_becomes_lines_of_bounded_length_however_it_is_written(world: World) -> None:
    with stage(world) as s:
        s.part = "prints halves"
        Occupant().enter(s.acquire())
        until(lambda: "end" in [message for _, message, _ in s.lines])

        blank, hello, *long, end = [message for _, message, _ in s.lines]
        assert (blank, hello, end) == ("", "hellö world", "end")
        assert "".join(long) == "x" * 10_000
        assert max(map(len, long)) <= one_host.LINE_BYTES


@greened
def test_a_host_that_floods_its_output_leaves_most_of_the_runner_s_time_to_others(world: World) -> None:
    spent = 0.0
    lines = 0

    def takes_a_while(level: str, message: str, run_id: UUID | None) -> None:
        nonlocal spent, lines
        began = time.monotonic()
        while time.monotonic() - began < 0.00002:
            pass
        spent += time.monotonic() - began
        lines += 1

    with stage(world) as s:
        s.part = "floods its output"
        s.output = takes_a_while
        host = s.acquire()
        began = time.monotonic()
        Occupant().enter(host)
        until(lambda: lines > 30_000)

        assert spent < (time.monotonic() - began) / 2


@greened
def test_a_host_that_floods_its_socket_leaves_others_their_turns(world: World) -> None:
    lines = turns = 0

    def count(level: str, message: str, run_id: UUID | None) -> None:
        nonlocal lines
        lines += 1

    with stage(world) as s:
        s.part = "floods its socket"
        s.output = count
        Occupant().enter(s.acquire())
        until(lambda: lines > 0)
        while lines < 200_000:
            gevent.sleep(0.001)
            turns += 1

        assert turns >= 10


@greened
def test_late_frames_of_a_run_that_left_are_nobodys(world: World) -> None:
    with stage(world) as s:
        host, occupant, other = s.acquire(), Occupant(), Occupant()
        host.enter(occupant.id, occupant, b"run")
        host.leave(occupant.id)
        other.enter(host)
        until(lambda: other.frames)

        assert occupant.frames == []
        assert host.died is None


@greened
def test_a_host_with_too_many_processes_is_killed_with_all_of_them(world: World) -> None:
    with stage(world, host_processes=20) as s:
        s.part = "multiplies"
        host = s.acquire()
        occupant = Occupant().enter(host)
        until(lambda: occupant.deaths)
        assert occupant.deaths[0].message == "had more than 20 processes"
        until(lambda: not is_alive(host.pid))
        until(lambda: not any(map(is_alive, s.started)))


@greened
def test_a_host_that_multiplies_before_it_is_ready_is_killed(world: World) -> None:
    with stage(world, host_processes=20) as s:
        s.part = "multiplies as it loads"

        with pytest.raises(HostUnusable, match="had more than 20 processes"):
            s.acquire()

        until(lambda: not any(map(is_alive, s.started)))


@greened
def test_a_deployment_may_have_less_memory_than_the_runner_gives_and_not_more(world: World) -> None:
    with stage(world, host_memory_mb=500) as s:
        s.part = "hoards"
        s.limits = HostLimits(memory_mb=100)
        occupant = Occupant().enter(s.acquire())
        until(lambda: occupant.deaths)
        assert "more than 100 MiB" in occupant.deaths[0].message
        s.limits = HostLimits(memory_mb=100_000)
        assert s.acquire(uuid4()).memory_mb == 500


@greened
def test_a_deployments_own_number_of_hosts_holds_and_can_change(world: World) -> None:
    with stage(world, hosts_per_revision=1) as s:
        s.part = "silent"  # every host of it wants company
        s.limits = HostLimits(hosts_per_runner=2)
        first = s.acquire()
        first.delay = 1.0
        Occupant().enter(first)
        s.acquire()
        until(lambda: len(list(s.pool.all())) == 2)
        s.pids += [host.pid for host in s.pool.all()]
        second = next(host for host in s.pool.all() if host is not first)

        s.pool.adjust({s.revision: HostLimits(hosts_per_runner=1)})

        assert list(s.pool.all()) == [first], "the idle one goes"
        until(lambda: not is_alive(second.pid))


@greened
def test_hosts_of_what_is_deleted_stop_when_they_are_idle(world: World) -> None:
    with stage(world) as s:
        busy, idle = s.acquire(uuid4()), s.acquire(uuid4())
        occupant = Occupant().enter(busy)
        gone = {host.revision_id: HostLimits(is_gone=True) for host in (busy, idle)}

        s.pool.adjust(gone)
        assert list(s.pool.all()) == [busy]

        busy.leave(occupant.id)
        s.pool.adjust(gone)
        assert list(s.pool.all()) == []
        until(lambda: not is_alive(busy.pid) and not is_alive(idle.pid))
