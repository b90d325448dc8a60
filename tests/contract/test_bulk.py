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
from shared.runs import bulk, cancel
from shared.settings import Settings
from tests.contract.conftest import Api, Notifications
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
    assert selected(status=["error"]) == selected(graph_id="agent") == selected(assistant_id=None) == 2
    assert selected(status=["timeout"]) == selected(error="KeyError") == selected(until="2000-01-01") == 0


def test_a_revision_pins_the_new_runs(api: Api, settings: Settings) -> None:
    failed_on_threads(api, 1)
    fixed = make.revision(api.deployment.id, number=2)

    operation = begin(api, "retry", revision_id=str(fixed))
    work(settings)

    (run,) = runs_of(api, operation)
    assert one("SELECT revision_id FROM run WHERE run_id = :id", id=run["new_run_id"]) == (fixed,)


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
    ({"action": "retry", "where": {}, "rate": 0}, "rate"),
    ({"action": "retry", "where": {}, "revision_id": MISSING}, "revision_id"),
]


def test_bad_bodies_name_the_field_and_begin_nothing(api: Api) -> None:
    for body, field in BAD:
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
