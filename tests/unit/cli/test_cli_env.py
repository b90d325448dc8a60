"""`runyard env` and `open`, and the sources of the service's address, the API key and the organization."""

from __future__ import annotations

import json
import os
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from cli.client.access import ApiKey, find_address, find_key, find_tenant, read_env
from cli.deployments.deployments import has_screen
from cli.errors import CommandFailed
from shared.settings import Settings
from tests.support import control_plane as fake
from tests.support.commands import invoke, json_lines, runyard
from tests.support.control_plane import REVISION, STREAM, ControlPlane, D, R, record

pytestmark = pytest.mark.usefixtures("nowhere")

PATCH = f"PATCH /v2/deployments/{D}"


@pytest.fixture
def kept(server: ControlPlane) -> ControlPlane:
    """A deployment with two variables. A change of them creates a revision that becomes DEPLOYED."""
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


def test_variables_are_listed_by_name_alone_and_unset(kept: ControlPlane) -> None:
    assert runyard(kept, "env", "list", "app").stdout.split() == ["A", "B"]
    assert json.loads(runyard(kept, "env", "list", "-n", "app", "--json").stdout) == ["A", "B"]

    ran = runyard(kept, "env", "unset", "app", "A", "--no-wait")
    assert ran.exit_code == 0, ran.output
    assert "v2 of app: no A" in ran.stdout
    assert kept.body(PATCH) == {"secret_changes": [{"name": "A", "value": None}]}


def test_variables_are_set_and_the_revision_is_followed(kept: ControlPlane, tmp_path: Path) -> None:
    (tmp_path / "more.env").write_text("C=3\nD=4\n")
    words = ["env", "set", "app", "C=x=y", "KEY=-", "--env-file", "more.env", "--json"]
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


def test_what_cannot_be_meant_changes_nothing(kept: ControlPlane) -> None:
    for words, code, says in (
        (["set"], 2, "Say what to set"),
        (["set", "A"], 2, "is not NAME=VALUE"),
        (["set", "=1"], 2, "is not NAME=VALUE"),
        (["set", "--env-file", "none"], 2, "none does not exist"),
        (["unset", "A", "Z"], 1, "app has no variable Z"),
    ):
        ran = runyard(kept, "env", words[0], "app", *words[1:])
        assert (ran.exit_code, says in ran.stderr) == (code, True), f"{words}: {ran.stderr}"
    assert PATCH not in kept.asked


def test_older_scripts_name_the_deployment_of_variables_by_an_option(kept: ControlPlane) -> None:
    ran = runyard(kept, "env", "set", "C=1", "--name", "app", "--no-wait")
    assert ran.exit_code == 0, ran.output
    ran = runyard(kept, "env", "unset", "A", "B", "-n", "app", "--no-wait")
    assert ran.exit_code == 0, ran.output
    assert kept.body(PATCH) == {
        "secret_changes": [{"name": "A", "value": None}, {"name": "B", "value": None}]
    }


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


# Sources of the address, the key and the organization


# All sources of an API key, in order of precedence.
ORDER = [
    "--api-key",
    "RUNYARD_API_KEY of the environment",
    "RUNYARD_API_KEY of .env",
    "data/admin.key",
    "LANGGRAPH_HOST_API_KEY of the environment",
    "LANGGRAPH_HOST_API_KEY of .env",
    "LANGSMITH_API_KEY of .env",
    "LANGSMITH_API_KEY of the environment",
    "LANGCHAIN_API_KEY of .env",
    "LANGCHAIN_API_KEY of the environment",
]
HERE, ELSEWHERE = "http://127.0.0.1:8123", "http://elsewhere.example:8123"
LANGSMITH = "lsv2_pt_x"  # a key of another service


def find(key: str | None = None, url: str = HERE, local: dict[str, str] | None = None) -> ApiKey:
    return find_key(key, Settings.from_env(os.environ), local, url=url)


def keep_key(folder: Path, key: str, url: str) -> None:
    """Keep a key as `runyard up` does, and the address where it listens."""
    (folder / "data").mkdir()
    (folder / "data" / "admin.key").write_text(f"{key}\n")
    (folder / "data" / "url").write_text(f"{url}\n")


