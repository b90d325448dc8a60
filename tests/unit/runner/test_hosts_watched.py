"""Hosts that answer pings and are still unfit: damaged, or not executing what they were sent."""

from __future__ import annotations

from shared.errors import NotBegun
from tests.support.greened import World, constants, greened
from tests.support.played_hosts import Occupant, is_alive, stage
from tests.support.waiting import until
from workers.graph_host import frames
from workers.runner import host as one_host


@greened
def test_a_host_that_answers_pings_only_gets_no_runs_and_its_quiet_ones_go_elsewhere(world: World) -> None:
    with constants(one_host, QUIET_SECONDS=0.2), stage(world) as s:
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
    with constants(one_host, QUIET_SECONDS=0.2), stage(world) as s:
        s.part = "forgets"
        host = s.acquire()
        occupant = Occupant().enter(host)
        until(lambda: occupant.deaths)

        assert isinstance(occupant.deaths[0], NotBegun)
        assert host.is_healthy


@greened
def test_a_quiet_run_that_its_host_executes_is_left_alone(world: World) -> None:
    with constants(one_host, QUIET_SECONDS=0.1, LONG_QUIET_SECONDS=0.1), stage(world) as s:
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


@greened
def test_a_run_that_sends_something_costs_no_check(world: World) -> None:
    with constants(one_host, QUIET_SECONDS=0.2), stage(world) as s:
        host = s.acquire()
        sent: list[int] = []
        send = host.send
        host.send = lambda kind, id, body: (sent.append(kind), send(kind, id, body))[1]  # type: ignore[method-assign]
        occupant = Occupant().enter(host)
        until(lambda: sent.count(frames.PING) >= 10)

        assert occupant.frames
        assert frames.CHECK not in sent
