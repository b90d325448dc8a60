"""Run options in a whole runner: structured output, forks, start times, limits and additional stream modes."""

from __future__ import annotations

from decimal import Decimal
from typing import Any
from uuid import UUID, uuid4

import orjson
from sqlalchemy import text

from shared.deployments import limits
from shared.figures import usage
from shared.infra.postgres import connection
from shared.runs import backlog, signals
from shared.runs.drafts import RunRequest
from shared.threads import state
from tests.support.creating import insert_run
from tests.support.greened import constants, within
from tests.support.runner_bench import Bench, bench, last, names
from tests.support.waiting import until
from workers.runner import runner
from workers.upkeep.upkeep import Upkeep


def kept(b: Bench, thread_id: UUID) -> dict[str, Any]:
    """Return the stored state of a thread except its `updated_at`."""
    columns = "status, config, values, state, interrupts, error, state_updated_at"
    with connection() as conn:
        row = conn.execute(text(f"SELECT {columns} FROM thread WHERE thread_id = :id"), {"id": thread_id})
        return dict(row.mappings().one())


@within(bench)
def test_a_strict_answer_that_fits_nothing_fails_its_run_alone(b: Bench) -> None:
    thread = uuid4()
    b.wait(b.start("asks", thread=thread))
    before = kept(b, thread)
    assert before["status"] == "interrupted"

    run_id = b.start("asks", thread=thread, command={"resume": {"0" * 32: 1}}, strict_resume=True)
    found = b.wait(run_id)

    row = b.row(run_id)
    assert (row["status"], row["error"]["error"]) == ("error", "UnknownInterruptError")
    assert names(found)[-2:] == ["error", "end"]
    assert last(found)["output"] == {"__error__": row["error"]}
    assert kept(b, thread) == before

    b.wait(b.start("asks", thread=thread, command={"resume": "yes"}, strict_resume=True))
    assert kept(b, thread)["status"] == "idle"


@within(bench)
def test_a_fork_begins_at_its_checkpoint_and_the_thread_goes_on_from_it(b: Bench) -> None:
    thread = uuid4()
    b.wait(b.start("asks", thread=thread))
    with connection() as conn:
        waiting = state.newest(conn, b.deployment.id, thread).checkpoint_id
    b.wait(b.start("asks", thread=thread, command={"resume": "first"}))
    first = kept(b, thread)["values"]["log"]

    replayed = RunRequest(assistant_id="asks", checkpoint={"checkpoint_id": waiting})
    with connection() as conn:
        run_id = insert_run(conn, b.deployment, replayed, thread_id=thread).run_id
    b.runner.notify([run_id])
    b.wait(run_id)
    asked = kept(b, thread)
    b.wait(b.start("asks", thread=thread, command={"resume": "second"}))

    assert "first" in first
    assert asked["status"] == "interrupted"
    assert [word for word in first if word != "first"] == [
        word for word in kept(b, thread)["values"]["log"] if word != "second"
    ]


@within(bench)
def test_a_run_for_later_is_notified_of_when_its_time_has_come(b: Bench) -> None:
    upkeep = Upkeep(b.settings)
    run_id = b.create("echo", {"text": "hi"}, after_seconds=3600)
    behind = b.create("echo", {"text": "behind"}, thread=b.row(run_id)["thread_id"])  # type: ignore[index]
    b.runner.notify([run_id])
    b.runner.notify([behind])
    upkeep.tick()
    assert (b.status(run_id), b.status(behind), b.notified) == ("pending", "pending", [])

    with connection() as conn:
        conn.execute(text("UPDATE run SET not_before = now() WHERE run_id = :id"), {"id": run_id})
    upkeep.tick()
    assert [id for _, _, id in b.notified] == [str(run_id)]
    b.wait(run_id)
    b.wait(behind)
    assert b.thread(run_id)["values"]["log"] == ["hi", "behind"]