@pytest.mark.parametrize("first", range(len(ORDER)), ids=lambda n: ORDER[n])
def test_a_key_is_taken_from_the_first_source_that_has_one(
    first: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    keys = {source: f"ryd_{number}" for number, source in enumerate(ORDER)}
    lines: list[str] = []
    for source in ORDER[first:]:  # all sources of lower precedence have a key too
        name, _, place = source.partition(" of ")
        if place == "the environment":
            monkeypatch.setenv(name, keys[source])
        elif place == ".env":
            lines.append(f"export {name}='{keys[source]}'\n")
        elif name == "data/admin.key":
            keep_key(tmp_path, keys[source], HERE)
    (tmp_path / ".env").write_text("".join(lines))

    found = find(keys["--api-key"] if first == 0 else None)

    assert found.text == keys[ORDER[first]]
    assert found.source.removeprefix(f"{tmp_path}/") == ORDER[first]


@pytest.mark.parametrize("number", range(len(ORDER)), ids=lambda n: ORDER[n])
def test_a_key_of_another_service_is_sent_only_if_it_is_given_explicitly(
    number: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, server: ControlPlane
) -> None:
    """Given a LangSmith key in one source; the server records the received headers."""
    server.answers = {"GET /v2/deployments": [(401, {"detail": "Unknown API key"})]}
    name, _, place = ORDER[number].partition(" of ")
    if place == "the environment":
        monkeypatch.setenv(name, LANGSMITH)
    elif place == ".env":
        (tmp_path / ".env").write_text(f"{name}={LANGSMITH}\n")
    elif name == "data/admin.key":
        keep_key(tmp_path, LANGSMITH, server.url)
    given = ["--api-key", LANGSMITH] if name == "--api-key" else []

    ran = invoke("list", "--url", server.url, *given)

    assert ran.exit_code == 1
    assert ORDER[number] in ran.stderr, "the error names the source"
    assert LANGSMITH not in ran.output
    if number < 4:
        assert server.header("GET /v2/deployments", "X-Api-Key") == [LANGSMITH]
        assert "does not accept the API key from" in ran.stderr
    else:
        assert server.asked == []
        assert f"Not sent: {ORDER[number]}, since a key of runyard begins with ryd_." in ran.stderr


def test_a_deploy_sends_no_key_of_another_service_from_the_project(
    server: ControlPlane, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (project / ".env").write_text(f"LANGSMITH_API_KEY={LANGSMITH}\n")
    monkeypatch.setenv("LANGSMITH_API_KEY", LANGSMITH)
    ran = invoke("deploy", str(project), "--url", server.url, "--no-input")
    assert (ran.exit_code, server.asked) == (1, [])
    sources = "LANGSMITH_API_KEY of the project's variables and LANGSMITH_API_KEY of the environment"
    assert f"Not sent: {sources}, since" in ran.stderr


def test_the_kept_key_is_for_the_service_that_keeps_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keep_key(tmp_path, "ryd_kept", HERE)
    for url in (HERE, "http://localhost:8123", "http://[::1]:8123/api-host"):
        assert find(url=url).text == "ryd_kept"
    monkeypatch.setenv("RUNYARD_URL", ELSEWHERE)
    for url in (ELSEWHERE, "http://127.0.0.1:9", "https://127.0.0.1:8123", "http://127.0.0.1:x"):
        with pytest.raises(CommandFailed, match=rf"Not sent: .*admin\.key, since it belongs to {HERE}\."):
            find(url=url)
    monkeypatch.setenv("LANGSMITH_API_KEY", "ryd_elsewhere")
    assert find(url=ELSEWHERE).text == "ryd_elsewhere"
    (tmp_path / "data" / "url").write_text(ELSEWHERE)
    assert find(url=ELSEWHERE).text == "ryd_kept"


def test_the_kept_key_is_sent_nowhere_while_its_service_is_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, server: ControlPlane
) -> None:
    keep_key(tmp_path, "ryd_kept", server.url)
    (tmp_path / "data" / "url").unlink()  # as the service does when it stops
    for words in ([], ["--url", server.url]):
        monkeypatch.setenv(
            "RUNYARD_PORT", server.url.rpartition(":")[2]
        )  # the default address is the server's
        ran = invoke("list", *words)
        assert (ran.exit_code, server.asked) == (1, [])
        assert f"No API key for {server.url}. Not sent: {tmp_path}/data/admin.key, since" in ran.stderr
        assert (
            "the service of this folder is not running. `runyard up` or `runyard dev` starts it."
            in ran.stderr
        )


def test_a_key_is_missed_with_where_to_put_one_or_refused_without_showing_it() -> None:
    with pytest.raises(CommandFailed, match=r"Set RUNYARD_API_KEY in the environment or in \.env"):
        find()
    with pytest.raises(CommandFailed, match="The API key from --api-key holds characters") as told:
        find("schlüssel")
    assert "schlüssel" not in str(told.value)


def test_the_address_is_given_named_or_where_the_service_last_listened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def found(url: str | None = None) -> str:
        return find_address(url, Settings.from_env(os.environ)).url

    assert found() == "http://127.0.0.1:8123"
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "url").write_text("http://127.0.0.1:2024\n")
    assert found() == "http://127.0.0.1:2024"
    monkeypatch.setenv("RUNYARD_PORT", "9000")
    assert found() == "http://127.0.0.1:9000"
    monkeypatch.setenv("LANGGRAPH_HOST_URL", "https://other.example")
    assert found() == "https://other.example"
    monkeypatch.setenv("RUNYARD_URL", "https://yard.example/api-host/")
    assert found() == "https://yard.example/api-host"
    assert found("https://given.example/") == "https://given.example"


