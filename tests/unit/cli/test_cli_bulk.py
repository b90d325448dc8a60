"""`runyard runs retry --where`, `cancel --where`, `runs bulk` and `audit`: their requests, output and exit codes."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.support.commands import runyard
from tests.support.control_plane import ControlPlane, D, R, record

pytestmark = pytest.mark.usefixtures("nowhere")

ID = "77777777-7777-4777-8777-7777eeeeeeee"
BULK = "POST /d/app/runs/bulk"
AT = "2026-01-01T00:00:00+00:00"
RUN = {"run_id": R, "thread_id": D, "status": "error", "created_at": AT}
PREVIEW = {"count": 2, "is_more": False, "examples": [RUN]}


def operation(**more: Any) -> dict[str, Any]:
    counts = {"total": 2, "waiting": 0, "done": 1, "skipped": 1, "failed": 0}
    by = {"key_id": "aaaa", "name": "ci"}
    at = {"created_at": AT, "ended_at": AT}
    return {"id": ID, "action": "retry", "status": "done", "created_by": by, **at, **counts, **more}


@pytest.fixture
def served(server: ControlPlane, monkeypatch: pytest.MonkeyPatch) -> ControlPlane:
    monkeypatch.setattr("cli.runs.bulk.POLL_SECONDS", 0.01)
    found = record(active_revision_id=R, source_config={"custom_url": "http://elsewhere.invalid/d/app"})
    server.answers = {
        "GET /v2/deployments": [(200, {"resources": [found]})],
        BULK: [(200, PREVIEW), (201, operation(ended_at=None, waiting=2, done=0, skipped=0))],
        f"GET /d/app/runs/bulk/{ID}": [(200, operation(ended_at=None, waiting=1)), (200, operation())],
    }
    return server


def test_conditions_are_sent_as_filters_and_the_operation_is_followed(served: ControlPlane) -> None:
    where = (
        "status=error",
        "status=timeout",
        "error=KeyError",
        "graph=agent",
        "metadata.n=1",
        "metadata.s=x",
    )
    options = [word for one in where for word in ("--where", one)]

    ran = runyard(served, "runs", "retry", "app", *options, "--rate", "5", "--revision", R, "--yes")

    assert ran.exit_code == 0, ran.output
    assert "is done: 1 retried, 1 skipped, 0 failed of 2 runs" in ran.output
    sent = served.body(BULK)
    assert (sent["action"], sent["rate"], sent["revision_id"]) == ("retry", 5, R)
    assert sent["where"] == {
        "status": ["error", "timeout"],
        "error": "KeyError",
        "graph_id": "agent",
        "metadata": {"n": 1, "s": "x"},
    }


def test_a_dry_run_starts_nothing(served: ControlPlane) -> None:
    ran = runyard(served, "runs", "cancel", "app", "--where", "status=pending", "--dry-run")

    assert (ran.exit_code, served.asked.count(BULK)) == (0, 1)
    assert served.body(BULK)["dry_run"] is True
    assert "2 runs match" in ran.output
    assert R in ran.output


def test_nobody_to_ask_and_nothing_to_do_start_nothing(served: ControlPlane) -> None:
    assert runyard(served, "runs", "retry", "app", "--where", "status=error").exit_code == 1
    served.answers[BULK] = [(200, {**PREVIEW, "count": 0})]
    ran = runyard(served, "runs", "retry", "app", "--where", "status=error", "--yes")
    assert (ran.exit_code, "No run matches." in ran.output) == (0, True)
    assert served.asked.count(BULK) == 2


def test_failed_runs_of_an_operation_fail_the_command(served: ControlPlane) -> None:
    served.answers[BULK] = [(200, PREVIEW), (201, operation(failed=1))]

    ran = runyard(served, "runs", "retry", "app", "--where", "status=error", "--yes")

    assert (ran.exit_code, f"runyard runs bulk DEPLOYMENT {ID}" in ran.stderr) == (1, True)


def test_wrong_conditions_are_explained(served: ControlPlane) -> None:
    for words, says in (
        (["--where", "state=error"], "KEY is one of status"),
        (["--where", "status"], "give KEY=VALUE"),
        (["--where", "status=broken"], "a status is one of"),
        (["--where", "graph=a", "--where", "graph=b"], "given twice"),
        ([R, "--where", "status=error"], "cannot be combined with a run"),
        (["--where", "status=error", "--thread", D], "cannot be combined with --thread"),
        ([R, "--revision", R], "--revision is for --where"),
    ):
        ran = runyard(served, "runs", "retry", "app", *words)
        assert (ran.exit_code, says in " ".join(ran.stderr.split())) == (2, True), f"{words}: {ran.output}"
    assert BULK not in served.asked


def test_operations_and_their_runs_are_listed_and_stopped(served: ControlPlane) -> None:
    handled = {"run_id": R, "thread_id": D, "outcome": "skipped", "detail": "it is busy", "new_run_id": None}
    path = f"/d/app/runs/bulk/{ID}"
    served.answers |= {
        "GET /d/app/runs/bulk": [(200, {"resources": [operation()]})],
        f"GET {path}": [(200, operation())],
        f"GET {path}/runs": [(200, {"resources": [handled]})],
        f"POST {path}/cancel": [(200, operation(status="cancelled"))],
    }

    assert "retry" in runyard(served, "runs", "bulk", "app").stdout
    assert "it is busy" in runyard(served, "runs", "bulk", "app", ID).stdout
    shown = json.loads(runyard(served, "runs", "bulk", "app", ID, "--json").stdout)
    assert shown["runs"] == [handled]
    assert "is cancelled" in runyard(served, "runs", "bulk", "app", ID, "--stop").output
    assert runyard(served, "runs", "bulk", "app", "--stop").exit_code == 2


def test_the_audit_log_is_searched_and_shown(served: ControlPlane) -> None:
    entry = {
        "at": AT,
        "action": "traffic.promoted",
        "subject": "app",
        "actor": {"key_id": "aaaa", "name": "ci"},
        "address": "192.0.2.7",
        "detail": {"revision_number": 3},
    }
    served.answers["GET /v2/audit"] = [(200, {"resources": [entry, {**entry, "actor": None}]})]

    ran = runyard(served, "audit", "app", "--action", "traffic", "--by", "aaaa", "--since", "7d")

    assert ran.exit_code == 0, ran.output
    for word in ("traffic.promoted", "ci", "192.0.2.7", "revision_number=3", "the service"):
        assert word in " ".join(ran.stdout.split()), ran.stdout
    query = served.queries[served.asked.index("GET /v2/audit")]
    assert all(part in query for part in ("action=traffic", "key_id=aaaa", "deployment_id=", "since=20"))
