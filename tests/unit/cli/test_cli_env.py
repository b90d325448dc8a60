"""`runyard env` and `open`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cli.operating.browser import has_screen
from tests.support import control_plane as fake
from tests.support.commands import json_lines, runyard
from tests.support.control_plane import REVISION, STREAM, ControlPlane, D, R, record

pytestmark = pytest.mark.usefixtures("nowhere")

PATCH = f"PATCH /v2/deployments/{D}"


@pytest.fixture
def kept(server: ControlPlane) -> ControlPlane:
    """A deployment with two variables, whose next revision is built."""
    secrets = [{"name": name, "value": "********"} for name in ("B", "A")]
    found = record(secrets=secrets, tenant_id="team", source_config={"custom_url": "http://there"})
    server.answers = {
        "GET /v2/deployments": [(200, {"resources": [found]})],
        f"GET /v2/deployments/{D}": [(200, found)],
        PATCH: [(200, {**found, "latest_revision_number": 2})],
        REVISION: [(200, {"id": R, "status": "DEPLOYED"})],
        STREAM: [(200, fake.events(fake.status("DEPLOYED")))],
    }
    return server


def test_variables_are_listed_by_name_alone(kept: ControlPlane) -> None:
    assert runyard(kept, "env", "list", "-n", "app").stdout.split() == ["A", "B"]
    assert json.loads(runyard(kept, "env", "list", "-n", "app", "--json").stdout) == ["A", "B"]


def test_variables_are_set_and_the_revision_is_followed(kept: ControlPlane, tmp_path: Path) -> None:
    (tmp_path / "more.env").write_text("C=3\nD=4\n")
    words = ["env", "set", "-n", "app", "C=x=y", "KEY=-", "--env-file", "more.env", "--json"]
    ran = runyard(kept, *words, input="from stdin\n")
    assert ran.exit_code == 0, ran.output
    assert kept.body(PATCH) == {
        "secret_changes": [
            {"name": "C", "value": "x=y"},
            {"name": "D", "value": "4"},
            {"name": "KEY", "value": "from stdin"},
        ]
    }
    last = json_lines(ran)[-1]
    assert (last["event"], last["status"], last["revision_number"]) == ("result", "succeeded", 2)
    assert "x=y" not in ran.output


def test_variables_are_unset(kept: ControlPlane) -> None:
    ran = runyard(kept, "env", "unset", "A", "-n", "app", "--no-wait")
    assert ran.exit_code == 0, ran.output
    assert "v2 of app: no A" in ran.stdout
    assert kept.body(PATCH) == {"secret_changes": [{"name": "A", "value": None}]}


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (["set"], 2, "Say what to set"),
        (["set", "A"], 2, "is not NAME=VALUE"),
        (["set", "=1"], 2, "is not NAME=VALUE"),
        (["set", "--env-file", "none"], 2, "none does not exist"),
        (["unset", "A", "Z"], 1, "app has no variable Z"),
    ],
)
def test_what_cannot_be_meant_changes_nothing(
    kept: ControlPlane, words: list[str], code: int, says: str
) -> None:
    ran = runyard(kept, "env", *words, "-n", "app")
    assert (ran.exit_code, says in ran.stderr) == (code, True)
    assert PATCH not in kept.asked


# open


@pytest.mark.parametrize("options", [[], ["--print"]])
def test_the_page_s_address_is_printed(kept: ControlPlane, options: list[str]) -> None:
    page = f"{kept.url}/o/team/host/deployments/{D}"
    assert runyard(kept, "open", "app", *options).stdout == f"{page}\n"
    assert runyard(kept, "open", "--deployment", "app", *options).stdout == f"{page}\n"
    assert json.loads(runyard(kept, "open", "app", "--json").stdout) == {"name": "app", "url": page}


def test_without_a_deployment_it_is_the_console_s(kept: ControlPlane) -> None:
    assert runyard(kept, "open").stdout == f"{kept.url}/\n"
    assert json.loads(runyard(kept, "open", "--json").stdout) == {"url": f"{kept.url}/"}
    assert kept.asked == []
    assert runyard(kept, "open", "app", "--deployment", "app").exit_code == 2


@pytest.mark.parametrize(
    ("environment", "platform", "has"),
    [
        ({}, "linux", False),
        ({"DISPLAY": ":0"}, "linux", True),
        ({"WAYLAND_DISPLAY": "wayland-0"}, "linux", True),
        ({"DISPLAY": ":10", "SSH_CONNECTION": "1.2.3.4 5 6.7.8.9 22"}, "linux", False),
        ({}, "darwin", True),
        ({"CI": "true"}, "darwin", False),
    ],
)
def test_a_browser_opens_where_somebody_sees_it(
    environment: dict[str, str], platform: str, has: bool
) -> None:
    assert has_screen(environment, platform) is has