def test_a_service_that_no_option_or_variable_names_is_named_on_stderr(
    server: ControlPlane, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.answers["GET /v2/deployments"] = [(200, {"resources": []})]
    monkeypatch.delenv("RUNYARD_DATA_DIR")
    (tmp_path / ".runyard").mkdir()
    (tmp_path / ".runyard" / "url").write_text(server.url)
    (tmp_path / ".runyard" / "admin.key").write_text("ryd_kept")
    notice = f"Using the service of this directory, {server.url}. --url, or --context before the command, names another.\n"

    for words, says in (
        (["list"], notice),
        (["list", "--json"], notice),
        (["-q", "list"], ""),
        (["list", "--url", server.url], ""),
        (["--context", "local", "list"], ""),
    ):
        ran = invoke(*words)
        assert (ran.exit_code, ran.stderr) == (0, says), words
    assert json.loads(invoke("list", "--json").stdout) == []

    for name, value in (
        ("RUNYARD_URL", server.url),
        ("LANGGRAPH_HOST_URL", server.url),
        ("RUNYARD_PORT", str(urlsplit(server.url).port)),
    ):
        assert invoke("list", env={name: value}).stderr == "", name
    moved = invoke("list", env={"RUNYARD_DATA_DIR": str(tmp_path / ".runyard")})
    assert moved.stderr == notice.replace("this directory", "RUNYARD_DATA_DIR")


def test_a_deploy_names_the_service_that_runs_in_its_project_and_a_quiet_one_does_not(
    server: ControlPlane, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("RUNYARD_DATA_DIR")
    monkeypatch.chdir(project)
    (project / ".runyard").mkdir()
    (project / ".runyard" / "url").write_text(server.url)
    (project / ".runyard" / "admin.key").write_text("ryd_kept")
    server.answers["GET /v2/deployments"] = [(403, {"detail": "no"})]
    notice = f"Using the service of this directory, {server.url}. --url, or --context before the command, names another.\n"
    assert invoke("deploy").stderr.startswith(notice)
    assert "Using" not in invoke("deploy", "-q").output


def test_the_default_address_is_named_like_any_other() -> None:
    address = find_address(None, Settings.from_env(os.environ))
    assert address.notice.startswith("Using the default address, http://127.0.0.1:8123. ")


def test_an_address_with_control_characters_in_a_file_is_ignored(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    for content in (b"http://127.0.0.1:1\x1b[2J", b"\xff"):
        (tmp_path / "data" / "url").write_bytes(content)
        assert find_address(None, Settings.from_env(os.environ)).url == "http://127.0.0.1:8123"


def test_an_organization_is_given_or_named(monkeypatch: pytest.MonkeyPatch) -> None:
    assert find_tenant(None) is None
    monkeypatch.setenv("LANGSMITH_TENANT_ID", "process")
    assert find_tenant(None) == "process"
    assert find_tenant(None, {"LANGSMITH_TENANT_ID": "file"}) == "file"
    monkeypatch.setenv("RUNYARD_ORG", "ours")
    assert find_tenant(None, {"LANGSMITH_TENANT_ID": "file"}) == "ours"
    assert find_tenant("given") == "given"


def test_a_line_that_sets_nothing_is_reported_once_and_a_file_that_cannot_be_read_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / ".env"
    path.write_text("A=1\nnot a variable\nB=2\n")
    for _ in range(2):
        assert read_env(path) == {"A": "1", "B": "2"}
    assert capsys.readouterr().err == f"Line 2 of {path} is not NAME=value: it sets nothing.\n"

    (tmp_path / ".env").write_bytes(b"\xff\xfe")
    with pytest.raises(CommandFailed, match="cannot be read"):
        read_env(tmp_path / ".env")
