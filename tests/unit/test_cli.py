"""The command line's own rules: names, archives, secrets, keys, and what it says when it cannot go on."""

from __future__ import annotations

import io
import json
import os
import tarfile
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from cli.client import Client, find_key, find_url
from cli.deploy import deploy
from cli.errors import CommandFailed
from cli.main import app
from cli.project import Project, deployment_name
from shared.settings import Settings

KEY_VARIABLES = (
    "RUNYARD_API_KEY",
    "LANGGRAPH_HOST_API_KEY",
    "LANGSMITH_API_KEY",
    "LANGCHAIN_API_KEY",
    "RUNYARD_URL",
)


@pytest.fixture(autouse=True)
def no_keys(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in KEY_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("RUNYARD_DATA_DIR", str(tmp_path / "data"))


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A small project directory."""
    folder = tmp_path / "My_Agent App.v2"
    folder.mkdir()
    (folder / "langgraph.json").write_text('{"dependencies": ["."], "graphs": {"agent": "./agent.py:graph"}}')
    (folder / "agent.py").write_text("graph = None\n")
    return folder


def archived(project: Project) -> dict[str, bytes]:
    file = io.BytesIO()
    project.write_archive(file)
    file.seek(0)
    with tarfile.open(fileobj=file, mode="r:gz") as tar:
        members = tar.getmembers()
        assert all(member.isreg() for member in members)
        return {member.name: tar.extractfile(member).read() for member in members}  # type: ignore[union-attr]


# Names


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("My_Agent App.v2", "my-agent-app-v2"),
        ("a__b", "a-b"),
        ("-a--b-", "a--b"),
        ("___", "app"),
        ("Ünïcode", "n-code"),
        ("123", "123"),
    ],
)
def test_a_name_becomes_lower_case_with_dashes(text: str, name: str) -> None:
    assert deployment_name(text) == name


# Archives


def test_an_archive_holds_the_project_without_secrets_and_leftovers(project: Path) -> None:
    for name in (
        ".env",
        ".env.production",
        "__pycache__/agent.pyc",
        ".git/config",
        ".venv/bin/python",
        "keep.txt",
    ):
        path = project / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("x")
    os.symlink("/etc/passwd", project / "link")
    assert set(archived(Project.read(project))) == {"langgraph.json", "agent.py", "keep.txt"}


def test_ignore_files_are_followed_and_can_bring_back(project: Path) -> None:
    (project / ".gitignore").write_text("*.log\ndata/\n!keep.log\n")
    (project / ".dockerignore").write_text("notes.md\n")
    for name in ("a.log", "keep.log", "notes.md", "data/big.bin"):
        (project / name).parent.mkdir(exist_ok=True)
        (project / name).write_text("x")
    names = set(archived(Project.read(project)))
    assert {"keep.log", "agent.py", ".gitignore", ".dockerignore"} <= names
    assert not names & {"a.log", "notes.md", "data/big.bin"}


def test_a_dependency_outside_comes_along_and_moves_the_root(tmp_path: Path) -> None:
    app_folder, library = tmp_path / "apps" / "one", tmp_path / "libs" / "common"
    for folder in (app_folder, library, tmp_path / "apps" / "two"):
        folder.mkdir(parents=True)
        (folder / "code.py").write_text("")
    (app_folder / "langgraph.json").write_text('{"dependencies": [".", "../../libs/common"], "graphs": {}}')
    project = Project.read(app_folder)
    assert project.config_path == "apps/one/langgraph.json"
    assert set(archived(project)) == {"apps/one/langgraph.json", "apps/one/code.py", "libs/common/code.py"}


def test_hard_links_are_sent_as_files(project: Path) -> None:
    os.link(project / "agent.py", project / "same.py")
    assert archived(Project.read(project))["same.py"] == b"graph = None\n"


def test_an_ignored_configuration_is_refused(project: Path) -> None:
    (project / ".gitignore").write_text("langgraph.json\n")
    with pytest.raises(CommandFailed, match=r"langgraph\.json is excluded"):
        archived(Project.read(project))


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (None, "does not exist"),
        ("{", "is not JSON"),
        ("[]", "must hold a JSON object"),
        (b"\xff\xfe", "cannot be read"),
    ],
)
def test_a_configuration_that_cannot_be_used_is_named(
    tmp_path: Path, content: str | bytes | None, says: str
) -> None:
    if content is not None:
        (tmp_path / "langgraph.json").write_bytes(content.encode() if isinstance(content, str) else content)
    with pytest.raises(CommandFailed, match=says):
        Project.read(tmp_path)


def test_a_missing_dependency_folder_is_named(project: Path) -> None:
    (project / "langgraph.json").write_text('{"dependencies": ["./missing"], "graphs": {}}')
    with pytest.raises(CommandFailed, match="missing"):
        archived(Project.read(project))


# Secrets


def test_secrets_come_from_the_env_file_without_what_is_reserved_or_empty(project: Path) -> None:
    (project / ".env").write_text(
        "export OPENAI_API_KEY='k'\nEMPTY=\nPOSTGRES_URI=x\nRUNYARD_PORT=1\nPLAIN\n"
    )
    secrets, refused = Project.read(project).secrets()
    assert secrets == [{"name": "OPENAI_API_KEY", "value": "k"}]
    assert refused == ["POSTGRES_URI", "RUNYARD_PORT"]


def test_secrets_can_stand_in_the_configuration(project: Path) -> None:
    (project / "langgraph.json").write_text('{"graphs": {}, "env": {"LEVEL": 3}}')
    (project / ".env").write_text("OTHER=x\n")
    assert Project.read(project).secrets() == ([{"name": "LEVEL", "value": "3"}], [])


# Keys and addresses


def test_a_key_is_looked_for_where_people_keep_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    env_file = tmp_path / ".env"

    def found(key: str | None = None) -> str:
        return find_key(key, Settings.from_env(os.environ), env_file)

    with pytest.raises(CommandFailed, match="RUNYARD_API_KEY"):
        found()
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "admin.key").write_text("kept\n")
    assert found() == "kept"
    monkeypatch.setenv("LANGSMITH_API_KEY", "smith")
    assert found() == "smith"
    env_file.write_text("LANGSMITH_API_KEY=file\n")
    assert found() == "file"
    monkeypatch.setenv("LANGGRAPH_HOST_API_KEY", "host")
    assert found() == "host"
    env_file.write_text("RUNYARD_API_KEY=ours\n")
    assert found() == "ours"
    monkeypatch.setenv("RUNYARD_API_KEY", "environment")
    assert found() == "environment"
    assert found("given") == "given"


def test_the_address_is_given_or_this_machine_s(monkeypatch: pytest.MonkeyPatch) -> None:
    assert find_url(None, Settings.from_env({"RUNYARD_PORT": "9000"})) == "http://127.0.0.1:9000"
    assert find_url("https://x/", Settings.from_env({})) == "https://x"


# The wire


class ControlPlane(ThreadingHTTPServer):
    """A control plane that answers from a list and remembers what it was asked."""

    daemon_threads = True

    def __init__(self, answers: dict[str, list[tuple[int, Any]]]) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.answers, self.asked, self.bodies = answers, list[str](), list[bytes]()
        self.url = f"http://127.0.0.1:{self.server_port}"


class Handler(BaseHTTPRequestHandler):
    server: ControlPlane

    def answer(self) -> None:
        what = f"{self.command} {self.path.partition('?')[0]}"
        self.server.asked.append(what)
        self.server.bodies.append(self.rfile.read(int(self.headers.get("Content-Length") or 0)))
        answers = self.server.answers[what]
        status, body = answers.pop(0) if len(answers) > 1 else answers[0]
        data = b"" if body is None else json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = answer

    def log_message(self, format: str, *args: Any) -> None:
        """Quiet: the test's output is not for this."""


@pytest.fixture
def control_plane() -> Iterator[ControlPlane]:
    server = ControlPlane({})
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server
    server.shutdown()
    server.server_close()


def whole_deploy(server: ControlPlane, status: str) -> dict[str, list[tuple[int, Any]]]:
    line = {"id": "1", "timestamp": 0, "level": "ERROR", "message": "no such module"}
    logs = [(200, {"logs": [line], "next_offset": "1"}), (200, {"logs": [], "next_offset": "1"})]
    return {
        "GET /v2/deployments": [(200, {"resources": [], "offset": 0})],
        "POST /v2/deployments": [(201, {"id": "D", "name": "app"})],
        "POST /v2/deployments/D/upload-url": [(200, {"upload_url": f"{server.url}/put", "object_path": "o"})],
        "PUT /put": [(200, None)],
        "PATCH /v2/deployments/D": [(200, {"id": "D"})],
        "GET /v2/deployments/D/revisions": [(200, {"resources": [{"id": "R"}]})],
        "GET /v2/deployments/D/revisions/R": [
            (200, {"id": "R", "status": "BUILDING"}),
            (503, {"detail": "a moment"}),
            (200, {"id": "R", "status": status, "status_message": None}),
        ],
        "POST /v1/projects/D/revisions/R/build_logs": logs,
        "GET /v2/deployments/D": [(200, {"id": "D", "name": "app"})],
    }


def test_a_deploy_asks_in_the_order_of_the_protocol(control_plane: ControlPlane, project: Path) -> None:
    control_plane.answers = whole_deploy(control_plane, "DEPLOYED")
    (project / ".env").write_text("KEY=v\n")
    said: list[str] = []
    with Client(control_plane.url, "key") as client:
        assert deploy(client, Project.read(project), "app", said.append)["id"] == "D"
    assert control_plane.asked[:6] == [
        "GET /v2/deployments",
        "POST /v2/deployments",
        "POST /v2/deployments/D/upload-url",
        "PUT /put",
        "PATCH /v2/deployments/D",
        "GET /v2/deployments/D/revisions",
    ]
    created = json.loads(control_plane.bodies[1])
    assert created["source"] == "internal_source"
    assert created["source_config"] == {"deployment_type": "dev"}
    assert created["secrets"] == [{"name": "KEY", "value": "v"}]
    patched = json.loads(control_plane.bodies[4])
    assert patched["source_revision_config"] == {
        "source_tarball_path": "o",
        "langgraph_config_path": "langgraph.json",
    }
    assert "  no such module" in said
    assert any(line.startswith("DEPLOYED after") for line in said)


@pytest.mark.parametrize("status", ["BUILD_FAILED", "DEPLOY_FAILED", "INTERRUPTED", "SKIPPED"])
def test_a_revision_that_fails_is_told_with_its_last_lines(
    control_plane: ControlPlane, project: Path, status: str
) -> None:
    control_plane.answers = whole_deploy(control_plane, status)
    ran = CliRunner().invoke(app, ["deploy", str(project), "--url", control_plane.url, "--api-key", "key"])
    assert ran.exit_code == 1
    assert f"The revision ended as {status}" in ran.output
    assert ran.output.rstrip().endswith("no such module")


def test_a_refusal_is_a_sentence(control_plane: ControlPlane) -> None:
    control_plane.answers = {
        "GET /v2/deployments": [
            (401, {"detail": "no"}),
            (422, {"detail": [{"loc": ["query", "limit"], "msg": "too large", "type": "x"}]}),
        ]
    }
    arguments = ["list", "--url", control_plane.url, "--api-key", "key"]
    assert "does not accept this API key" in CliRunner().invoke(app, arguments).output
    assert "422: query.limit: too large" in CliRunner().invoke(app, arguments).output


def test_a_service_that_is_not_there_is_a_sentence() -> None:
    ran = CliRunner().invoke(app, ["list", "--url", "http://127.0.0.1:9", "--api-key", "key"])
    assert ran.exit_code == 1
    assert "Start it with `runyard up`" in ran.output


def test_all_pages_are_listed(control_plane: ControlPlane) -> None:
    def page(start: int, count: int) -> dict[str, Any]:
        return {"resources": [{"id": str(n), "name": f"app-{n}"} for n in range(start, start + count)]}

    control_plane.answers = {"GET /v2/deployments": [(200, page(0, 100)), (200, page(100, 3))]}
    ran = CliRunner().invoke(app, ["list", "--json", "--url", control_plane.url, "--api-key", "key"])
    assert len(json.loads(ran.output)) == 103


def test_a_bad_setting_stops_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RUNYARD_PORT", "many")
    ran = CliRunner().invoke(app, ["up"])
    assert ran.exit_code == 1
    assert "RUNYARD_PORT must be a number" in ran.output


def test_a_key_needs_a_running_database() -> None:
    ran = CliRunner().invoke(app, ["keys", "create"])
    assert ran.exit_code == 1
    assert "runyard up" in ran.output
