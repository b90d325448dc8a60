"""The cases of replays: starting, scoring and judging them, each once."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest

import tests.support.factories as make
from shared.errors import HostDied, Unavailable
from shared.hosts import calls
from shared.hosts.pending_calls import HostCall
from shared.infra.postgres import connection, dumps
from shared.replays import cases
from shared.settings import Settings
from tests.contract.conftest import Api, ControlPlane
from tests.contract.replay_calls import (
    NO_CALLS,
    begin,
    bench_of,
    cases_of,
    claim,
    content,
    end,
    new_thread,
    past_run,
    step,
)
from tests.contract.run_calls import started
from tests.contract.statements import column, execute, scalar


def test_a_run_whose_stored_question_was_replaced_is_not_judged(
    control: ControlPlane, api: Api, replays: str, settings: Settings
) -> None:
    thread_id = new_thread(api)
    first = past_run(api, thread_id)
    [last] = column("SELECT checkpoint_id FROM checkpoint WHERE thread_id = :id", id=thread_id)
    # Its task asks again, at the same checkpoint.
    answered = started(api, thread_id, command={"resume": "yes"})
    answered.finish({"a": 1}, state=make.state(thread_id, last), spans=NO_CALLS)
    replay = begin(control, replays)
    step(settings, replay, 2)
    for run in claim(replay):
        end(run, {"a": 1})
    step(settings, replay)
    judged = {case["run_id"]: case for case in cases_of(control, replays, replay)}
    assert judged[str(answered.run.run_id)]["outcome"] == "same"
    assert judged[first]["outcome"] == "skipped"
    assert cases.ASKED_AGAIN in judged[first]["reason"]


def test_a_run_is_judged_although_a_later_run_ended_with_its_only_checkpoint(
    control: ControlPlane, api: Api, replays: str, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    thread_id = new_thread(api)
    first, second = past_run(api, thread_id), past_run(api, thread_id)
    execute("UPDATE run SET ended_at = k.created_at FROM checkpoint k WHERE k.run_id = run.run_id")
    monkeypatch.setattr(cases, "_ask", lambda *_: {"values": {"a": 1}})
    replay = begin(control, replays)
    step(settings, replay, 2)
    for run in claim(replay):
        end(run, {"a": 1})
    step(settings, replay)
    judged = {case["run_id"]: case["outcome"] for case in cases_of(control, replays, replay)}
    assert judged == {first: "same", second: "same"}


def has_scorer(replay: dict[str, Any]) -> None:
    manifest = dumps({"replay": {"score": "./evals.py:score"}})
    execute(
        "UPDATE revision SET manifest = CAST(:manifest AS json) WHERE id = :id",
        manifest=manifest, id=replay["revision_id"],
    )  # fmt: skip


def test_a_case_is_scored_again_without_others_if_its_host_was_disturbed(
    control: ControlPlane, api: Api, replays: str, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    scored: list[Any] = []

    def call(request: HostCall) -> bytes:
        value, is_alone = request.document["input"]["a"], request.document["is_alone"]
        scored.append(value)
        if value > 1 and (value > 2 or not is_alone):
            raise HostDied("exited with code 3")
        return b'{"scores": {"quality": 1}}'

    monkeypatch.setattr(calls, "call", call)
    past = {past_run(api, input={"a": value}): value for value in (1, 2, 3)}
    replay = begin(control, replays, concurrency=3)
    has_scorer(replay)
    step(settings, replay, 2)
    for run in claim(replay):
        end(run, {"a": 1})
    step(settings, replay)

    reasons = {past[case["run_id"]]: case["reason"] for case in cases_of(control, replays, replay)}
    assert reasons == {1: None, 2: None, 3: "the scorer failed: exited with code 3"}
    assert sorted(scored) == [1, 1, 2, 2, 2, 2, 3, 3]


def test_the_scorer_and_the_case_have_the_feedback_on_the_past_run(
    control: ControlPlane, api: Api, replays: str, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    scored: list[Any] = []

    def call(request: HostCall) -> bytes:
        scored.append(request.document["run"]["feedback"])
        return b'{"scores": {}}'

    monkeypatch.setattr(calls, "call", call)
    rated, _ = past_run(api), past_run(api)
    for said in ({"key": "thumbs", "score": 0}, {"key": "fix", "correction": {"a": 2}, "comment": "no"}):
        assert api.post(f"/runs/{rated}/feedback", said).status_code == 200
    replay = begin(control, replays)
    has_scorer(replay)
    step(settings, replay, 2)
    for run in claim(replay):
        end(run, {"a": 1})
    step(settings, replay)

    thumbs = {"key": "thumbs", "score": 0, "value": None, "comment": None, "correction": None}
    fix = {"key": "fix", "score": None, "value": None, "comment": "no", "correction": {"a": 2}}
    assert sorted(scored, key=len) == [[], [], [thumbs, fix], [thumbs, fix]]
    by_run = {case["run_id"]: case for case in cases_of(control, replays, replay)}
    position = by_run[rated]["position"]
    one = content(control.get(f"{replays}/{replay['id']}/cases/{position}"))
    assert one["feedback"] == by_run.pop(rated)["feedback"] == {"thumbs": 0, "fix": None}
    assert [case["feedback"] for case in by_run.values()] == [None]


def test_a_case_without_a_host_delays_no_others_and_no_bound(
    control: ControlPlane, api: Api, replays: str, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    def call(request: HostCall) -> bytes:
        if request.document["input"]["a"] == 2:
            raise Unavailable("no host")
        return b'{"scores": {}}'

    monkeypatch.setattr(calls, "call", call)
    for value in (1, 2):
        past_run(api, input={"a": value})
    replay = begin(control, replays)
    has_scorer(replay)
    step(settings, replay, 2)
    for run in claim(replay):
        end(run, {"a": 1})
    with pytest.raises(Unavailable):
        step(settings, replay)
    assert {case["outcome"] for case in cases_of(control, replays, replay)} == {"same", None}

    execute("UPDATE replay SET max_minutes = 0 WHERE id = :id", id=replay["id"])
    with pytest.raises(Unavailable):
        step(settings, replay)
    assert content(control.get(f"{replays}/{replay['id']}"))["status"] == "stopped"


def test_cases_with_large_values_are_judged_one_after_another(
    control: ControlPlane, api: Api, replays: str, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cases, "_ask", lambda *_: [])
    for _ in range(4):
        past_run(api)
    replay = begin(control, replays, concurrency=4)
    step(settings, replay, 2)
    runs = {str(run.run_id): run for run in claim(replay)}
    in_order = [runs[case["case_run_id"]] for case in cases_of(control, replays, replay)]
    for run, size in zip(in_order, (1, 1, cases.JUDGED_BYTES, cases.JUDGED_BYTES), strict=True):
        end(run, {"a": "x" * size})
    judged = []
    for _ in range(2):
        step(settings, replay)
        judged.append(content(control.get(f"{replays}/{replay['id']}"))["counts"]["changed"])
    assert judged == [3, 4]


def test_a_run_that_is_deleted_while_its_case_starts_is_skipped(
    control: ControlPlane, api: Api, replays: str, settings: Settings
) -> None:
    run_id = past_run(api)
    replay = begin(control, replays)
    step(settings, replay)
    with connection() as conn:
        found = cases.find(conn, UUID(replay["id"]))
        assert found is not None
        prepared = [cases.prepare(found, row) for row in cases.waiting(conn, found)]
    execute("DELETE FROM run WHERE run_id = :id", id=run_id)
    with connection() as conn:
        cases.start(conn, found, prepared, run_timeout_seconds=60)
    step(settings, replay)
    (case,) = cases_of(control, replays, replay)
    assert (case["outcome"], case["reason"]) == ("skipped", cases.NOT_STORED)


def test_two_processes_start_and_judge_a_case_once(
    control: ControlPlane, api: Api, replays: str, settings: Settings
) -> None:
    past_run(api)
    replay = begin(control, replays)
    step(settings, replay)
    with connection() as conn:
        found = cases.find(conn, UUID(replay["id"]))
        assert found is not None
        prepared = [cases.prepare(found, row) for row in cases.waiting(conn, found)]
    for _ in range(2):
        with connection() as conn:
            cases.start(conn, found, prepared, run_timeout_seconds=60)
    assert scalar("SELECT count(*) FROM run WHERE deployment_id = :id", id=bench_of(replay)) == 1
    assert scalar("SELECT timeout_seconds FROM run WHERE deployment_id = :id", id=bench_of(replay)) == 120
    end(claim(replay)[0], {"a": 1})
    with connection() as conn:
        judged = [cases.judge(found, row) for row in cases.ended(conn, found)]
    with connection() as busy:
        cases.record(busy, found, [])
        with connection() as conn:  # the other process is at a step: nothing is recorded
            cases.record(conn, found, judged)
            assert len(cases.ended(conn, found)) == 1
    for _ in range(2):
        with connection() as conn:
            cases.record(conn, found, judged)
            assert len(cases.ended(conn, found)) == 0
