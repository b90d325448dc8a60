"""Claiming by a runner: each run once, in order, within limits, in round robin."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from uuid import uuid4

import gevent
from sqlalchemy import text

from shared.access import api_keys
from shared.deployments import limits
from shared.deployments.deployments import DeploymentRef
from shared.infra import broker
from shared.infra.postgres import connection
from shared.runs import backlog
from shared.settings import Settings
from tests.support import factories
from tests.support.greened import within
from tests.support.runner_bench import GRAPHS, Bench, bench, names
from tests.support.waiting import until
from workers.runner.claiming import AT_ONCE, ClaimedRuns, Claims, Slots


@within(bench)
def test_a_message_delivered_twice_changes_nothing_and_a_run_without_one_is_claimed(b: Bench) -> None:
    run_id = b.create("writes", {"n": 5, "seconds": 0.05}, stream_mode=["custom"])
    for _ in range(3):
        gevent.spawn(b.runner.notify, [run_id, run_id])
    found = b.wait(run_id)
    b.runner.notify([run_id])

    row = b.row(run_id)
    assert (row["status"], row["attempt"]) == ("success", 1)
    assert names(found).count("custom") == 5

    run_id = b.create("echo", {"text": "hi"})
    b.wait(run_id)

    assert b.status(run_id) == "success"


@within(bench)
def test_runs_of_a_limited_deployment_follow_each_other_without_a_notification(b: Bench) -> None:
    with connection() as conn:
        limits.change(conn, b.deployment.id, {"max_concurrent_runs": 1})
    waiting = [b.create("echo", {"text": "x"}) for _ in range(4)]
    with connection() as conn:
        conn.execute(text("UPDATE run SET created_at = now() - interval '1 minute'"))
    b.notified.clear()

    found = until(lambda: [run_id for run_id in waiting if b.status(run_id) == "success"] == waiting)

    assert found
    assert b.notified == []
    with connection() as conn:
        ended = conn.execute(text("SELECT started_at, ended_at FROM run ORDER BY run_id")).all()
    assert all(after.started_at >= before.ended_at for before, after in pairwise(ended))


@within(bench)
def test_runs_of_a_thread_go_in_order_and_those_of_a_limited_key_one_by_one(b: Bench) -> None:
    thread_id = uuid4()
    ids = [b.create("echo", {"text": str(n)}, thread=thread_id) for n in range(5)]
    gevent.spawn(b.runner.notify, list(reversed(ids)))
    for run_id in ids:
        b.wait(run_id)

    assert b.thread(ids[-1])["values"]["log"] == ["0", "1", "2", "3", "4"]

    with connection() as conn:
        api_keys.ensure_default_organization(conn)
        made = api_keys.create(conn, api_keys.DEFAULT_ORGANIZATION_ID, name="k", max_concurrent_runs=1)
    key_id = made.split("_")[1]
    ids = [b.create("writes", {"n": 1}, key=key_id) for _ in range(4)]
    b.runner.notify(ids)
    for run_id in ids:
        b.wait(run_id)

    spans = [(row["started_at"], row["ended_at"]) for row in map(b.row, ids) if row]
    assert all(end <= start for (_, end), (start, _) in pairwise(spans))


@within(bench, runner_slots=2)
def test_a_runner_has_no_more_runs_than_slots_at_each_depth(b: Bench) -> None:
    ids = [b.create("sleeps", {"seconds": 0.3}) for _ in range(5)]
    gevent.spawn(b.runner.notify, ids)
    until(lambda: b.runner.executions)
    assert sum(b.status(run_id) == "running" for run_id in ids) <= 2
    for run_id in ids:
        b.wait(run_id)

    ids = [b.create("sleeps", {"seconds": 0.3}, depth=1) for _ in range(6)]
    root = b.create("echo")
    gevent.spawn(b.runner.notify, [*ids, root])
    b.wait(root)
    while not all(b.status(run_id) == "success" for run_id in ids):
        assert b.runner.claims.slots.busy(1) <= 2


@within(bench, runner_slots=2)
def test_a_full_runner_claims_round_robin_and_loses_no_run(b: Bench) -> None:
    limited = factories.deployment("limited", graphs=GRAPHS)
    with connection() as conn:
        conn.execute(text("UPDATE deployment SET max_concurrent_runs = 1 WHERE id = :id"), {"id": limited.id})
    many = [b.create("echo", key="many") for _ in range(24)]
    slow = [b.create("echo", key="many", deployment=limited) for _ in range(3)]
    single = b.create("echo", key="single")
    for run_id in [*many, *slow, single]:
        gevent.spawn(b.runner.notify, [run_id])
    for run_id in [*many, *slow, single]:
        b.wait(run_id)

    ended = {run_id: b.row(run_id)["started_at"] for run_id in [*many, *slow, single]}
    order = sorted(ended, key=lambda run_id: ended[run_id])
    assert order.index(single) < 8
    assert order.index(slow[-1]) < 20
    assert not b.runner.claims.has_backlog


def test_runs_that_other_runners_are_claiming_do_not_hide_the_rest_of_the_backlog(
    deployment: DeploymentRef,
) -> None:
    waiting = [factories.run(deployment) for _ in range(3 * AT_ONCE)]
    claims = Claims(Settings.from_env({}))

    with connection() as other:
        other.execute(text("SELECT FROM run ORDER BY run_id LIMIT :many FOR UPDATE"), {"many": 2 * AT_ONCE})
        claimed = [run.run_id for run, _ in claims.claim_backlog(AT_ONCE)]

    assert claimed == waiting[2 * AT_ONCE :]
    assert claims.has_backlog


@within(bench)
def test_the_next_run_of_another_pool_is_notified(b: Bench) -> None:
    other = uuid4()
    b.runner.notify_next(backlog.NextRun(other, "gpu"))

    assert b.notified == [(broker.EXECUTE_RUNS, "runs.gpu", str(other))]


@within(bench, runner_slots=1)
def test_runs_of_each_depth_have_slots_of_their_own(b: Bench) -> None:
    running = [b.start("sleeps", stream_mode=["custom"])]
    b.wait_for_event(running[0], b"asleep")
    for depth in (1, 2):
        running.append(b.start("sleeps", stream_mode=["custom"], depth=depth))
        b.wait_for_event(running[-1], b"asleep")
    second, root = b.start("echo", depth=1), b.start("echo")
    third = b.start("echo", depth=3)
    b.wait(third)
    assert [b.status(run_id) for run_id in (*running, second, root)] == ["running"] * 3 + ["pending"] * 2

    b.cancel(running[1], "interrupt")
    b.wait(second)
    assert b.status(root) == "pending"
    b.cancel(running[0], "interrupt")
    b.wait(root)


@within(bench, runner_slots=1)
def test_a_nested_run_of_which_no_notification_comes_is_claimed_by_a_full_runner(b: Bench) -> None:
    first = b.start_asleep()
    b.wait(b.create("echo", depth=1))

    assert b.status(first) == "running"


@within(bench)
def test_nested_runs_of_a_limited_deployment_do_not_wait_for_those_that_call_them(b: Bench) -> None:
    with connection() as conn:
        limits.change(conn, b.deployment.id, {"max_concurrent_runs": 1})
    first = b.start_asleep()
    nested = [b.start("echo", depth=1) for _ in range(3)]
    for run_id in nested:
        b.wait(run_id)

    assert b.status(first) == "running"


def test_claims_at_the_same_time_share_the_slots_of_replays() -> None:
    slots = Slots(8)
    allowed: list[int] = []

    def claim_of_another_bench(reserve: Callable[[int], int]) -> ClaimedRuns:
        allowed.append(reserve(8))
        return []

    def claim(reserve: Callable[[int], int]) -> ClaimedRuns:
        slots.claimed_within_replays(claim_of_another_bench)
        allowed.append(reserve(3))
        slots.claimed_within_replays(claim_of_another_bench)
        return []

    slots.claimed_within_replays(claim)
    slots.claimed_within_replays(claim_of_another_bench)

    assert allowed == [4, 3, 1, 4]


@within(bench, runner_slots=4)
def test_waiting_ordinary_runs_start_before_replays_which_use_half_of_the_slots(b: Bench) -> None:
    replay = factories.deployment("replay", graphs=GRAPHS)
    with connection() as conn:
        conn.execute(
            text("UPDATE deployment SET replay_of = :of, max_concurrent_runs = 8 WHERE id = :id"),
            {"of": b.deployment.id, "id": replay.id},
        )
    cases = [b.create("sleeps", {"seconds": 0.05}, deployment=replay) for _ in range(8)]
    ordinary = [b.create("sleeps", {"seconds": 0.05}) for _ in range(12)]

    b.runner.notify([*cases, *ordinary])

    until(lambda: all(b.status(run_id) == "success" for run_id in [*cases, *ordinary]))
    with connection() as conn:
        row = conn.execute(
            text("""
            SELECT count(*) FILTER (WHERE c.started_at < (SELECT max(o.started_at) FROM run o
                WHERE o.deployment_id = :ordinary)) AS too_early,
                max((SELECT count(*) FROM run o WHERE o.deployment_id = :replay
                     AND o.started_at <= c.started_at AND o.ended_at > c.started_at)) AS at_once
            FROM run c WHERE c.deployment_id = :replay"""),
            {"ordinary": b.deployment.id, "replay": replay.id},
        ).one()
    assert tuple(row) == (0, 2)
