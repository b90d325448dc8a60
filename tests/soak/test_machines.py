"""Three machines with random faults, one after the other: every accepted request is carried out exactly once.

`RUNYARD_TEST_MACHINES_SECONDS` sets the duration, `RUNYARD_TEST_MACHINES_SEED` the sequence of faults.
"""

from __future__ import annotations

import os
import random
import time
from collections import Counter
from collections.abc import Callable, Iterator

import pytest

from tests.conftest import OUTSIDE
from tests.support.counting import KITCHEN
from tests.support.machines.fleet import Fleet, Machine, Place
from tests.support.machines.load import under_load
from tests.support.receiver import receiving
from tests.support.waiting import wait_until

SECONDS = float(os.environ.get("RUNYARD_TEST_MACHINES_SECONDS", "240"))
SEED = int(os.environ.get("RUNYARD_TEST_MACHINES_SEED", "1"))
LEASE_SECONDS = 3.0
DAY = 86_400
WAYS = (("redis",), ("database",), ("redis", "database"))


@pytest.fixture(scope="module")
def fleet() -> Iterator[Fleet]:
    places = [
        Place("early", ["web", "runner"], clock=DAY),
        Place("right", ["web", "runner", "builder", "beat"]),
        Place("late", ["runner", "builder"], clock=-DAY),
    ]
    env = {
        "RUNYARD_LEASE_SECONDS": f"{LEASE_SECONDS:g}",
        "RUNYARD_MAX_ATTEMPTS": "20",  # each fault may cost the same run an attempt
        **OUTSIDE,
    }
    with Fleet(places, env) as own:
        own.deploy(KITCHEN, name="kitchen-default")
        yield own


def freeze(machine: Machine, chance: random.Random) -> None:
    with machine.frozen():
        time.sleep(chance.uniform(0.5, 3) * LEASE_SECONDS)


def cut_off(machine: Machine, chance: random.Random) -> None:
    with machine.cut_off(*chance.choice(WAYS), silently=chance.random() < 0.6):
        time.sleep(chance.uniform(0.2, 4) * LEASE_SECONDS)


def flutter(machine: Machine, chance: random.Random) -> None:
    """Cut the machine off six times, each for less than a second."""
    for _ in range(6):
        with machine.cut_off(*chance.choice(WAYS), silently=chance.random() < 0.5):
            time.sleep(chance.uniform(0.05, 0.6))
        time.sleep(chance.uniform(0.05, 0.6))


def kill(machine: Machine, chance: random.Random) -> None:
    if chance.random() < 0.5:  # PostgreSQL and Redis do not see its connections close
        machine.database.silence()
        machine.redis.silence()
    machine.kill()
    time.sleep(chance.uniform(0, 2) * LEASE_SECONDS)
    machine.database.mend()
    machine.redis.mend()
    machine.start_again()


FAULTS: tuple[Callable[[Machine, random.Random], None], ...] = (freeze, cut_off, cut_off, flutter, kill)


def test_one_fault_after_the_other(fleet: Fleet) -> None:
    chance = random.Random(SEED)
    done: Counter[str] = Counter()
    with receiving() as receiver, under_load(fleet, receiver) as load:
        until = time.monotonic() + SECONDS
        while time.monotonic() < until:
            machine, fault = chance.choice(list(fleet.machines.values())), chance.choice(FAULTS)
            fault(machine, chance)
            done[fault.__name__] += 1
            load.await_more(3)
            wait_until(fleet.is_complete, 90)
    print(dict(done))
