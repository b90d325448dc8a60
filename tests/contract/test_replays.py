"""Replays: past runs are selected by their filters and a seed, and executed at a hidden deployment."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

import pytest

import tests.support.factories as make
from shared.figures import budgets
from shared.infra.postgres import connection, dumps
from shared.models import RunStatus
from shared.removal import deletion
from shared.replays import cases, records
from shared.settings import Settings
from tests.contract.conftest import Api, ControlPlane
from tests.contract.replay_calls import (
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
from tests.contract.run_calls import start
from tests.contract.statements import column, execute, one, scalar

FILTERS = (
    "since",
    "until",
    "assistant_id",
    "assistant",
    "graph_id",
    "status",
    "metadata",
    "key_id",
    "run_ids",
)


def selected(control: ControlPlane, replays: str, settings: Settings, **body: Any) -> list[str]:
    """Return the past runs that a new replay selects, in order."""
    replay = begin(control, replays, **body)
    step(settings, replay)
    return [case["run_id"] for case in cases_of(control, replays, replay, limit=100)]


def test_cases_run_at_the_bench_and_are_compared(
    control: ControlPlane, api: Api, replays: str, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cases, "_ask", lambda *_: [])  # no host knows which node wrote a difference
    first, second = past_run(api), past_run(api)
    replay = begin(control, replays, fail_on="changed>0", concurrency=2)
    assert (replay["status"], replay["counts"]["total"], replay["summary"]) == ("preparing", 0, None)
    step(settings, replay, 2)
    assert content(control.get(f"{replays}/{replay['id']}"))["counts"]["waiting"] == 2
    for run in claim(replay):
        assert run.deployment_id == bench_of(replay)
        assert run.is_replay
        assert run.kwargs["replay"]["recording"] == {"tools": [], "models": []}
        assert run.kwargs["config"]["configurable"]["run_id"] == str(run.run_id)
        original = one("SELECT run_id FROM replay_case WHERE case_run_id = :id", id=run.run_id)[0]
        end(run, {"a": 1} if str(original) == first else {"a": 2})
    step(settings, replay)
    done = content(control.get(f"{replays}/{replay['id']}"))
    assert (done["status"], done["verdict"]) == ("done", "failed")
    assert (done["counts"]["same"], done["counts"]["changed"]) == (1, 1)
    changed = cases_of(control, replays, replay, outcome="changed")
    assert [case["run_id"] for case in changed] == [second]
    difference = {"path": "a", "original": 1, "replay": 2}
    listed, path = changed[0]["comparison"], f"{replays}/{replay['id']}/cases/"
    assert (listed["first_value"], listed["differences"]) == (difference, 1)
    assert listed.keys().isdisjoint({"values", "steps", "report"})
    found = content(control.get(f"{path}{changed[0]['position']}"))
    assert found["comparison"]["values"] == [difference]
    assert {key: found[key] for key in found if key != "comparison"} == {
        key: changed[0][key] for key in found if key != "comparison"
    }
    assert [control.get(f"{path}{number}").status_code for number in ("0", "3", "x", "9" * 30)] == [404] * 4


def test_a_case_is_no_part_of_the_trace_of_the_past_runs_caller(
    control: ControlPlane, api: Api, replays: str, settings: Settings
) -> None:
    past_run(api)
    entries = dumps({"__otel_traceparent__": "00-aa-bb-01", "__otel_tracestate__": "a=1", "tone": "plain"})
    path = "'{config,configurable}'"
    execute(
        f"UPDATE run SET kwargs = jsonb_set(kwargs::jsonb, {path}, CAST(:entries AS jsonb))", entries=entries
    )
    replay = begin(control, replays)
    step(settings, replay, 2)

    (run,) = claim(replay)
    assert run.kwargs["config"]["configurable"].keys() == {"tone", "run_id", "thread_id"}


def test_a_case_starts_from_the_checkpoint_before_its_run(
    control: ControlPlane, api: Api, replays: str, settings: Settings
) -> None:
    thread_id = new_thread(api)
    past_run(api, thread_id)
    before = one("SELECT checkpoint_id, data FROM checkpoint WHERE thread_id = :id", id=thread_id)
    run_id = past_run(api, thread_id)
    replay = begin(control, replays, where={"run_ids": [run_id]})
    step(settings, replay, 2)
    (copied,) = execute(
        "SELECT checkpoint_id, data, metadata FROM checkpoint WHERE deployment_id = :id", id=bench_of(replay)
    )
    assert (copied.checkpoint_id, bytes(copied.data)) == (before.checkpoint_id, bytes(before.data))


def test_the_seed_decides_the_order_and_the_filters_select(
    control: ControlPlane, api: Api, replays: str, settings: Settings
) -> None:
    runs = [past_run(api, metadata={"of": "a"}) for _ in range(6)]
    other = past_run(api, assistant_id="other", metadata={"of": "b"})
    for run_id, score in ((other, 0), (runs[0], 1)):
        assert api.post(f"/runs/{run_id}/feedback", {"key": "thumbs", "score": score}).status_code == 200
    make.run(api.deployment, status=RunStatus.SUCCESS)  # was never started
    make.run(api.deployment, status=RunStatus.SUCCESS, started_at="2026-01-01", depth=1)
    start(api, new_thread(api))  # has not ended
    of_call = past_run(api)  # an MCP call
    execute(
        "UPDATE thread SET is_listed = false FROM run WHERE run_id = :id AND thread.thread_id = run.thread_id",
        id=of_call,
    )
    assert selected(control, replays, settings, where={"run_ids": [of_call]}) == [of_call]
    everything = selected(control, replays, settings, seed=1)
    assert sorted(everything) == sorted([*runs, other])
    assert selected(control, replays, settings, seed=1) == everything
    assert selected(control, replays, settings, seed=1, sample=3) == everything[:3]
    assert selected(control, replays, settings, seed=2) != everything
    for where in (
        {"assistant": "other"},
        {"graph_id": "other"},
        {"metadata": {"of": "b"}},
        {"run_ids": [other]},
        {"feedback": {"key": "thumbs", "below": 0.5}},
    ):
        assert selected(control, replays, settings, where=where) == [other]
    assert selected(control, replays, settings, where={"status": ["error"]}) == []
    assert selected(control, replays, settings, where={"until": "2020-01-01T00:00:00Z"}) == []
    assert len(selected(control, replays, settings, where={"since": "2020-01-01T00:00:00Z"})) == 7


def test_runs_that_cannot_be_executed_again_are_skipped_with_the_reason(
    control: ControlPlane, api: Api, replays: str, settings: Settings
) -> None:
    thread_id = new_thread(api)
    first, second = past_run(api, thread_id), past_run(api, thread_id)
    without_input = past_run(api, input=None)
    deleted = past_run(api)
    execute("DELETE FROM checkpoint WHERE run_id = :id", id=first)
    replay = begin(control, replays)
    step(settings, replay)
    execute("DELETE FROM run WHERE run_id = :id", id=deleted)
    step(settings, replay)
    reasons = {case["run_id"]: case["reason"] for case in cases_of(control, replays, replay)}
    assert reasons == {
        first: cases.NO_VALUES,
        second: cases.NO_START,
        without_input: cases.NO_INPUT,
        deleted: cases.NOT_STORED,
    }
    done = content(control.get(f"{replays}/{replay['id']}"))
    assert (done["status"], done["counts"]["skipped"], done["verdict"]) == ("done", 4, None)


def test_an_ordinary_run_is_claimed_first_and_replays_use_part_of_the_slots(
    control: ControlPlane, api: Api, replays: str, settings: Settings
) -> None:
    for _ in range(3):
        past_run(api)
    replay = begin(control, replays, concurrency=3)
    step(settings, replay, 2)
    waiting = start(api, new_thread(api))
    assert claim(replay) == []
    execute("UPDATE deployment SET max_concurrent_runs = 1 WHERE id = :id", id=api.deployment.id)
    assert claim(replay) == []
    make.run(api.deployment, status=RunStatus.RUNNING)
    # The ordinary run cannot start: its deployment is at the limit.
    assert len(claim(replay, slots=1)) == 1
    execute("UPDATE deployment SET max_concurrent_runs = NULL WHERE id = :id", id=api.deployment.id)
    assert claim(replay) == []
    execute("UPDATE run SET status = 'success' WHERE run_id = :id", id=waiting["run_id"])
    assert claim(replay, slots=0) == []
    assert len(claim(replay)) == 2


def test_a_bound_stops_the_replay_and_its_runs(
    control: ControlPlane, api: Api, replays: str, settings: Settings
) -> None:
    for _ in range(2):
        past_run(api)
    replay = begin(control, replays, max_tokens=10)
    step(settings, replay, 2)
    end(claim(replay)[0], {"a": 1}, usage=dumps({"m": {"total_tokens": 12}}))
    step(settings, replay)
    stopped = content(control.get(f"{replays}/{replay['id']}"))
    assert (stopped["status"], stopped["reason"]) == ("stopped", "the bound max_tokens (10) is reached")
    assert (stopped["counts"]["same"], stopped["counts"]["skipped"]) == (1, 1)
    assert column(
        "SELECT cancel_requested FROM run WHERE deployment_id = :id AND status = 'running'",
        id=bench_of(replay),
    ) == ["interrupt"]


def test_the_bound_of_tokens_applies_to_each_case_while_it_runs(control: ControlPlane, replays: str) -> None:
    bounded, unbounded = begin(control, replays, max_tokens=10), begin(control, replays)
    with connection() as conn:
        known = budgets.Budgets.read(conn)
    limits = [
        known.of_run(budgets.Subject(bench_of(replay), "", uuid4(), None)) for replay in (bounded, unbounded)
    ]
    assert [[(limit.name, limit.most) for limit in of_bench] for of_bench in limits] == [
        [("max_run_tokens", 10)],
        [],
    ]


def test_a_cancelled_replay_keeps_its_results_and_starts_no_more_runs(
    control: ControlPlane, api: Api, replays: str, settings: Settings
) -> None:
    past_run(api)
    replay = begin(control, replays)
    step(settings, replay, 2)
    cancelled = content(control.post(f"{replays}/{replay['id']}/cancel"))
    assert (cancelled["status"], cancelled["counts"]["skipped"]) == ("cancelled", 1)
    assert cancelled["ended_at"] is not None
    assert content(control.post(f"{replays}/{replay['id']}/cancel")) == cancelled
    step(settings, replay)
    assert column("SELECT status FROM run WHERE deployment_id = :id", id=bench_of(replay)) == ["interrupted"]
    actions = [entry["action"] for entry in content(control.get("/v2/audit", action="replay"))["resources"]]
    assert actions == ["replay.cancelled", "replay.created"]


def test_the_bench_is_hidden_and_read_only(
    control: ControlPlane, api: Api, replays: str, settings: Settings
) -> None:
    past_run(api)
    replay = begin(control, replays)
    step(settings, replay, 2)
    bench_id = bench_of(replay)
    listed = content(control.get("/v2/deployments"))["resources"]
    assert [one["name"] for one in listed] == ["chat"]
    overview = content(control.get("/v2/metrics/overview"))["deployments"]
    assert [one["name"] for one in overview] == ["chat"]
    assert control.get(f"/v2/deployments/{bench_id}").status_code == 404
    assert control.call("DELETE", f"/v2/deployments/{bench_id}").status_code == 404
    assert control.post(f"/v2/deployments/{bench_id}/replays").status_code == 404
    assert replay["bench"].startswith("chat--replay-")
    assert replay["address"].endswith(f"/d/{replay['bench']}")
    threads = content(control.post(f"/d/{replay['bench']}/threads/search"))
    assert [thread["thread_id"] for thread in threads] == [
        str(id) for id in column("SELECT thread_id FROM thread WHERE deployment_id = :id", id=bench_id)
    ]
    for path in ("threads", "runs", "runs/crons", "store/items"):
        method = "PUT" if path == "store/items" else "POST"
        response = control.call(method, f"/d/{replay['bench']}/{path}", {"assistant_id": "agent"})
        assert response.status_code == 403, response.text


def test_its_usage_is_reported_beside_that_of_the_deployment(
    control: ControlPlane, api: Api, replays: str, settings: Settings
) -> None:
    past_run(api)
    replay = begin(control, replays)
    step(settings, replay, 2)
    end(claim(replay)[0], {"a": 1}, usage=dumps({"m": {"total_tokens": 12, "input_tokens": 12}}))
    rows = content(control.get("/v2/usage", by="key,deployment"))["usage"]
    used = {row["key_id"]: (row["deployment_id"], row["total_tokens"]) for row in rows}
    assert used["replay"] == (str(api.deployment.id), 12)
    assert sum(tokens for _, tokens in used.values()) == 12
    rows = content(control.get("/v2/usage", by="source"))["usage"]
    assert {row["source"]: row["runs"] for row in rows} == {"replay": 1, "runs": 1}
    assert content(control.get("/v2/metrics/overview"))["deployments"][0]["success"] == 1


def test_the_deployment_of_a_bench_is_found_although_its_name_is_shortened(
    control: ControlPlane, api: Api
) -> None:
    deployment = make.deployment("a" * 60, organization_id=api.deployment.organization_id)
    make.replay(deployment)
    bench = scalar("SELECT name FROM deployment WHERE replay_of = :id", id=deployment.id)
    found = content(control.get("/v2/deployments", replayed_at=bench))["resources"]
    assert [row["name"] for row in found] == [deployment.name]
    assert content(control.get("/v2/deployments", replayed_at=deployment.name))["resources"] == []


def test_a_deleted_replay_leaves_nothing(
    control: ControlPlane, api: Api, replays: str, settings: Settings
) -> None:
    past_run(api)
    replay, kept = begin(control, replays), begin(control, replays)
    step(settings, replay, 2)
    bench_id = bench_of(replay)
    assert control.call("DELETE", f"{replays}/{replay['id']}").status_code == 204
    assert control.get(f"{replays}/{replay['id']}").status_code == 404
    _purge()
    for table in ("thread", "run", "checkpoint", "log_line"):
        assert scalar(f"SELECT count(*) FROM {table} WHERE deployment_id = :id", id=bench_id) == 0
    assert scalar("SELECT count(*) FROM deployment WHERE id = :id", id=bench_id) == 0
    assert column("SELECT DISTINCT replay_id FROM replay_case") == []
    assert [one["id"] for one in content(control.get(replays))["resources"]] == [kept["id"]]


def test_the_cases_of_a_deleted_replay_are_removed_in_chunks(
    control: ControlPlane, api: Api, replays: str, settings: Settings
) -> None:
    past_run(api)
    replay = begin(control, replays)
    step(settings, replay)
    execute(
        "INSERT INTO replay_case (replay_id, position, run_id, thread_id)"
        " SELECT replay_id, n, run_id, thread_id FROM replay_case, generate_series(2, 500) AS n"
    )
    assert control.call("DELETE", f"{replays}/{replay['id']}").status_code == 204
    with connection() as conn:
        assert cases.due(conn) == []
        deletion.purge(conn)
    assert scalar("SELECT count(*) FROM replay_case") == 500 - deletion.ROWS_AT_ONCE
    _purge()
    for table in ("replay", "replay_case"):
        assert scalar(f"SELECT count(*) FROM {table}") == 0


def test_an_ended_replay_costs_nothing_in_claims_and_lists(
    control: ControlPlane, api: Api, replays: str, settings: Settings
) -> None:
    past_run(api)
    replay = begin(control, replays)
    step(settings, replay, 2)
    (run,) = claim(replay)
    assert control.post(f"{replays}/{replay['id']}/cancel").status_code == 200
    step(settings, replay)
    assert column("SELECT id FROM active_bench") == [bench_of(replay)]  # its run has not ended
    end(run, {}, RunStatus.INTERRUPTED)
    step(settings, replay)
    with connection() as conn:
        assert cases.due(conn) == []
    assert column("SELECT id FROM active_bench") == column("SELECT id FROM limited_deployment") == []
    execute("UPDATE replay_case SET outcome = 'same'")  # a list does not count cases of ended replays
    (listed,) = content(control.get(replays))["resources"]
    assert (listed["counts"]["total"], listed["counts"]["skipped"], listed["counts"]["same"]) == (1, 1, 0)


def test_the_deletion_of_the_deployment_removes_replays_and_benches(
    control: ControlPlane, api: Api, replays: str, settings: Settings
) -> None:
    past_run(api)
    replay = begin(control, replays)
    step(settings, replay, 2)
    assert control.call("DELETE", f"/v2/deployments/{api.deployment.id}").status_code == 204
    assert control.get(replays).status_code == 404
    _purge()
    for table in ("deployment", "replay", "replay_case", "run", "thread"):
        assert scalar(f"SELECT count(*) FROM {table}") == 0


def test_replays_are_kept_as_long_as_runs(control: ControlPlane, api: Api, replays: str) -> None:
    old, new, unended = (begin(control, replays) for _ in range(3))
    for replay in (old, new):
        control.post(f"{replays}/{replay['id']}/cancel")
    execute("UPDATE replay SET ended_at = now() - interval '3 days' WHERE id = :id", id=old["id"])
    with connection() as conn:
        assert records.remove_old(conn, days=2) == 1
        assert records.remove_old(conn, days=2) == 0
    kept = [one["id"] for one in content(control.get(replays))["resources"]]
    assert kept == [unended["id"], new["id"]]


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"revision": "v9"}, "revision"),
        ({"revision": "newest"}, "revision"),
        ({"preview": "unknown"}, "preview"),
        ({"sample": 0}, "sample"),
        ({"where": {"colour": "red"}}, "colour"),
        ({"where": {"status": ["pending"]}}, "status"),
        *(({"where": {name: None}}, name) for name in FILTERS),
        *(({"where": {name: []}}, name) for name in FILTERS),
        ({"where": {"metadata": {}}}, "metadata"),
        ({"where": {"key_id": ""}}, "key_id"),
        (
            {"where": {"assistant": "agent", "assistant_id": "00000000-0000-0000-0000-00000000dead"}},
            "assistant",
        ),
        ({"tools": "live"}, "tools"),
        ({"live_tools": ["search"]}, "live_tools"),
        ({"concurrency": 33}, "concurrency"),
        ({"fail_on": "speed>1"}, "fail_on"),
        ({"fail_on": "errors"}, "fail_on"),
        ({"samples": 5}, "samples"),
    ],
)
def test_a_bad_request_is_refused_with_the_field(
    control: ControlPlane, replays: str, body: dict[str, Any], field: str
) -> None:
    response = control.post(replays, body)
    assert response.status_code == 422
    assert field in content(response)["detail"][0]["loc"]


@pytest.mark.parametrize(
    ("permitted", "body", "error"),
    [
        ("live", {"tools": "live"}, None),
        ("live", {"live_tools": ["search", "send"]}, None),
        (["search"], {"live_tools": ["search"]}, None),
        (["search"], {"live_tools": ["search", "send"]}, ("live_tools", "the tool 'send' may not be")),
        (["live"], {"tools": "live"}, ("tools", "tools may not be executed")),
        ("recorded", {"live_tools": ["recorded"]}, ("live_tools", "`replay.tools` of the revision's")),
        ([], {}, None),
    ],
)
def test_only_tools_that_the_project_permits_are_executed(
    control: ControlPlane,
    api: Api,
    replays: str,
    permitted: str | list[str],
    body: dict[str, Any],
    error: tuple[str, str] | None,
) -> None:
    make.revision(api.deployment.id, number=2, manifest={"replay": {"tools": permitted}})
    response = control.post(replays, {"revision": "v2", **body})
    if error is None:
        assert response.status_code == 201, response.text
        return
    assert response.status_code == 422
    (detail,) = content(response)["detail"]
    assert (detail["loc"], error[1] in detail["msg"]) == (["body", error[0]], True)


def _purge() -> None:
    with connection() as conn:
        while deletion.purge(conn):
            pass
