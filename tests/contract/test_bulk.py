"""Bulk operations: runs are selected by a search, then retried or cancelled once each, and every outcome is recorded."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any
from urllib.parse import urlencode
from uuid import UUID

import pytest

import tests.support.factories as make
from shared.infra.postgres import connection
from shared.runs import bulk, cancel, creation
from shared.settings import Settings
from tests.contract.conftest import Api, Notifications, Users
from tests.contract.run_calls import MISSING, ended, start, started, status_of
from tests.contract.statements import execute, one
from workers.upkeep import bulk_operations
from workers.upkeep.bulk_operations import BulkOperations

FAST = 100


def begin(api: Api, action: str, where: Mapping[str, Any] | None = None, **fields: Any) -> dict[str, Any]:
    response = api.post("/runs/bulk", {"action": action, "where": where or {}, "rate": FAST, **fields})
    assert response.status_code == 201, response.text
    return response.json


def work(settings: Settings) -> None:
    """Work through all open operations, as upkeep does."""
    operations = BulkOperations(settings)
    operations.begin()
    operations.join()


def runs_of(api: Api, operation: Mapping[str, Any], **query: Any) -> list[dict[str, Any]]:
    return api.get(f"/runs/bulk/{operation['id']}/runs?{urlencode(query)}").json["resources"]


def failed_on_threads(api: Api, count: int) -> list[tuple[str, str]]:
    threads = [api.post("/threads").json["thread_id"] for _ in range(count)]
    return [(thread_id, ended(api, thread_id)) for thread_id in threads]


def test_failed_runs_are_retried_once_and_the_new_runs_recorded(
    api: Api, settings: Settings, notifications: Notifications
) -> None:
    failed = failed_on_threads(api, 3)
    succeeded = api.post("/threads").json["thread_id"]
    ended(api, succeeded, status="success")
    notifications.heard.clear()

    operation = begin(api, "retry")
    assert (operation["status"], operation["total"], operation["waiting"]) == ("running", 3, 3)
    for _ in range(2):
        work(settings)

    operation = api.get(f"/runs/bulk/{operation['id']}").json
    assert (operation["status"], operation["done"], operation["waiting"]) == ("done", 3, 0)
    handled = runs_of(api, operation)
    assert [(run["thread_id"], run["run_id"], run["outcome"]) for run in handled] == [
        (thread_id, run_id, "done") for thread_id, run_id in failed
    ]
    for run in handled:
        new = api.get(f"/threads/{run['thread_id']}/runs/{run['new_run_id']}").json
        assert (new["status"], new["metadata"]["retry_of"]) == ("pending", run["run_id"])
    assert {id for _, id in notifications.heard} == {run["new_run_id"] for run in handled}
    assert one("SELECT count(*) FROM run") == (7,)


def test_live_runs_are_cancelled_and_ended_ones_skipped_with_the_reason(api: Api, settings: Settings) -> None:
    waiting = start(api, api.post("/threads").json["thread_id"])
    over = start(api, api.post("/threads").json["thread_id"])
    running = started(api, api.post("/threads").json["thread_id"])

    operation = begin(api, "cancel")
    with connection() as conn:
        cancel.cancel_run(conn, api.deployment.id, UUID(over["thread_id"]), UUID(over["run_id"]))
    work(settings)

    outcomes = {run["run_id"]: (run["outcome"], run["detail"]) for run in runs_of(api, operation)}
    assert outcomes == {
        waiting["run_id"]: ("done", None),
        over["run_id"]: ("skipped", "No matching runs to cancel. They may have finished already."),
        str(running.run.run_id): ("done", None),
    }
    assert status_of(api, waiting) == "interrupted"
    assert one("SELECT cancel_requested FROM run WHERE run_id = :id", id=running.run.run_id) == ("interrupt",)
    assert [run["outcome"] for run in runs_of(api, operation, outcome="skipped")] == ["skipped"]


def test_a_dry_run_counts_and_changes_nothing(api: Api, settings: Settings) -> None:
    failed_on_threads(api, bulk.EXAMPLES + 1)

    response = api.post("/runs/bulk", {"action": "retry", "where": {"error": "ValueError"}, "dry_run": True})

    assert response.status_code == 200
    assert (response.json["count"], response.json["is_more"]) == (bulk.EXAMPLES + 1, False)
    assert len(response.json["examples"]) == bulk.EXAMPLES
    assert api.get("/runs/bulk").json["resources"] == []


def test_the_filters_of_a_search_select_the_runs(api: Api, settings: Settings) -> None:
    (thread_id, run_id), _ = failed_on_threads(api, 2)
    execute("UPDATE run SET metadata = '{\"a\": 1}' WHERE run_id = :id", id=run_id)

    def selected(**where: Any) -> int:
        return api.post("/runs/bulk", {"action": "retry", "where": where, "dry_run": True}).json["count"]

    assert selected(thread_id=thread_id) == selected(metadata={"a": 1}) == 1
    assert selected(status=["error"]) == selected(graph_id="agent") == selected(metadata={}) == 2
    assert selected(status=["timeout"]) == selected(error="KeyError") == selected(until="2000-01-01") == 0


def test_runs_of_mcp_calls_are_cancelled_by_a_filter_but_retried_only_by_their_thread(api: Api) -> None:
    (of_call, _), (ordinary, _) = failed_on_threads(api, 2)
    start(api, of_call)
    execute("UPDATE thread SET is_listed = false WHERE thread_id = :id", id=of_call)

    def selected(action: str, **where: Any) -> list[str]:
        body = {"action": action, "where": where, "dry_run": True}
        return [run["thread_id"] for run in api.post("/runs/bulk", body).json["examples"]]

    assert selected("retry") == [ordinary]
    assert selected("retry", thread_id=of_call) == selected("cancel") == [of_call]


def test_a_revision_pins_the_new_runs(api: Api, settings: Settings) -> None:
    failed_on_threads(api, 1)
    fixed = make.revision(api.deployment.id, number=2)

    operation = begin(api, "retry", revision_id=str(fixed))
    work(settings)

    (run,) = runs_of(api, operation)
    assert one("SELECT revision_id FROM run WHERE run_id = :id", id=run["new_run_id"]) == (fixed,)


def test_at_the_address_of_a_preview_the_new_runs_use_its_revision(api: Api, settings: Settings) -> None:
    failed_on_threads(api, 1)
    revision_id = make.revision(api.deployment.id, number=2)
    make.preview(api.deployment.id, revision_id, "pr-1")
    body = {"action": "retry", "where": {}}

    operation: Any = api.client.post(f"/d/{api.deployment.name}--pr-1/runs/bulk", json=body).json

    assert operation["revision_id"] == str(revision_id)


def test_what_is_deleted_or_changed_meanwhile_is_skipped_with_the_reason(
    api: Api, settings: Settings
) -> None:
    (gone, _), (emptied, run_id), (moved, _), (pinned, _) = failed_on_threads(api, 4)
    removed = make.revision(api.deployment.id, number=2)
    on_revision = begin(api, "retry", {"thread_id": pinned}, revision_id=str(removed))
    operations = [begin(api, "retry") for _ in range(2)]  # of the same runs
    api.delete(f"/threads/{gone}")
    api.delete(f"/threads/{emptied}/runs/{run_id}")
    start(api, moved)
    execute("DELETE FROM revision WHERE id = :id", id=removed)

    work(settings)

    (skipped,) = runs_of(api, on_revision)
    assert (skipped["outcome"], skipped["detail"]) == ("skipped", "the deployment has no such revision")
    handled = [run for operation in operations for run in runs_of(api, operation)]
    details = {(run["thread_id"], run["detail"]) for run in handled}
    assert {(gone, "The run is deleted."), (emptied, "The run is deleted.")} <= details
    assert [run["thread_id"] for run in handled if run["outcome"] == "done"] == [pinned]
    assert [run["outcome"] for run in handled].count("skipped") == 7


def test_an_operation_waits_while_the_deployment_has_too_many_pending_runs(
    api: Api, settings: Settings
) -> None:
    failed_on_threads(api, 1)
    thread: Any = api.post("/threads").json
    start(api, thread["thread_id"])
    operation = begin(api, "retry")
    creation.pending_runs.clear()

    work(replace(settings, max_pending_per_deployment=1))
    assert [run["outcome"] for run in runs_of(api, operation)] == [None]
    work(settings)
    assert [run["outcome"] for run in runs_of(api, operation)] == ["done"]


def test_deployments_and_their_operations_take_turns(
    api: Api, neighbour: Api, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    for of in (api, neighbour):
        failed_on_threads(of, 1)
    slow = [begin(api, "retry") for _ in range(3)]
    late = begin(neighbour, "retry")
    monkeypatch.setattr(bulk_operations, "OPERATIONS_AT_ONCE", 1)
    monkeypatch.setattr(bulk_operations, "TURN_SECONDS", 0.01)
    operations = BulkOperations(settings)

    def handled_in_turn() -> list[str]:
        execute("UPDATE bulk_run SET outcome = NULL")
        operations.begin()
        operations.join()
        return [str(id) for (id,) in execute("SELECT operation_id FROM bulk_run WHERE outcome IS NOT NULL")]

    turns = [handled_in_turn() for _ in range(6)]

    first, second, third = ([operation["id"]] for operation in slow)
    assert turns == [first, [late["id"]], second, [late["id"]], third, [late["id"]]]


def test_few_operations_of_a_deployment_are_open(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bulk, "MOST_OPEN", 1)
    operation = begin(api, "retry")

    refused: Any = api.post("/runs/bulk", {"action": "retry", "where": {}})
    api.post(f"/runs/bulk/{operation['id']}/cancel")

    assert (refused.status_code, "not complete" in refused.json["detail"]) == (409, True)
    begin(api, "retry")


@pytest.mark.usefixtures("control")
def test_a_repeated_request_starts_one_operation(api: Api) -> None:
    failed_on_threads(api, 1)
    body = {"action": "retry", "where": {}}

    answers = [api.post("/runs/bulk", body, headers={"Idempotency-Key": "the-same"}) for _ in range(2)]

    assert [answer.status_code for answer in answers] == [201, 201]
    assert answers[0].json == answers[1].json
    assert [row["id"] for row in api.get("/runs/bulk").json["resources"]] == [answers[0].json["id"]]


def test_the_filter_of_a_handler_also_bounds_an_operation(users: Users) -> None:
    for owner in ("a", "b"):
        ended(users.ann, users.ann.post("/threads", {"metadata": {"owner": owner}}).json["thread_id"])
    users.played.on(lambda ctx, value: {"owner": "a"}, "threads", "search")
    body = {"action": "retry", "where": {}, "dry_run": True}

    assert users.ann.post("/runs/bulk", body).status_code == 403
    studio = {"x-auth-scheme": "langsmith"}
    assert users.owner.post("/runs/bulk", body, headers=studio).json["count"] == 1


def test_old_operations_are_removed_with_their_runs_a_few_at_a_time(
    api: Api, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    failed_on_threads(api, 3)
    begin(api, "retry")
    begin(api, "retry")
    work(settings)
    monkeypatch.setattr(bulk, "REMOVED_AT_ONCE", 2)

    removed = []
    while not removed or removed[-1]:
        with connection() as conn:
            removed.append(bulk.remove_old(conn, days=0))

    assert removed == [2, 1, 1, 2, 1, 1, 0]
    assert one("SELECT (SELECT count(*) FROM bulk_run), (SELECT count(*) FROM bulk_operation)") == (0, 0)


def test_a_stopped_operation_handles_no_further_run(api: Api, settings: Settings) -> None:
    failed_on_threads(api, 2)
    operation = begin(api, "retry")

    stopped = api.post(f"/runs/bulk/{operation['id']}/cancel").json
    work(settings)

    assert (stopped["status"], stopped["waiting"]) == ("cancelled", 2)
    assert [run["outcome"] for run in runs_of(api, operation)] == [None, None]
    assert one("SELECT count(*) FROM run") == (2,)


def test_an_unexpected_error_is_recorded_and_the_next_run_handled(
    api: Api, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    failed_on_threads(api, 2)
    operation = begin(api, "retry")
    handle = bulk.handle

    def fail_first(operation_id: Any, row: Any, settings: Settings) -> None:
        if row["position"] == 1:
            raise KeyError("defect")
        handle(operation_id, row, settings)

    monkeypatch.setattr(bulk_operations.bulk, "handle", fail_first)
    work(settings)

    first, second = runs_of(api, operation)
    assert (first["outcome"], second["outcome"]) == ("failed", "done")
    assert "internal error" in first["detail"]


def test_two_leaders_handle_each_run_once(api: Api, settings: Settings) -> None:
    failed_on_threads(api, 4)
    operation = begin(api, "retry")

    leaders = [BulkOperations(replace(settings)) for _ in range(2)]
    for leader in leaders:
        leader.begin()
    for leader in leaders:
        leader.join()

    assert {run["outcome"] for run in runs_of(api, operation)} == {"done"}
    assert one("SELECT count(*) FROM run") == (8,)


BAD: list[tuple[dict[str, Any], str]] = [
    ({"where": {}}, "action"),
    ({"action": "retry"}, "where"),
    ({"action": "delete", "where": {}}, "action"),
    ({"action": "retry", "where": {"stat": "error"}}, "where.stat"),
    ({"action": "retry", "where": {"status": ["success"]}}, "where.status"),
    ({"action": "cancel", "where": {"status": ["error"]}}, "where.status"),
    ({"action": "retry", "where": {"status": []}}, "where.status"),
    ({"action": "cancel", "where": {"thread_id": None}}, "where.thread_id"),
    ({"action": "retry", "where": {}, "dryrun": True}, "dryrun"),
    ({"action": "cancel", "where": {}, "revision_id": MISSING}, "revision_id"),
    ({"action": "cancel", "where": {}, "force": True}, "force"),
    *(({"action": "retry", "where": {}, "rate": rate}, "rate") for rate in (0, -1, 1e9, "5", None, True)),
    ({"action": "retry", "where": {}, "revision_id": MISSING}, "revision_id"),
]


def test_bad_bodies_name_the_field_and_begin_nothing(api: Api, neighbour: Api) -> None:
    of_neighbour = str(neighbour.deployment.active_revision_id)
    foreign = {"action": "retry", "where": {}, "revision_id": of_neighbour}
    for body, field in [*BAD, (foreign, "revision_id")]:
        response = api.post("/runs/bulk", body)
        assert response.status_code == 422, body
        assert response.json["detail"].startswith(field + ":"), response.json
    assert api.get("/runs/bulk").json["resources"] == []


def test_too_many_runs_are_refused(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    failed_on_threads(api, 2)
    monkeypatch.setattr(bulk, "MOST_RUNS", 1)

    response = api.post("/runs/bulk", {"action": "retry", "where": {}})

    assert (response.status_code, response.json["detail"][:6]) == (422, "where:")
    assert api.get("/runs/bulk").json["resources"] == []
    assert api.post("/runs/bulk", {"action": "retry", "where": {}, "dry_run": True}).json["is_more"]