@within(bench)
def test_a_running_run_streams_what_a_reader_asks_for_from_then_on(b: Bench) -> None:
    run_id = b.start("counts", {"n": 6, "seconds": 0.3})
    b.wait_for_event(run_id, b'"log":[0]')
    signals.widen(run_id, b.settings.worker, ["updates", "custom", "messages", "values"])
    found = names(b.wait(run_id))

    assert set(found) == {"metadata", "values", "updates", "end"}
    assert found[:3] == ["metadata", "values", "values"]
    assert found.count("values") == 7
    assert 0 < found.count("updates") < 6


@within(bench, run_timeout_seconds=1.0)
def test_a_run_past_its_deadline_keeps_what_it_had_reached(b: Bench) -> None:
    run_id = b.start("sleeps")
    found = b.wait(run_id)

    error = orjson.loads(found[-2].data)
    row, thread = b.row(run_id), b.thread(run_id)
    assert (row["status"], row["error"], error["error"]) == ("timeout", error, "TimeoutError")
    assert (thread["status"], thread["error"]) == ("error", error)
    assert thread["values"]["log"] == ["before"]
    assert kept(b, row["thread_id"])["state"]["next"] == ["sleep"]
    assert last(found)["output"] == {"__error__": error}
    with connection() as conn:
        assert backlog.next_of(conn, b.deployment.id, row["thread_id"]) is None


# Runs that exceed their token budget


WITHOUT_END = {"n": 10_000, "seconds": 0.005}


def allow(b: Bench, **budget: Any) -> None:
    with connection() as conn:
        limits.change(conn, b.deployment.id, budget)
    b.runner.services.spending.learn()


def ended(b: Bench, run_id: Any) -> tuple[str, str]:
    found = b.wait(run_id)
    row = b.row(run_id)
    assert last(found)["status"] == row["status"]
    return row["status"], (row["error"] or {}).get("error", "")


def spent() -> int:
    with connection() as conn:
        return conn.execute(text("SELECT tokens FROM spent_tokens")).scalar_one()


def tokens_of(row: Any) -> int:
    """Return the tokens that a run of the model `large` has reported, 0 before its first call."""
    reported = (row["usage"] or {}).get("large", {"input_tokens": 0, "output_tokens": 0})
    return reported["input_tokens"] + reported["output_tokens"]


@within(bench)
def test_a_loop_of_model_calls_is_stopped_when_the_run_has_used_what_it_may(b: Bench) -> None:
    allow(b, max_run_tokens=30)
    within, beyond = b.start("consumes", {"n": 10}), b.start("consumes", WITHOUT_END)

    assert ended(b, within) == ("success", "")
    assert ended(b, beyond) == ("error", "BudgetExceeded")
    row = b.row(beyond)
    assert 30 < row["usage"]["large"]["total_tokens"] < 30_000
    assert b.thread(beyond)["status"] == "error"

    allow(b, max_run_tokens=2)

    assert ended(b, b.start("consumes")) == ("error", "BudgetExceeded")


@within(bench)
def test_a_run_is_stopped_when_it_has_cost_what_it_or_its_thread_may(b: Bench) -> None:
    usage.configure_prices((("large", 1.0, 1.0),))
    try:
        allow(b, max_run_cost=Decimal("0.00003"))
        assert ended(b, b.start("consumes", WITHOUT_END)) == ("error", "BudgetExceeded")
        allow(b, max_run_cost=Decimal(0), max_thread_cost_per_day=Decimal("0.00003"))
        run_id = b.start("consumes", WITHOUT_END)
        assert ended(b, run_id) == ("error", "BudgetExceeded")
        row = b.row(run_id)
        assert (
            "The thread has used its budget of $0.00003 a day (max_thread_cost_per_day)"
            in row["error"]["message"]
        )
        tokens = tokens_of(row)
        until(lambda: spent() == tokens)
        with connection() as conn:
            counted = conn.execute(text("SELECT kind, tokens, cost FROM spent_tokens")).all()
        assert [tuple(one) for one in counted] == [("thread", tokens, Decimal(tokens) / 1_000_000)]
        assert ended(b, b.start("consumes")) == ("success", "")
        usage.configure_prices(())
        allow(b, max_run_cost=Decimal("0.00003"), max_thread_cost_per_day=Decimal(0))
        assert ended(b, b.start("consumes")) == ("success", "")
        until(lambda: "The model large has no price" in log_of(b))
    finally:
        usage.configure_prices(())


