"""Commands that list, name and change deployments and revisions."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click import unstyle

from tests.support import control_plane as fake
from tests.support.commands import deployed, json_lines, runyard
from tests.support.control_plane import REVISION, STREAM, ControlPlane, D, R, record

pytestmark = pytest.mark.usefixtures("nowhere")

COLUMNS = 80


@pytest.fixture
def narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    """A terminal of 80 columns."""
    monkeypatch.setenv("COLUMNS", str(COLUMNS))
    monkeypatch.setenv("FORCE_COLOR", "1")


def test_all_pages_are_listed(server: ControlPlane) -> None:
    def page(start: int, count: int) -> dict[str, Any]:
        return {"resources": [record(id=str(n), name=f"app-{n}") for n in range(start, start + count)]}

    server.answers = {"GET /v2/deployments": [(200, page(0, 100)), (200, page(100, 3))]}
    assert len(json.loads(runyard(server, "list", "--json").stdout)) == 103


def test_a_status_shows_what_serves(server: ControlPlane) -> None:
    rows = deployed(server, "BUILD_FAILED", "DEPLOYED", active=1)
    text = runyard(server, "status", "app").stdout
    assert "Pool        gpu" in text
    (active,) = [line for line in text.splitlines() if "serves now" in line]
    assert (rows[1]["id"] in active, active.split()[:2]) == (True, ["v1", "DEPLOYED"])
    shown = json.loads(runyard(server, "status", D, "--json").stdout)
    assert (shown["active_revision_id"], len(shown["revisions"])) == (rows[1]["id"], 2)
    assert runyard(server, "status", "App").exit_code == 0
    assert f"There is no deployment 'other' at {server.url}." in runyard(server, "status", "other").stderr
    missed = runyard(server, "status", "app--pr-1").stderr
    assert "There is no deployment 'app--pr-1'" in missed
    assert "`runyard previews app` shows its previews." in missed


@pytest.mark.parametrize(
    ("statuses", "active", "arguments", "target"),
    [
        (("BUILD_FAILED", "DEPLOYED", "SKIPPED", "DEPLOYED"), 1, [], 3),
        (("DEPLOYED", "DEPLOYED", "DEPLOYED"), 0, ["33333333"], 2),
        (("DEPLOYED", "DEPLOYED", "DEPLOYED"), 0, ["v1"], 2),
        (("DEPLOYED", "DEPLOYED", "DEPLOYED"), 0, ["V2"], 1),
    ],
)
def test_a_rollback_deploys_an_earlier_revision_again(
    server: ControlPlane, statuses: tuple[str, ...], active: int, arguments: list[str], target: int
) -> None:
    rows = deployed(server, *statuses, active=active)
    redeploy = f"POST /v2/deployments/{D}/revisions/{rows[target]['id']}/redeploy"
    server.answers[redeploy] = [(200, record())]
    server.answers[REVISION] = [(200, {"id": R, "status": "DEPLOYED"})]
    server.answers[STREAM] = [(200, fake.events(fake.status("DEPLOYED")))]

    ran = runyard(server, "rollback", "app", *arguments)

    assert ran.exit_code == 0, ran.output
    assert redeploy in server.asked


def test_a_rollback_needs_something_to_go_back_to(server: ControlPlane) -> None:
    deployed(server, "DEPLOYED", "BUILD_FAILED")
    for arguments, says in (
        ([], "no earlier DEPLOYED revision"),
        (["v99"], "no revision 'v99'"),
        (["9999"], "no revision '9999'"),
    ):
        ran = runyard(server, "rollback", "app", *arguments)
        assert (ran.exit_code, says in ran.stderr) == (1, True), f"{arguments}: {ran.stderr}"


def test_an_interrupt_is_for_what_is_on_its_way(server: ControlPlane) -> None:
    rows = deployed(server, "BUILDING", "DEPLOYED", active=1)
    interrupt = f"POST /v2/deployments/{D}/revisions/{rows[0]['id']}/interrupt"
    server.answers[interrupt] = [(200, {**rows[0], "status": "INTERRUPTED"})]
    assert "is INTERRUPTED" in runyard(server, "interrupt", "app").stdout
    assert "v1 has ended: it is DEPLOYED" in runyard(server, "interrupt", "app", "v1").stderr


def test_a_delete_asks_where_somebody_can_answer_and_a_script_deletes_what_may_be_gone(
    server: ControlPlane,
) -> None:
    deployed(server, "DEPLOYED")
    refused = runyard(server, "delete", D)
    assert refused.exit_code == 1
    assert "--yes" in refused.stderr
    assert f"DELETE /v2/deployments/{D}" not in server.asked
    assert "Deleted app" in runyard(server, "delete", D, "--yes").stdout

    server.asked.clear()
    gone = runyard(server, "delete", D[-8:], "--force", "--if-exists", "--json")
    assert json.loads(gone.stdout) == {"id": None, "name": D[-8:], "deleted": False}
    assert f"DELETE /v2/deployments/{D}" not in server.asked

    there = runyard(server, "delete", "app", "--force", "--if-exists", "--json")
    assert json.loads(there.stdout) == {"id": D, "name": "app", "deleted": True}
    assert f"DELETE /v2/deployments/{D}" in server.asked


@pytest.mark.usefixtures("narrow")
@pytest.mark.parametrize("command", [["list"], ["status", "app"], ["revisions", "app"]])
def test_80_columns_are_enough(server: ControlPlane, command: list[str]) -> None:
    rows = deployed(server, "BUILD_FAILED", "DEPLOYED", active=1)
    told = unstyle(runyard(server, *command).stdout)
    assert max(map(len, told.splitlines())) <= COLUMNS
    for id in [D] if command == ["list"] else [row["id"] for row in rows]:
        (line,) = [line for line in told.splitlines() if id[-8:] in line.split()]
        assert id not in line
        wide = [
            line for line in unstyle(runyard(server, *command, "--wide").stdout).splitlines() if id in line
        ]
        assert len(wide) == 1, "whole, and on one line"


def test_a_list_says_what_serves_and_what_became_of_the_newest(server: ControlPlane) -> None:
    for statuses, active, says in (
        (["BUILD_FAILED"], None, "v1 BUILD_FAILED"),
        (["BUILDING", "BUILD_FAILED"], None, "v2 BUILDING"),
        (["DEPLOYED"], 0, "serving v1"),
        (["BUILDING", "DEPLOYED"], 1, "serving v1, v2 BUILDING"),
    ):
        deployed(server, *statuses, active=active)
        (_, line) = runyard(server, "list").stdout.splitlines()
        assert line.removeprefix("app").strip().split("  ")[0] == says, statuses


def test_a_version_alone_is_one_of_the_deployment_of_this_directory(
    server: ControlPlane, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(project)
    rows = deployed(server, "DEPLOYED", "DEPLOYED")
    (found,) = server.answers["GET /v2/deployments"][0][1]["resources"]
    server.answers["GET /v2/deployments"] = [(200, {"resources": [{**found, "name": "my-app"}]})]
    redeploy = f"POST /v2/deployments/{D}/revisions/{rows[1]['id']}/redeploy"
    server.answers[redeploy] = [(200, record())]
    assert runyard(server, "rollback", "v1", "--no-wait").exit_code == 0
    assert redeploy in server.asked


def test_a_part_of_a_deployment_s_id_names_it_unless_it_names_two(server: ControlPlane) -> None:
    deployed(server, "DEPLOYED")
    assert runyard(server, "status", D[-8:]).exit_code == 0
    found: Any = server.answers["GET /v2/deployments"][0][1]["resources"][0]
    server.answers["GET /v2/deployments"] = [(200, {"resources": [found, {**found, "name": "b"}]})]
    ran = runyard(server, "delete", D[-8:], "--force")
    assert (ran.exit_code, "2 deployments match" in ran.stderr) == (2, True)


def test_logs_are_of_a_version(server: ControlPlane) -> None:
    rows = deployed(server, "DEPLOYED", "BUILD_FAILED")
    logs = f"POST /v1/projects/{D}/revisions/{rows[1]['id']}/build_logs"
    server.answers[logs] = [(200, {"logs": [fake.line(1, "boom")], "next_offset": None})]
    ran = runyard(server, "logs", "app", "--type", "build", "--revision", "v1", "--json")
    assert [line["message"] for line in json_lines(ran)] == ["boom"]
