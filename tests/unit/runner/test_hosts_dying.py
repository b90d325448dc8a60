"""Graph hosts that die or are killed: the reported reason, the affected runs, and no process left behind."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from uuid import uuid4

import gevent
import pytest

from shared.deployments.limits import HostLimits
from shared.errors import HostDied, HostUnusable, NotBegun
from tests.support.greened import World, constants, greened, within
from tests.support.played_hosts import Occupant, Stage, is_alive, stage
from tests.support.waiting import until
from workers.graph_host import frames
from workers.isolation.cgroups import ControlGroup
from workers.runner import host as one_host
from workers.runner import host_health, printed_output
from workers.runner.host import Host, describe_exit


def test_how_a_host_ended_is_reported() -> None:
    for how in (signal.SIGKILL, signal.SIGSEGV):
        for code in (-how, 128 + how):
            assert describe_exit(code, None, 512) == f"was killed by {how.name}"
    assert describe_exit(3, None, 512) == "exited with code 3"


def test_a_host_that_the_kernel_ended_for_its_memory_is_reported_so(tmp_path: Path) -> None:
    group = ControlGroup(tmp_path / "host", tasks=1, memory_bytes=1)
    (tmp_path / "host" / "memory.events").write_text("oom 1\noom_kill 2\n")
    assert describe_exit(-signal.SIGKILL, group, 512) == "used more than 512 MiB"


@within(stage)
def test_a_host_that_is_killed_takes_its_own_runs_only(s: Stage) -> None:
    ours, other = s.acquire(uuid4()), s.acquire(uuid4())
    occupant, bystander = Occupant().enter(ours), Occupant().enter(other)
    os.kill(ours.pid, signal.SIGKILL)
    until(lambda: occupant.deaths)

    assert occupant.deaths[0].message == "was killed by SIGKILL"
    assert not bystander.deaths
    with pytest.raises(HostDied):
        Occupant().enter(ours)


# Behaviour of the host → (settings of the pool, text in the reported reason).
ENDED: dict[str, tuple[dict[str, float], str]] = {
    "nonsense": ({}, "cannot be read"),
    "wrong shapes": ({}, "cannot be read"),
    "odd log lines": ({}, "cannot be read"),
    "closes its socket": ({}, "closed its socket"),
    "shares its socket": ({}, "exited with code 4"),
    "silent": ({"host_stall_seconds": 0.4}, "held the event loop"),
    "hoards": ({"host_memory_mb": 100}, "more than 100 MiB"),
    "multiplies": ({"host_processes": 20}, "had more than 20 processes"),
}


@greened
def test_a_host_that_misbehaves_is_ended_for_a_reason_with_all_that_it_started(world: World) -> None:
    for part, (settings, told) in ENDED.items():
        with constants(one_host, TERM_SECONDS=0.2), stage(world, **settings) as s:
            s.part = part
            host, occupant = s.acquire(), Occupant()
            if part == "wrong shapes":
                occupant.parse = lambda body: json.loads(frames.unpack(body)[0])["ask"]
            occupant.enter(host)
            until(lambda occupant=occupant: occupant.deaths, what=part)

            assert told in occupant.deaths[0].message, part
            until(lambda host=host, s=s: not any(map(is_alive, [host.pid, *s.started])), what=part)


@within(stage, host_stall_seconds=0.4)
def test_a_full_socket_does_not_stop_the_watch(s: Stage) -> None:
    """A large run blocks its sender, because the host no longer reads. The pool still notices the stuck host."""
    s.part = "deaf"
    deaf = s.acquire()
    first, second = Occupant().enter(deaf), Occupant()
    entering = gevent.spawn(deaf.enter, second.id, second, bytes(8 * 1024 * 1024))
    entering.link_exception(lambda _: None)
    until(lambda: first.deaths and second.deaths and entering.ready())

    assert isinstance(entering.exception, HostDied)
    until(lambda: not is_alive(deaf.pid))


@within(stage, host_home_mb=2)
def test_a_host_whose_home_holds_too_much_is_killed_and_the_home_emptied(s: Stage) -> None:
    for part in ("fills its home", "fills it with removed files"):
        s.part = part
        occupant = Occupant().enter(s.acquire())
        until(lambda occupant=occupant: occupant.deaths)
        assert occupant.deaths[0].message == "its home folder held more than 2 MiB of disk"
        assert list(s.home.iterdir()) == [], "emptied before the death is told: the next host may use it"

    s.part = "plays along"
    last = Occupant().enter(s.acquire())
    until(lambda: last.frames)
    assert not last.deaths


@within(stage, host_home_mb=2)
def test_no_file_of_a_host_is_larger_than_its_home_may_be(s: Stage) -> None:
    s.part = "writes a large file"
    occupant = Occupant().enter(s.acquire())
    until(lambda: occupant.frames or occupant.deaths)
    assert occupant.frames[0][1] == b"values\nFile too large"
    assert (s.home / "large").stat().st_size == 2 * 2**20


@within(stage)
def test_what_a_host_started_ends_with_it(s: Stage) -> None:
    s.part = "has a child"
    s.acquire()
    grandchild = int(s.note.read_text())
    assert is_alive(grandchild)
    s.pool.close()

    until(lambda: not is_alive(grandchild))


@within(stage)
def test_what_a_host_started_ends_after_it_too(s: Stage) -> None:
    s.part = "has a child"
    host = s.acquire()
    child = int(s.note.read_text())
    until(lambda: child in {process.pid for process in host.usage.processes})
    os.kill(host.pid, signal.SIGKILL)

    until(lambda: not is_alive(child))


@within(stage)
def test_what_a_host_left_behind_ends_with_it(s: Stage) -> None:
    """The host ends before a measurement has seen its child, which is in a session of its own."""
    s.part = "leaves a process"
    with pytest.raises(HostUnusable, match="exited with code 1"):
        s.acquire()

    until(lambda: not is_alive(int(s.note.read_text())))


@within(stage, host_memory_mb=500)
def test_a_deployment_may_have_less_memory_than_the_runner_gives_and_not_more(s: Stage) -> None:
    s.part = "hoards"
    s.limits = HostLimits(memory_mb=100)
    occupant = Occupant().enter(s.acquire())
    until(lambda: occupant.deaths)
    assert "more than 100 MiB" in occupant.deaths[0].message
    s.limits = HostLimits(memory_mb=100_000)
    assert s.acquire(uuid4()).memory_mb == 500


# Hosts that answer pings and are still unfit


def frames_to(host: Host) -> list[int]:
    """Return the list of the kinds of frames that the host is sent from now on."""
    kinds: list[int] = []
    send = host.send

    def record(kind: int, id: bytes, body: bytes) -> None:
        kinds.append(kind)
        send(kind, id, body)

    host.send = record  # type: ignore[method-assign]
    return kinds


@greened
def test_a_host_that_answers_pings_only_gets_no_runs_and_its_quiet_ones_go_elsewhere(world: World) -> None:
    with constants(host_health, QUIET_SECONDS=0.2), stage(world) as s:
        s.part = "pongs only"
        unfit = s.acquire()
        first = Occupant().enter(unfit)
        sent = frames_to(unfit)
        until(lambda: frames.CHECK in sent)
        second = Occupant().enter(unfit)  # enters after the check, which is never answered
        until(lambda: first.deaths and second.deaths)
        assert all(isinstance(occupant.deaths[0], NotBegun) for occupant in (first, second))
        s.part = "plays along"
        assert s.acquire() is not unfit

        for occupant in (first, second):
            unfit.leave(occupant.id)
        until(lambda: not is_alive(unfit.pid))
        assert [len(occupant.deaths) for occupant in (first, second)] == [1, 1]


@within(stage)
def test_a_host_that_says_it_is_damaged_gets_no_runs_and_stops_when_it_is_empty(s: Stage) -> None:
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
    with constants(host_health, QUIET_SECONDS=0.2), stage(world) as s:
        s.part = "forgets"
        host = s.acquire()
        occupant = Occupant().enter(host)
        until(lambda: occupant.deaths)

        assert isinstance(occupant.deaths[0], NotBegun)
        assert host.is_healthy


@greened
def test_the_report_of_an_exhausted_heap_is_the_reason_and_no_output(world: World) -> None:
    for part, reason in (
        ("exhausts its heap", "used more than 77 MiB for JavaScript objects"),
        ("aborts", "was killed by SIGABRT"),
    ):
        with stage(world) as s:
            s.part = part
            s.heap_mb = 77
            host = s.acquire()
            occupant = Occupant().enter(host)
            until(lambda occupant=occupant: occupant.deaths)
            host.wait_output()

            assert occupant.deaths[0].message == reason
            assert [message for _, message, _ in s.lines] == ["before", "", "last"]


@greened
def test_the_report_of_another_process_is_output(world: World) -> None:
    with constants(printed_output, HOLD_SECONDS=0.1), stage(world) as s:
        s.part = "starts one that exhausts its heap"
        s.heap_mb = 77
        Occupant().enter(s.acquire())
        until(lambda: any("native" in message for _, message, _ in s.lines))

        assert [message for _, message, _ in s.lines][:4] == ["before", "", "last", ""]
