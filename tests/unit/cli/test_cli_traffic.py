"""`runyard traffic`, `promote`, `abort` and `previews`, and the commands that accept a preview."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support import control_plane as fake
from tests.support.commands import deployed, json_lines, runyard
from tests.support.control_plane import ControlPlane, D, R, deploy_answers, record

pytestmark = pytest.mark.usefixtures("nowhere")

PATCH = f"PATCH /v2/deployments/{D}"
PROMOTE = f"POST /v2/deployments/{D}/traffic/promote"
ABORT = f"POST /v2/deployments/{D}/traffic/abort"
PREVIEWS = f"GET /v2/deployments/{D}/previews"
ADD = f"POST /v2/deployments/{D}/revisions"


def share(row: dict[str, Any], percent: int) -> dict[str, Any]:
    return {"revision_id": row["id"], "revision_number": row["number"], "percent": percent}


@pytest.fixture
def rows(server: ControlPlane) -> list[dict[str, Any]]:
    """Revisions 3, 2 and 1. The oldest serves, and the preview shows the newest."""
    rows = deployed(server, "DEPLOYED", "DEPLOYED", "DEPLOYED", active=2)
    server.answers[PREVIEWS] = [(200, {"resources": [preview(rows[0])]})]
    return rows


def preview(row: dict[str, Any], **more: Any) -> dict[str, Any]:
    found = {"name": "pr-1", "revision_id": row["id"], "revision_number": row["number"]}
    return {**found, "url": "http://x/d/app--pr-1", "updated_at": "", "latest_revision_status": None, **more}


def split(server: ControlPlane, rows: list[dict[str, Any]], *percents: int) -> dict[str, Any]:
    """Set the traffic in the deployment's record, in percents from the oldest revision on. Returns the record."""
    (_, found) = server.answers[f"GET /v2/deployments/{D}"][0]
    shares = [share(row, percent) for row, percent in zip(rows[::-1], percents, strict=False)]
    found["traffic"] = shares
    server.answers[PATCH] = server.answers[PROMOTE] = server.answers[ABORT] = [(200, found)]
    return found


def test_what_is_left_of_a_split_goes_to_what_serves(
    server: ControlPlane, rows: list[dict[str, Any]]
) -> None:
    """The active revision gets the remaining percentage of a split."""
    split(server, rows, 70, 30)
    ran = runyard(server, "traffic", "app", "v2=20", "v3=10%", "--require-replay")
    assert (ran.exit_code, ran.stdout) == (0, "app: v1 70 %, v2 30 %\n"), ran.output
    wanted = [(rows[1], 20), (rows[0], 10), (rows[2], 70)]
    assert server.body(PATCH) == {
        "traffic": [{"revision_id": row["id"], "percent": percent} for row, percent in wanted],
        "traffic_requires_replay": True,
    }
    assert "Traffic     v1 70 %, v2 30 %" in runyard(server, "status", "app").stdout


def test_a_split_that_says_nothing_is_wrong_usage(server: ControlPlane, rows: list[dict[str, Any]]) -> None:
    for arguments, code in (
        (["v2"], 2),
        (["v2=x"], 2),
        (["v2=10", "v2=20"], 2),
        (["v9=10"], 1),
        (["--require-replay"], 2),
    ):
        assert runyard(server, "traffic", "app", *arguments).exit_code == code, arguments
    assert PATCH not in server.asked


@pytest.mark.parametrize(
    ("arguments", "target"), [([], 1), (["v3"], 0), (["v1"], 2), (["--preview", "pr-1"], 0)]
)
def test_a_revision_is_promoted(
    server: ControlPlane, rows: list[dict[str, Any]], arguments: list[str], target: int
) -> None:
    split(server, rows, 90, 10)
    ran = runyard(server, "promote", "app", *arguments, "--json")
    assert ran.exit_code == 0, ran.output
    assert server.body(PROMOTE) == {"revision_id": rows[target]["id"]}
    assert json.loads(ran.stdout)["traffic"][0]["percent"] == 90


def test_promote_asks_which_where_there_is_no_split_of_two(
    server: ControlPlane, rows: list[dict[str, Any]]
) -> None:
    split(server, rows, 100)
    assert "Name the revision" in runyard(server, "promote", "app").stderr
    assert "two things" in runyard(server, "promote", "app", "v2", "--preview", "pr-1").stderr
    assert "app has no preview 'pr-2'" in runyard(server, "promote", "app", "--preview", "pr-2").stderr
    assert PROMOTE not in server.asked
    assert runyard(server, "abort", "app").exit_code == 0
    assert ABORT in server.asked


