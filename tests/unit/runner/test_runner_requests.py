"""What runs can ask for, in a whole runner: strict answers, forks, a time to start at, a limit, more to stream."""

from __future__ import annotations

from typing import Any
from uuid import UUID, uuid4

import orjson
from sqlalchemy import text

from shared.infra.postgres import connection
from shared.runs import create, eligibility, signals
from shared.runs.create import RunRequest
from shared.threads import state
from tests.support.greened import World, greened
from tests.support.runner_bench import Bench, bench, last, names
from workers.upkeep.upkeep import Upkeep


def kept(b: Bench, thread_id: UUID) -> dict[str, Any]:
    """What a thread shows, but for when it was touched."""
    columns = "status, config, values, state, interrupts, error, state_updated_at"
    with connection() as conn:
        row = conn.execute(text(f"SELECT {columns} FROM thread WHERE thread_id = :id"), {"id": thread_id})
        return dict(row.mappings().one())


@greened
def test_a_strict_answer_that_fits_nothing_fails_its_run_alone(world: World) -> None:
    with bench(world) as b:
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


@greened
def test_a_fork_begins_at_its_checkpoint_and_the_thread_goes_on_from_it(world: World) -> None:
    with bench(world) as b:
        thread = uuid4()
        b.wait(b.start("asks", thread=thread))
        with connection() as conn:
            waiting = state.newest(conn, b.deployment.id, thread).checkpoint_id
        b.wait(b.start("asks", thread=thread, command={"resume": "first"}))
        first = kept(b, thread)["values"]["log"]

        replayed = RunRequest(assistant_id="asks", checkpoint={"checkpoint_id": waiting})
        with connection() as conn:
            run_id = create.create_run(conn, b.deployment, replayed, thread_id=thread).run_id
        b.runner.notify([run_id])
        b.wait(run_id)
        asked = kept(b, thread)
        b.wait(b.start("asks", thread=thread, command={"resume": "second"}))

        assert "first" in first
        assert asked["status"] == "interrupted"
        assert [word for word in first if word != "first"] == [
            word for word in kept(b, thread)["values"]["log"] if word != "second"
        ]


@greened
def test_a_run_for_later_is_notified_of_when_its_time_has_come(world: World) -> None:
    with bench(world) as b:
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


@greened
def test_a_running_run_streams_what_a_reader_asks_for_from_then_on(world: World) -> None:
    with bench(world) as b:
        run_id = b.start("counts", {"n": 6, "seconds": 0.3})
        b.wait_for_event(run_id, b'"log":[0]')
        signals.widen(run_id, b.settings.worker, ["updates", "custom", "messages", "values"])
        found = names(b.wait(run_id))

        assert set(found) == {"metadata", "values", "updates", "end"}
        assert found[:3] == ["metadata", "values", "values"]
        assert found.count("values") == 7
        assert 0 < found.count("updates") < 6


@greened
def test_a_run_past_its_deadline_keeps_what_it_had_reached(world: World) -> None:
    with bench(world, run_timeout_seconds=1.0) as b:
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
            assert eligibility.next_of(conn, b.deployment.id, row["thread_id"]) is None
