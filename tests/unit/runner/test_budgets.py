"""Runs that use more tokens than their deployment or key allows: stopped while they run, or not begun at all."""

from __future__ import annotations

from typing import Any

from sqlalchemy import text

from shared.deployments import limits
from shared.infra.postgres import connection
from tests.support.greened import World, greened
from tests.support.runner_bench import Bench, bench, last

WITHOUT_END = {"n": 10_000, "seconds": 0.005}


def allow(b: Bench, **budget: int) -> None:
    with connection() as conn:
        limits.change(conn, b.deployment.id, budget)
    b.runner.services.budgets.learn()


def ended(b: Bench, run_id: Any) -> tuple[str, str]:
    found = b.wait(run_id)
    row = b.row(run_id)
    assert last(found)["status"] == row["status"]
    return row["status"], (row["error"] or {}).get("error", "")


def spent() -> int:
    with connection() as conn:
        return conn.execute(text("SELECT tokens FROM spent_tokens")).scalar_one()


@greened
def test_a_loop_of_model_calls_is_stopped_when_the_run_has_used_what_it_may(world: World) -> None:
    with bench(world) as b:
        allow(b, max_run_tokens=30)
        within, beyond = b.start("consumes", {"n": 10}), b.start("consumes", WITHOUT_END)

        assert ended(b, within) == ("success", "")
        assert ended(b, beyond) == ("error", "BudgetExceeded")
        row = b.row(beyond)
        assert 30 < row["usage"]["large"]["total_tokens"] < 30_000
        assert b.thread(beyond)["status"] == "error"


@greened
def test_a_run_that_came_to_its_end_beyond_what_it_may_is_an_error(world: World) -> None:
    with bench(world) as b:
        allow(b, max_run_tokens=2)

        assert ended(b, b.start("consumes")) == ("error", "BudgetExceeded")


@greened
def test_the_day_s_budget_stops_what_runs_and_what_waits_does_not_begin(world: World) -> None:
    with bench(world) as b:
        waiting = b.create("consumes")
        allow(b, max_tokens_per_day=60)
        running = [b.start("consumes", WITHOUT_END) for _ in range(3)]

        assert {ended(b, run_id) for run_id in running} == {("error", "BudgetExceeded")}
        assert 60 < spent() < 3_000
        before = spent()
        b.notify("", f"runs.{b.settings.pool}", waiting)
        assert ended(b, waiting) == ("error", "BudgetExceeded")
        assert spent() == before


@greened
def test_more_than_can_be_counted_uses_a_budget_up(world: World) -> None:
    with bench(world) as b:
        allow(b, max_tokens_per_day=10**15 - 1)
        with connection() as conn:
            conn.execute(text("UPDATE spent_tokens SET tokens = 10 ^ 15 - 10 ^ 11"))

        assert ended(b, b.start("consumes", {"n": 2, "how": str(10**30), "seconds": 60})) == (
            "error",
            "BudgetExceeded",
        )


@greened
def test_a_key_s_budget_holds_over_its_runs_alone(world: World) -> None:
    with bench(world) as b:
        with connection() as conn:
            conn.execute(
                text(
                    "INSERT INTO api_key (id, organization_id, name, secret_hash, max_run_tokens)"
                    " VALUES ('aaaa', :organization_id, 'small', '', 2)"
                ),
                {"organization_id": b.deployment.organization_id},
            )
        b.runner.services.budgets.learn()
        small, other = b.start("consumes", key="aaaa"), b.start("consumes", key="bbbb")

        assert ended(b, small) == ("error", "BudgetExceeded")
        assert ended(b, other) == ("success", "")
