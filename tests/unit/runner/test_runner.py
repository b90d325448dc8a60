"""A runner end to end: runs that finish, and runs that are cancelled."""

from __future__ import annotations

import re
from unittest.mock import patch
from uuid import UUID, uuid4

import gevent
import orjson
import pytest
from sqlalchemy import insert, text
from uuid_utils.compat import uuid7

from shared.infra import redis
from shared.infra.postgres import connection, dumps
from shared.models import REPLAY, REPLAY_CASE
from shared.runs import retry
from shared.runs.drafts import RunRequest
from shared.threads import records
from tests.support import factories
from tests.support.creating import insert_run
from tests.support.greened import World, greened, within
from tests.support.runner_bench import Bench, bench, last, names
from tests.support.waiting import until
from workers.runner import deployment_log, host_requests
from workers.runner.quarantine import ORDINARY
from workers.runner.quarantine import REPLAY as REPLAY_KIND


@within(bench)
def test_runs_succeed_with_an_answer_a_question_their_tokens_and_without_a_row_when_temporary(
    b: Bench,
) -> None:
    run_id = b.start("echo", {"text": "hi"})
    found = b.wait(run_id)

    assert names(found)[0] == "metadata"
    assert [event.seq for event in found] == list(range(1, len(found) + 1))
    assert last(found)["status"] == "success"
    assert last(found)["output"]["log"] == ["hi"]
    assert b.status(run_id) == "success"
    thread = b.thread(run_id)
    assert (thread["status"], thread["values"]["log"]) == ("idle", ["hi"])

    run_id = b.start("asks")
    b.wait(run_id)

    assert b.status(run_id) == "success"
    thread = b.thread(run_id)
    assert thread["status"] == "interrupted"
    assert thread["interrupts"]

    run_id = b.start("consumes")
    b.wait(run_id)

    row = b.row(run_id)
    assert row["usage"] == {"large": {"input_tokens": 1, "output_tokens": 2, "total_tokens": 3}}

    run_id = b.start("echo", {"text": "hi"}, stateless=True)

    assert last(b.wait(run_id))["output"]["log"] == ["hi"]
    assert not b.row(run_id)


@within(bench)
def test_a_graph_that_raises_is_an_error_and_not_tried_again(b: Bench) -> None:
    run_id = b.start("fails")
    found = b.wait(run_id)

    row = b.row(run_id)
    assert (row["status"], row["attempt"], row["error"]["error"]) == ("error", 1, "ValueError")
    assert "error" in names(found)
    assert b.thread(run_id)["status"] == "error"


@greened
def test_a_run_whose_lookup_fails_ends(world: World) -> None:
    def fail(*_: object, **__: object) -> None:
        raise KeyError("namespace")

    with bench(world) as b, pytest.MonkeyPatch.context() as patch:
        patch.setattr(host_requests, "answer_run", fail)
        run_id = b.start("remembers", {"text": "x"})
        b.wait(run_id)

        row = b.row(run_id)
        assert (row["status"], row["error"]["error"]) == ("error", "RunyardError")
        assert row["error"]["message"] == "a lookup of the graph failed: 'namespace'"


@within(bench)
def test_a_replay_reads_the_store_of_its_revision_s_deployment_and_writes_nothing(b: Bench) -> None:
    original, case = b.create("remembers", {"text": "x"}), uuid7()
    b.runner.notify([original])
    b.wait(original)
    hidden = factories.deployment(name="hidden")
    run_id = b.create("agent", {"text": "x"}, deployment=hidden)
    with connection() as conn:
        replayed = {"replay": {"tools": "recorded", "models": "live"}}
        values = {"id": run_id, "replayed": dumps(replayed), "revision_id": b.row(original)["revision_id"]}
        conn.execute(
            text(
                "UPDATE run SET kwargs = CAST(CAST(kwargs AS jsonb) || CAST(:replayed AS jsonb) AS json), revision_id = :revision_id, graph_id = 'remembers' WHERE run_id = :id"
            ),
            values,
        )
        replay = {
            "id": case,
            "deployment_id": b.deployment.id,
            "bench_id": hidden.id,
            "revision_id": uuid7(),
            "sample": 1,
            "seed": 1,
        }
        rules = {"tools": "recorded", "live_tools": [], "models": "live", "network": False, "concurrency": 1}
        conn.execute(insert(REPLAY).values(**replay, **rules, criteria={}))
        conn.execute(
            insert(REPLAY_CASE).values(
                replay_id=case, position=0, run_id=original, thread_id=uuid7(), case_run_id=run_id
            )
        )
    b.runner.notify([run_id])
    found = b.wait(run_id)

    assert last(found)["output"]["log"] == [2, ["x"], 2]
    with connection() as conn:
        stored = conn.execute(text("SELECT deployment_id, value FROM store_item")).all()
        report = conn.execute(text("SELECT report FROM replay_case")).scalar_one()
    assert [(row.deployment_id, row.value) for row in stored] == [(b.deployment.id, {"n": 1})]
    assert report == {"unrecorded": [], "live": [], "network": [], "models_recorded": 0, "models_live": 0}
    assert {host.group.kind for host in b.runner.hosts.all()} == {ORDINARY, REPLAY_KIND}


