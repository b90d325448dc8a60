"""Starting graph hosts: one start serves all waiting runs, and failures are reported."""

from __future__ import annotations

import dataclasses
import json
import os
import sys
from contextlib import ExitStack
from typing import Any
from uuid import UUID, uuid4

import gevent
import pytest

from shared.errors import HostUnusable
from shared.settings import Settings
from tests.support.greened import World, greened, within
from tests.support.javascript import NODE
from tests.support.played_hosts import HOST, ROOT, Occupant, Stage, is_alive, stage
from tests.support.waiting import until
from workers.graph_host import frames
from workers.runner.host import HostCommand
from workers.runner.host_pool import HostPool, PreparedHost

KITCHEN = ROOT / "tests/projects/kitchen"


@greened
def test_a_real_host_runs_a_graph(world: World) -> None:
    settings = Settings.from_env({"RUNYARD_DATA_DIR": str(world.tmp_path)})
    env = {
        "PATH": os.environ["PATH"],
        "GRAPH_HOST_CONFIG": json.dumps({"graphs": {"echo": "./kitchen.py:echo"}}),
    }
    command = HostCommand([sys.executable, str(HOST), "--socket", "{socket}"], str(KITCHEN), env)
    pool = HostPool(settings, lambda _: PreparedHost(command, lambda *_: None))
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


CHILD_OF_NODE = """
const socket = fs.readlinkSync(`/proc/self/fd/${process.argv.at(-1)}`);
const ofChild = child_process.execFileSync("ls", ["-l", "/proc/self/fd"], { encoding: "utf8" });
fs.writeFileSync("note.json", JSON.stringify([socket.startsWith("socket:"), ofChild.includes(socket)]));
"""


@greened
def test_programs_that_node_starts_do_not_get_the_socket_of_its_host(world: World) -> None:
    settings = Settings.from_env({"RUNYARD_DATA_DIR": str(world.tmp_path)})
    command = HostCommand(
        [str(NODE / "node"), "--eval", CHILD_OF_NODE, "{socket}"],
        str(world.tmp_path),
        {"PATH": os.environ["PATH"]},
    )
    with ExitStack() as others:  # a runner has many descriptors
        for _ in range(40):
            others.enter_context(open(os.devnull))
        pool = HostPool(settings, lambda _: PreparedHost(command, lambda *_: None))
        with pytest.raises(HostUnusable, match="exited with code 0"):
            pool.acquire(uuid4())

    assert json.loads((world.tmp_path / "note.json").read_text()) == [True, False]


@within(stage)
def test_a_host_is_started_once_for_all_who_come_at_once_or_warm_it(s: Stage) -> None:
    found = [gevent.spawn(s.acquire) for _ in range(10)]
    gevent.joinall(found, raise_error=True)

    assert s.starts == 1
    assert len({greenlet.value for greenlet in found}) == 1

    gevent.joinall([gevent.spawn(s.pool.warm, s.revision) for _ in range(3)], raise_error=True)
    s.acquire()

    assert s.starts == 1


@within(stage)
def test_a_host_that_ends_at_once_is_reported_with_its_code(s: Stage) -> None:
    s.part = "leaves at once"
    with pytest.raises(HostUnusable, match="exited with code 3"):
        s.acquire()
    until(lambda: ("INFO", "no such library", None) in s.lines)


@within(stage)
def test_a_host_that_cannot_load_the_project_says_why_and_is_gone(s: Stage) -> None:
    s.part = "cannot load"
    made = []
    opened = s.pool._open
    s.pool._open = lambda start: made.append(opened(start)) or made[-1]  # type: ignore[method-assign,func-returns-value]
    with pytest.raises(HostUnusable, match=r"no such file\\x00$"):  # the database would reject a raw NUL
        s.acquire()

    until(lambda: not is_alive(made[0].pid))


@within(stage, host_start_seconds=0.3)
def test_a_host_that_never_gets_ready_is_given_up(s: Stage) -> None:
    s.part = "never ready"
    with pytest.raises(HostUnusable, match="not ready within"):
        s.acquire()
    s.part = "plays along"
    s.pool._settings = dataclasses.replace(s.pool._settings, host_start_seconds=60.0)
    s.acquire()


@greened
def test_a_program_or_an_environment_that_is_not_there_fails_all_who_wait(world: World) -> None:
    settings = Settings.from_env({"RUNYARD_DATA_DIR": str(world.tmp_path)})
    command = HostCommand(["/no/such/python", "{socket}"], str(ROOT), {})
    pool = HostPool(settings, lambda _: PreparedHost(command, lambda *_: None))
    with pytest.raises(HostUnusable, match="could not be started"):
        pool.acquire(uuid4())
    pool.close()

    def prepare(revision_id: UUID) -> Any:
        gevent.sleep(0.05)
        raise HostUnusable("no environment")

    pool = HostPool(settings, prepare)
    revision = uuid4()
    waiting = [gevent.spawn(pool.acquire, revision) for _ in range(3)]
    gevent.joinall(waiting)
    assert all(isinstance(greenlet.exception, HostUnusable) for greenlet in waiting)
    pool.close()


@within(stage, host_processes=20)
def test_a_host_that_multiplies_before_it_is_ready_is_killed(s: Stage) -> None:
    s.part = "multiplies as it loads"

    with pytest.raises(HostUnusable, match="had more than 20 processes"):
        s.acquire()

    until(lambda: not any(map(is_alive, s.started)))
