"""The health of a graph host, judged from pings, pongs and checks."""

from __future__ import annotations

from uuid import UUID, uuid4

import pytest

from workers.runner.host_health import LONG_QUIET_SECONDS, PONGS, QUIET_SECONDS, STALLED_SECONDS, HostHealth

RUN, OTHER = uuid4().bytes, uuid4().bytes


class Clock:
    """A clock that moves only when a test moves it."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def health(clock: Clock) -> HostHealth:
    return HostHealth(clock)


def test_a_host_is_stalled_while_a_ping_stays_unanswered(clock: Clock, health: HostHealth) -> None:
    assert health.ping()
    clock.now += STALLED_SECONDS
    assert health.is_stalled
    assert not health.ping(), "one ping at a time"

    health.pong(None)
    assert (health.is_stalled, health.silence, health.delay) == (False, 0.0, STALLED_SECONDS)


def test_a_pong_names_the_runs_that_wait_for_a_thread_until_the_next_one(health: HostHealth) -> None:
    health.run_entered(RUN)
    health.pong({"queued": 2, "starved": [RUN.hex(), OTHER.hex()]})
    assert (health.queued, health.starved) == (2, {UUID(bytes=RUN)}), "without a run that is not here"

    health.pong(None)
    assert (health.queued, health.starved) == (0, set())


def test_a_run_is_checked_when_it_is_quiet_and_later_if_it_has_sent_frames(
    clock: Clock, health: HostHealth
) -> None:
    health.run_entered(RUN)
    assert health.next_check() == set()
    clock.now += QUIET_SECONDS
    health.frame_received(RUN)
    assert health.next_check() == set()
    clock.now += LONG_QUIET_SECONDS
    assert health.next_check() == {RUN}

    clock.now += LONG_QUIET_SECONDS
    assert health.next_check() == set(), "a check is unanswered"
    health.run_left(RUN)
    assert health.checked(set()) == set(), "the run has left"


def test_a_run_that_the_host_does_not_execute_is_displaced_once(clock: Clock, health: HostHealth) -> None:
    health.run_entered(RUN)
    health.run_entered(OTHER)
    clock.now += QUIET_SECONDS
    assert health.next_check() == {RUN, OTHER}

    assert health.checked({OTHER}) == {RUN}
    clock.now += QUIET_SECONDS
    assert health.next_check() == set(), "the executed run is checked after the longer time"


def test_a_run_that_sent_a_frame_after_the_check_is_not_displaced(clock: Clock, health: HostHealth) -> None:
    health.run_entered(RUN)
    clock.now += QUIET_SECONDS
    health.next_check()
    health.frame_received(RUN)

    assert health.checked(set()) == set()


def test_a_host_that_answers_pings_but_no_check_loses_all_its_quiet_runs(
    clock: Clock, health: HostHealth
) -> None:
    health.run_entered(RUN)
    clock.now += QUIET_SECONDS
    health.next_check()
    health.run_entered(OTHER)  # after the check was sent
    for _ in range(PONGS):
        assert not health.ignores_checks
        health.ping()
        health.pong(None)

    assert health.ignores_checks
    assert health.displace_all() == {RUN}
    clock.now += QUIET_SECONDS
    assert health.displace_all() == {OTHER}
