"""Every way in which an attempt ends, as pure functions without a host, database or event log."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from math import log2
from random import Random
from typing import Any
from uuid import UUID

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.errors import Fenced, HostDied, HostUnusable, RunyardError, Unavailable
from shared.eventlog.events import Event
from shared.models import RunStatus, ThreadStatus
from shared.runs import end_event
from shared.runs.claims import Claimed
from workers.runner import ending, quarantine
from workers.runner.ending import Drop, End, Ending, GiveBack, HostOutcome, RollBack, Stop
from workers.runner.quarantine import ALONE

ID = UUID(int=1)
BROKEN = {"error": "ValueError", "message": "no"}
INTERRUPT, ROLLBACK = Stop("interrupt", "enough"), Stop("rollback", "enough")


def run(*, temporary: bool = False, **fields: Any) -> Claimed:
    values = {"last_death": None, "deaths": 0, "quarantine": 0, "seconds_left": 60.0, **fields}
    return Claimed(ID, ID, ID, ID, ID, "agent", 1, "a", 0, temporary, {}, b"null", {}, None, **values)


def of(outcome: HostOutcome | RunyardError, stop: Stop | None = None, **fields: Any) -> Ending:
    return ending.decide(run(**fields), outcome, stop, max_attempts=3, timeout_seconds=60)


@pytest.mark.parametrize("stop", [None, INTERRUPT, ROLLBACK, Stop("timeout"), Stop("handover")])
def test_a_run_that_was_over_before_it_was_to_stop_is_over(stop: Stop | None) -> None:
    good, bad = HostOutcome("success", ThreadStatus.INTERRUPTED), HostOutcome("error", error=BROKEN)

    assert of(good, stop) == End(RunStatus.SUCCESS, ThreadStatus.INTERRUPTED, outcome=good)
    assert of(bad, stop) == End(RunStatus.ERROR, ThreadStatus.ERROR, BROKEN, bad)


def test_a_refused_run_leaves_its_thread_as_it_was_and_other_failures_are_its_error() -> None:
    refused = HostOutcome("error", error=BROKEN, keeps_thread=True)
    assert of(refused) == End(RunStatus.ERROR, None, BROKEN, refused)

    failure = RunyardError("a checkpoint cannot be stored: no")
    error = {"error": "RunyardError", "message": failure.message}
    assert of(failure) == End(RunStatus.ERROR, ThreadStatus.ERROR, error, is_announced=True)


@pytest.mark.parametrize(
    "outcome", [HostOutcome("cancelled"), HostOutcome(), HostDied("was killed", together=4)]
)
def test_a_run_that_is_to_stop_ends_as_it_was_wanted(outcome: HostOutcome | HostDied) -> None:
    done = outcome if isinstance(outcome, HostOutcome) else HostOutcome()
    interrupted = {"error": "UserInterrupt", "message": "enough"}
    late = {"error": "TimeoutError", "message": "the run exceeded its limit of 60 s"}

    assert of(outcome, INTERRUPT) == End(RunStatus.INTERRUPTED, ThreadStatus.INTERRUPTED, interrupted, done)
    assert of(outcome, Stop("timeout")) == End(
        RunStatus.TIMEOUT, ThreadStatus.ERROR, late, done, is_announced=True
    )
    assert of(outcome, ROLLBACK) == RollBack({"error": "UserRollback", "message": "enough"}, done)
    assert of(outcome, Stop("handover")) == GiveBack()


def test_a_run_that_is_rolled_back_keeps_its_answer_and_a_temporary_one_has_nothing_to_roll_back() -> None:
    done = HostOutcome("cancelled", answer=b'{"n":1}')

    assert of(done, ROLLBACK) == RollBack({"error": "UserRollback", "message": "enough"}, done)

    ended = of(done, ROLLBACK, temporary=True)
    assert ended == End(RunStatus.INTERRUPTED, ThreadStatus.IDLE, outcome=done)


def test_a_timeout_names_the_deployments_own_limit_and_has_no_answer() -> None:
    ended = of(HostOutcome("cancelled", answer=b"{}"), Stop("timeout"), timeout_seconds=5.0)

    assert isinstance(ended, End)
    assert (ended.error or {})["message"] == "the run exceeded its limit of 5 s"
    assert ended.outcome.answer is None


def test_a_death_among_others_counts_for_nobody_and_the_last_alone_ends_the_run() -> None:
    assert of(HostDied("was killed", together=9), deaths=2) == GiveBack(
        "its host was killed with 9 on it", death="was killed", level=1
    )

    ended = of(HostDied("was killed"), deaths=2)

    message = "the graph host was killed (3 times in a row)"
    error = {"error": "RunAbandoned", "message": message}
    assert ended == End(RunStatus.ERROR, ThreadStatus.ERROR, error, is_announced=True)


@pytest.mark.parametrize(("deaths", "delay"), [(0, 1.0), (1, 5.0)])
def test_a_death_alone_counts_and_is_followed_by_a_pause(deaths: int, delay: float) -> None:
    assert of(HostDied("was killed"), deaths=deaths) == GiveBack(
        "its host was killed", delay, "was killed", refund=False, level=ALONE
    )
    assert of(HostUnusable("is broken"), deaths=deaths) == GiveBack(
        "its host is broken", delay, "is broken", refund=False
    )


def test_without_a_database_it_is_tried_again_at_no_cost_to_the_run() -> None:
    assert of(Unavailable("gone"), deaths=2) == GiveBack("it cannot start here now: gone", 1.0)
    assert isinstance(of(Fenced(), INTERRUPT), Drop)


@pytest.mark.parametrize(
    ("end", "output"),
    [
        (End(RunStatus.SUCCESS, ThreadStatus.IDLE, outcome=HostOutcome(answer=b'{"a":1}')), b'{"a":1}'),
        (End(RunStatus.ERROR, ThreadStatus.ERROR, BROKEN), b'{"__error__":{"error":"ValueError","message":"no"}}'),
        (End(RunStatus.INTERRUPTED, ThreadStatus.INTERRUPTED, BROKEN), b"null"),
        (End(RunStatus.INTERRUPTED, ThreadStatus.IDLE), b"null"),
    ],
)  # fmt: skip
def test_whoever_waits_gets_the_answer_or_the_error(end: End, output: bytes) -> None:
    assert end.last_event(run()).endswith(b',"output":' + output + b"}")


@pytest.mark.parametrize(
    ("end", "interrupted"),
    [
        (End(RunStatus.SUCCESS, ThreadStatus.IDLE), None),
        (End(RunStatus.SUCCESS, ThreadStatus.INTERRUPTED), True),
        (End(RunStatus.INTERRUPTED, ThreadStatus.INTERRUPTED, BROKEN), True),
        (End(RunStatus.ERROR, None, BROKEN), None),
    ],
)
def test_the_last_event_says_whether_the_thread_is_left_interrupted(
    end: End, interrupted: bool | None
) -> None:
    _, _, data = end.last_event(run()).partition(b"\n")
    assert orjson.loads(data).get("interrupted") is interrupted


def test_the_last_event_says_whether_the_output_is_the_state() -> None:
    head = orjson.dumps({"status": "success", "state": {"next": []}})
    for answer, state in ((b'{"a":1}', {"a": 1}), (b'{"b":1}', None)):
        outcome = HostOutcome.read([head, b'{"a":1}', answer])
        payload = End(RunStatus.SUCCESS, ThreadStatus.IDLE, outcome=outcome).last_event(run())
        assert end_event.state_of(Event(1, 1, "end", payload.partition(b"\n")[2])) == state


@pytest.mark.parametrize("said", [None, "soon", -1.0, float("nan"), True])
def test_a_host_that_names_no_duration_has_streamed_no_token(said: object) -> None:
    head = {"status": "success", "first_token_ago": said}

    assert HostOutcome.read([orjson.dumps(head), b"null", b"null"]).first_token_ago is None


def test_a_host_says_how_long_ago_the_first_token_was() -> None:
    assert (
        HostOutcome.read([b'{"status":"success","first_token_ago":1.5}', b"null", b"null"]).first_token_ago
        == 1.5
    )


@pytest.mark.parametrize(
    "outcome", [HostOutcome("success"), HostOutcome("cancelled"), HostOutcome(), HostDied("was killed")]
)
def test_a_run_over_its_budget_is_an_error_however_far_it_came(outcome: HostOutcome | HostDied) -> None:
    ended = of(outcome, Stop(ending.BUDGET, "too many tokens"))

    assert isinstance(ended, End)
    assert (ended.status, ended.thread_status) == (RunStatus.ERROR, ThreadStatus.ERROR)
    assert ended.error == {"error": "BudgetExceeded", "message": "too many tokens"}
    assert ended.is_announced


@pytest.mark.parametrize("values", [b'"\\ud800"', b"1e400000", b"NaN", b"{", b'"\xff"'])
def test_values_that_nobody_could_read_again_are_nonsense_of_the_host(values: bytes) -> None:
    with pytest.raises(ValueError):
        HostOutcome.read([b'{"status":"success","state":{"next":[]}}', values, b"null"])


def test_a_nul_stays_in_the_values_and_not_in_the_names_of_models() -> None:
    head = {"status": "success", "state": {"next": []}, "usage": {"model\x00": {"input_tokens": 1}}}

    done = HostOutcome.read([orjson.dumps(head), b'{"a":"\\u0000"}', b"null"])

    assert done.values == '{"a":"\\u0000"}'
    assert done.usage == '{"model\\ufffd":{"input_tokens":1}}'


# Quarantine: runs that kill their host among runs that do not


MAX_DEATHS = 3


@dataclass
class Run:
    """The quarantine state of a run, and whether it kills its host."""

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
    """Execute the runs of one random host after another until no run is left.

    A run that kills its host costs every run on that host an attempt.
    """
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
    assert group != quarantine.DEFAULT_GROUP


def test_who_died_alone_stays_alone() -> None:
    level = quarantine.after(0, 1)
    assert quarantine.group(UUID(int=1), level) != quarantine.group(UUID(int=2), level)
    assert quarantine.after(level, 1) == ALONE