def log_of(b: Bench) -> str:
    with connection() as conn:
        return " ".join(conn.execute(text("SELECT message FROM log_line")).scalars())


@within(bench)
def test_a_case_of_a_replay_is_stopped_when_it_has_cost_what_the_replay_may(b: Bench) -> None:
    spec = {"tools": "recorded", "models": "live", "recording": {"tools": [], "models": []}, "network": True}
    usage.configure_prices((("large", 1.0, 1.0),))
    try:
        with constants(runner, UNNOTIFIED_SECONDS=600.0):  # runs are not claimed before their notification
            run_id = b.create("consumes", WITHOUT_END)
            with connection() as conn:
                replay = {"replay": {**spec, "max_cost": 30 / 1_000_000}}
                query = text(
                    "UPDATE run SET kwargs = CAST(CAST(kwargs AS jsonb) || CAST(:replay AS jsonb) AS json)"
                    " WHERE run_id = :id"
                )
                conn.execute(query, {"id": run_id, "replay": orjson.dumps(replay).decode()})
            b.notify("", f"runs.{b.settings.pool}", run_id)

            assert ended(b, run_id) == ("error", "BudgetExceeded")
            assert 30 < b.row(run_id)["usage"]["large"]["total_tokens"] < 30_000
    finally:
        usage.configure_prices(())


@within(bench)
def test_the_day_s_budget_stops_what_runs_and_what_waits_does_not_begin(b: Bench) -> None:
    with constants(runner, UNNOTIFIED_SECONDS=600.0):  # `waiting` is not claimed before its notification
        waiting = b.create("consumes")
        allow(b, max_tokens_per_day=60)
        running = [b.start("consumes", WITHOUT_END) for _ in range(3)]

        assert {ended(b, run_id) for run_id in running} == {("error", "BudgetExceeded")}
        used = sum(tokens_of(b.row(run_id)) for run_id in running)
        assert 60 < used < 3_000
        until(lambda: spent() == used)  # the last calls are counted beside the ends of their runs
        b.notify("", f"runs.{b.settings.pool}", waiting)
        assert ended(b, waiting) == ("error", "BudgetExceeded")
        assert (b.row(waiting)["usage"], spent()) == (None, used)
        with connection() as conn:
            limits.change(conn, b.deployment.id, {"max_tokens_per_day": 0})
        assert ended(b, b.start("consumes")) == ("success", "")


@within(bench)
def test_more_than_can_be_counted_uses_a_budget_up(b: Bench) -> None:
    allow(b, max_tokens_per_day=10**15 - 1)
    with connection() as conn:
        conn.execute(text("UPDATE spent_tokens SET tokens = 10 ^ 15 - 10 ^ 11"))

    assert ended(b, b.start("consumes", {"n": 2, "how": str(10**30), "seconds": 60})) == (
        "error",
        "BudgetExceeded",
    )


@within(bench)
def test_a_key_s_budget_holds_over_its_runs_alone(b: Bench) -> None:
    with connection() as conn:
        conn.execute(
            text(
                "INSERT INTO api_key (id, organization_id, name, secret_hash, max_run_tokens)"
                " VALUES ('aaaa', :organization_id, 'small', '', 2)"
            ),
            {"organization_id": b.deployment.organization_id},
        )
    b.runner.services.spending.learn()
    small, other = b.start("consumes", key="aaaa"), b.start("consumes", key="bbbb")

    assert ended(b, small) == ("error", "BudgetExceeded")
    assert ended(b, other) == ("success", "")