@within(bench)
def test_each_end_of_a_run_is_a_line_of_the_deployment_s_log(b: Bench) -> None:
    good, bad = b.start("echo"), b.start("fails")
    stopped, undone = b.start("sleeps", stream_mode=["custom"]), b.start("sleeps", stream_mode=["custom"])
    for run_id, action in ((stopped, "interrupt"), (undone, "rollback")):
        b.wait_for_event(run_id, b"asleep")
        b.cancel(run_id, action)
    for run_id in (good, bad, stopped, undone):
        b.wait(run_id)

    def said() -> dict[UUID, tuple[str, str]] | None:
        with connection() as conn:
            rows = conn.execute(text("SELECT run_id, level, message FROM log_line")).all()
        return {row.run_id: (row.level, row.message) for row in rows} if len(rows) == 4 else None

    lines = until(said)
    for run_id, graph, status in (
        (good, "echo", "success"),
        (bad, "fails", "error"),
        (stopped, "sleeps", "interrupted"),
        (undone, "sleeps", "rolled back"),
    ):
        level, message = lines[run_id]
        assert level == "INFO"
        assert re.fullmatch(rf"run {run_id} of '{graph}': {status} after \d+\.\d\d s, attempt 1", message)


@greened
def test_what_a_run_has_logged_is_stored_before_its_end_event(world: World) -> None:
    with patch.object(deployment_log, "PAUSE_SECONDS", 60.0), bench(world) as b:
        for action in ("success", "rollback"):
            run_id = b.create("sleeps" if action == "rollback" else "echo", stream_mode=["custom"])
            write = b.deploy_log.of(b.deployment.id, b.deployment.active_revision_id, [])  # type: ignore[arg-type]
            for n in range(3):
                write("INFO", f"line {n}", run_id)
            gevent.spawn(b.runner.notify, [run_id])
            if action == "rollback":
                b.wait_for_event(run_id, b"asleep")
                b.cancel(run_id, action)

            b.wait(run_id)

            with connection() as conn:
                query = text("SELECT message FROM log_line WHERE run_id = :id ORDER BY at")
                messages = conn.execute(query, {"id": run_id}).scalars().all()
            assert messages[:3] == ["line 0", "line 1", "line 2"]


@within(bench)
def test_a_run_with_more_events_than_were_reserved_reaches_its_end(b: Bench) -> None:
    kept = b.start("writes", {"n": 1300}, stream_mode=["custom"])
    gone = b.start("writes", {"n": 1300}, stream_mode=["custom"], stateless=True)

    for run_id in (kept, gone):
        found = b.wait(run_id)
        assert names(found).count("custom") == 1300
        assert [event.seq for event in found] == list(range(1, len(found) + 1))
    row = b.row(kept)
    assert row["seq_reserved"] == len(b.wait(kept)), "the number of the end"


@within(bench)
def test_events_wait_while_redis_has_forgotten_them(b: Bench) -> None:
    run_id = b.start("writes", {"n": 40, "seconds": 0.02}, stream_mode=["custom"])
    b.wait_for_event(run_id, b'{"i":10}')
    redis.client().flushall()
    found = b.wait(run_id)

    assert [event.seq for event in found] == list(range(1, len(found) + 1))
    assert names(found).count("custom") == 40


@within(bench, lease_seconds=3.0)
def test_a_cancel_whose_notification_was_lost_is_seen_at_the_next_renewal(b: Bench) -> None:
    run_id = b.start_asleep()
    b.cancel(run_id, "interrupt", tell=False)
    b.wait(run_id)

    assert b.status(run_id) == "interrupted"
    thread = b.thread(run_id)
    assert (thread["status"], thread["values"]["log"]) == ("interrupted", ["before"])


@within(bench)
def test_a_run_rolled_back_leaves_the_thread_as_it_was(b: Bench) -> None:
    thread_id = uuid4()
    b.wait(b.start("echo", {"text": "kept"}, thread=thread_id))
    run_id = b.start_asleep(thread=thread_id)
    b.cancel(run_id, "rollback")
    found = b.wait(run_id)

    assert last(found)["status"] == "rollback"
    assert last(found)["output"]["log"] == ["kept", "before"], "for whoever waits for it"
    assert not b.row(run_id)
    with connection() as conn:
        thread = records.get(conn, b.deployment.id, thread_id)
        foreign = conn.execute(text("SELECT count(*) FROM checkpoint WHERE run_id = :id"), {"id": run_id})
        assert foreign.scalar_one() == 0
    assert thread["status"] == "idle"
    assert thread["values"]["log"] == ["kept"]


@within(bench)
def test_a_stopped_run_goes_on_from_its_last_checkpoint_when_run_again(b: Bench) -> None:
    asked = {"n": 6, "seconds": 0.2}
    run_id = b.start("counts", asked, stream_mode=["custom"], durability="sync")
    b.wait_for_event(run_id, b'"step":3')
    b.cancel(run_id, "interrupt")
    b.wait(run_id)
    stopped = b.thread(run_id)

    with connection() as conn:
        thread_id = stopped["thread_id"]
        failed = RunRequest(assistant_id="", thread_id=thread_id, rule=retry.RetryRun(run_id))
        again = insert_run(conn, b.deployment, failed, thread_id=thread_id).run_id
    b.runner.notify([again])
    found = b.wait(again)

    steps = list(range(6))
    done = len(stopped["values"]["log"])
    assert 3 <= done < 6
    assert stopped["values"]["log"] == steps[:done]
    assert b.thread(again)["values"]["log"] == steps
    assert [orjson.loads(event.data)["step"] for event in found if event.name == "custom"] == steps[done:]