def test_previews_are_listed_and_deleted(server: ControlPlane, rows: list[dict[str, Any]]) -> None:
    assert "http://x/d/app--pr-1" in runyard(server, "previews", "app").stdout
    assert json.loads(runyard(server, "previews", "app", "--json").stdout)[0]["name"] == "pr-1"
    delete = f"DELETE /v2/deployments/{D}/previews/pr-1"
    server.answers[delete] = [(204, None)]
    assert runyard(server, "previews", "app", "--delete", "pr-1").stdout == "Deleted pr-1.\n"
    assert delete in server.asked
    missed = runyard(server, "previews", "app", "--delete", "pr-2").stderr
    assert "app has no preview 'pr-2'. `runyard previews app` lists those there are." in missed


def test_revisions_tell_previews_that_exist_from_former_ones(
    server: ControlPlane, rows: list[dict[str, Any]]
) -> None:
    rows[0]["preview"], rows[1]["preview"] = "pr-1", "try"
    for command in ("revisions", "status"):
        lines = runyard(server, command, "app").stdout.splitlines()
        shown = [" ".join(line.split()) for line in lines if line.startswith("v")]
        for text, note in zip(shown, ("preview pr-1", "was preview try", "serves now"), strict=True):
            assert text.endswith(note), lines
        assert "was" not in shown[0]


def test_a_script_may_delete_a_preview_that_is_not_there(
    server: ControlPlane, rows: list[dict[str, Any]]
) -> None:
    for name, preview in (("app", "pr-2"), ("elsewhere", "pr-1")):
        ran = runyard(server, "previews", name, "--delete", preview, "--if-exists", "--json")
        assert (ran.exit_code, json.loads(ran.stdout)) == (0, {"preview": preview, "deleted": False})
    assert not [call for call in server.asked if call.startswith("DELETE")]
    assert runyard(server, "previews", "app", "--delete", "pr-1", "--if-exists").exit_code == 1, "a 404"
    assert runyard(server, "previews", "app", "--if-exists").exit_code == 2


def test_logs_of_a_preview_are_those_of_its_revision(
    server: ControlPlane, rows: list[dict[str, Any]]
) -> None:
    shown, newest = R, R.replace("2", "3")
    row = preview({"id": shown, "number": 4}, latest_revision_id=newest)
    for rows, kind, revision in (
        ([row], "deploy", shown),
        ([row], "build", newest),
        ([{**row, "revision_id": None}], "deploy", newest),
    ):
        server.answers[PREVIEWS] = [(200, {"resources": rows})]
        path = f"POST /v1/projects/{D}/revisions/{revision}/{kind}_logs"
        server.answers[path] = [(200, {"logs": [fake.line(1, "hello")]})]
        ran = runyard(server, "logs", "app--pr-1", "--type", kind)
        assert (ran.exit_code, "hello" in ran.stdout) == (0, True), ran.output
    assert "app has no preview 'pr-2'" in runyard(server, "logs", "app--pr-2").stderr


def test_a_preview_is_deployed_beside_what_serves(server: ControlPlane, project: Path) -> None:
    server.answers = deploy_answers(server)
    server.answers["GET /v2/deployments"] = [(200, {"resources": [record(name="my-app")]})]
    server.answers[ADD] = [(201, {"id": R, "number": 5, "preview": "pr-1"})]
    server.answers[PREVIEWS] = [(200, {"resources": [preview({"id": R, "number": 5})]})]

    ran = runyard(server, "deploy", str(project), "--preview", "pr-1", "--json")

    assert ran.exit_code == 0, ran.output
    last = json_lines(ran)[-1]
    assert (last["status"], last["url"], last["preview"]) == ("succeeded", "http://x/d/app--pr-1", "pr-1")
    assert (last["revision_id"], last["revision_number"]) == (R, 5)
    assert server.body(ADD)["preview"] == "pr-1"
    assert PATCH not in server.asked


def test_a_preview_needs_a_deployment_and_leaves_it_alone(server: ControlPlane, project: Path) -> None:
    server.answers = deploy_answers(server)
    missing = runyard(server, "deploy", str(project), "--preview", "pr-1")
    assert (missing.exit_code, "to preview" in missing.stderr) == (1, True)
    scaled = runyard(server, "deploy", str(project), "--preview", "pr-1", "--pool", "gpu")
    assert scaled.exit_code == 2
    assert "POST /v2/deployments" not in server.asked
