"""Leader election of upkeep: one process does it, and another takes over when the leader is gone."""

from __future__ import annotations

import dataclasses
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import gevent
import pytest
from redis import Redis

from shared.deployments.deployments import DeploymentRef
from shared.runs import claims
from shared.settings import Settings
from tests.support import factories
from tests.support.abandoning import Notified, abandoned, end_leadership, lead, log_of, notified, row, upkeep
from tests.support.waiting import until
from workers.upkeep import upkeep as module
from workers.upkeep.upkeep import Upkeep

__all__ = ["notified", "upkeep"]

pytestmark = pytest.mark.usefixtures("db", "redis")


class Counting(Upkeep):
    """Counts its rounds instead of doing anything."""

    def __init__(self, settings: Settings, name: str) -> None:
        super().__init__(dataclasses.replace(settings, worker=name))
        self.rounds = 0

    def tick(self) -> None:
        self.rounds += 1


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "TICK_SECONDS", 0.02)


def test_one_process_leads(settings: Settings, quick: None) -> None:
    crowd = [Counting(settings, name) for name in "abc"]
    loops = [gevent.spawn(upkeep._run) for upkeep in crowd]
    until(lambda: max(upkeep.rounds for upkeep in crowd) >= 5)
    try:
        assert sorted(upkeep.rounds > 0 for upkeep in crowd) == [False, False, True]
    finally:
        gevent.killall(loops)


def test_one_leads_of_many_that_begin_at_once() -> None:
    with ThreadPoolExecutor(8) as pool:
        led = list(pool.map(lead, "abcdefgh"))

    assert led.count(True) == 1


def test_a_leader_renews_and_another_leads_when_it_has_been_silent_for_too_long() -> None:
    assert lead("first")
    assert not lead("second")
    assert lead("first")

    end_leadership()

    assert lead("second")
    assert not lead("first"), "and it learns of it when it wakes up"


def test_a_lease_by_a_clock_that_has_been_put_back_since_counts_for_nothing() -> None:
    lead("first")
    end_leadership("now() + interval '1 hour'")

    assert lead("second")
    assert not lead("first")


def test_another_leads_at_once_when_the_leader_stops(settings: Settings, quick: None) -> None:
    first, second = Counting(settings, "first"), Counting(settings, "second")
    first.start()
    until(lambda: first.rounds)
    second.start()
    first.close()

    assert lead("second")
    until(lambda: second.rounds)
    before = first.rounds
    until(lambda: second.rounds > 3)
    assert first.rounds == before
    second.close()


def test_a_process_that_does_not_lead_does_nothing(
    upkeep: Upkeep, notified: Notified, deployment: DeploymentRef
) -> None:
    lead("another")
    factories.run(deployment)
    upkeep.tick()

    assert notified == []


def test_a_leader_that_was_replaced_in_the_middle_of_a_round_does_no_more(
    settings: Settings,
    notified: Notified,
    redis: Redis,
    deployment: DeploymentRef,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The leader freezes after reading the abandoned runs and wakes up when its successor has ended them."""
    waiting, lost = factories.run(deployment), abandoned(deployment, "deaths = 2")
    frozen, heir = (Upkeep(dataclasses.replace(settings, worker=name)) for name in ("frozen", "heir"))
    look = claims.abandoned

    def look_and_freeze(conn: Any, **options: Any) -> Any:
        found = look(conn, **options)
        monkeypatch.setattr(claims, "abandoned", look)
        end_leadership()
        heir.tick()
        return found

    monkeypatch.setattr(claims, "abandoned", look_and_freeze)
    frozen.tick()

    assert (row(lost)["status"], row(lost)["owner"], row(lost)["attempt"]) == ("error", "heir", 2)
    assert [name for _, name, _ in log_of(redis, lost)] == ["error", "end"]
    assert [id for _, _, id in notified] == [str(waiting)]
    assert not lead("frozen")


def test_beat_may_wake_it(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "TICK_SECONDS", 60)
    upkeep = Counting(settings, "first")
    loop = gevent.spawn(upkeep._run)
    gevent.sleep(0)
    upkeep.wake()
    until(lambda: upkeep.rounds == 1)
    upkeep.wake()
    until(lambda: upkeep.rounds == 2)
    loop.kill()
