"""Poison among innocents: it is alone soon, ends after its deaths, and nobody else's life is counted."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from math import log2
from random import Random
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workers.runner import quarantine
from workers.runner.quarantine import ALONE, OPEN

MAX_DEATHS = 3


@dataclass
class Run:
    """What the row says of a run, and whether it kills its host."""

    id: UUID
    kills: bool
    level: int = 0
    deaths: int = 0
    shared_deaths: int = 0
    hosts: list[quarantine.Group] = field(default_factory=list)

    def lost(self, together: int) -> None:
        self.shared_deaths += together > 1
        self.deaths += together == 1
        self.level = quarantine.after(self.level, together)


def play(runs: list[Run], random: Random) -> None:
    """Every host executes its runs until one of them kills it; the order of events is random."""
    live = list(runs)
    while live:
        hosts: dict[quarantine.Group, list[Run]] = defaultdict(list)
        for run in live:
            hosts[quarantine.group(run.id, run.level)].append(run)
        group = random.choice(sorted(hosts))
        together = hosts[group]
        if not any(run.kills for run in together):
            live = [run for run in live if run not in together]
            continue
        for run in together:
            run.hosts.append(group)
            run.lost(len(together))
        live = [run for run in live if run.deaths < MAX_DEATHS]


@given(innocent=st.integers(0, 250), poison=st.integers(1, 3), seed=st.integers(0, 1 << 30))
def test_poison_ends_and_takes_nobody_with_it(innocent: int, poison: int, seed: int) -> None:
    random = Random(seed)
    runs = [Run(UUID(int=random.getrandbits(128)), kills=n < poison) for n in range(innocent + poison)]
    play(runs, random)

    killers, others = runs[:poison], runs[poison:]
    assert all(run.deaths == MAX_DEATHS for run in killers)
    assert all(run.deaths == 0 for run in others)
    assert all(run.shared_deaths <= ALONE for run in runs)


def test_of_two_hundred_one_is_found_within_a_few_deaths() -> None:
    found = []
    for seed in range(50):
        random = Random(seed)
        runs = [Run(UUID(int=random.getrandbits(128)), kills=n == 0) for n in range(200)]
        play(runs, random)
        found.append(max(run.shared_deaths for run in runs))
    assert max(found) <= log2(200) + 4
    assert sum(found) / len(found) <= log2(200) + 1


@pytest.mark.parametrize("together", [2, 20, 200])
def test_after_one_death_runs_go_on_together_where_no_other_run_is(together: int) -> None:
    runs = [UUID(int=n) for n in range(together)]
    (group,) = {quarantine.group(run, quarantine.after(0, together)) for run in runs}
    assert group != OPEN


def test_who_died_alone_stays_alone() -> None:
    level = quarantine.after(0, 1)
    assert quarantine.group(UUID(int=1), level) != quarantine.group(UUID(int=2), level)
    assert quarantine.after(level, 1) == ALONE
