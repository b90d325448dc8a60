"""Projects in the command line: their name, archive and variables."""

from __future__ import annotations

import io
import json
import os
import tarfile
from pathlib import Path

import pytest

from cli.deployments.project import Project, deployment_name, sendable
from cli.errors import CommandFailed


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
    secrets, leftovers = (
        ".env .env.production .envrc nested/.env",
        "__pycache__/a.pyc .git/config .venv/bin/python",
    )
    for name in (*secrets.split(), *leftovers.split(), "keep.txt"):
        path = project / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("x")
    os.symlink("/etc/passwd", project / "link")
    assert set(archived(Project.read(project))) == {"langgraph.json", "agent.py", "keep.txt"}

    os.link(project / "agent.py", project / "same.py")
    assert archived(Project.read(project))["same.py"] == b"graph = None\n"


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


def test_a_directory_inside_another_keeps_its_own_ignore_file(tmp_path: Path) -> None:
    inner = tmp_path / "apps" / "one"
    inner.mkdir(parents=True)
    (tmp_path / "common.py").write_text("")
    (tmp_path / "notes.txt").write_text("")
    (inner / "code.py").write_text("")
    (inner / "big.bin").write_text("")
    (inner / ".gitignore").write_text("*.bin\n")
    (inner / "langgraph.json").write_text('{"dependencies": [".", "../.."], "graphs": {}}')
    names = set(archived(Project.read(inner)))
    assert {"common.py", "notes.txt", "apps/one/code.py", "apps/one/langgraph.json"} <= names
    assert "apps/one/big.bin" not in names


def test_the_root_of_a_uv_workspace_comes_along(tmp_path: Path) -> None:
    inner = tmp_path / "packages" / "agent"
    inner.mkdir(parents=True)
    for path in (tmp_path / "pyproject.toml", tmp_path / "uv.lock", inner / "pyproject.toml"):
        path.write_text("")
    config = {"source": {"kind": "uv", "root": "../.."}, "graphs": {}}
    (inner / "langgraph.json").write_text(json.dumps(config))
    project = Project.read(inner)
    assert project.config_path == "packages/agent/langgraph.json"
    assert {"pyproject.toml", "uv.lock", "packages/agent/pyproject.toml"} <= set(archived(project))


def test_the_root_of_a_javascript_workspace_comes_along(tmp_path: Path) -> None:
    inner = tmp_path / "apps" / "agents"
    (inner / "node_modules").mkdir(parents=True)
    for path in (
        inner / "agent.ts",
        inner / "package.json",
        inner / "node_modules/x.js",
        tmp_path / "yarn.lock",
    ):
        path.write_text("")
    (tmp_path / "package.json").write_text('{"workspaces": ["apps/*"]}')
    (inner / "langgraph.json").write_text('{"graphs": {"agent": "./agent.ts:graph"}}')
    project = Project.read(inner)
    assert project.config_path == "apps/agents/langgraph.json"
    names = {"agent.ts", "package.json", "langgraph.json"}
    assert set(archived(project)) == {*(f"apps/agents/{name}" for name in names), "package.json", "yarn.lock"}

    for alone in (inner / "package-lock.json", inner / ".git", tmp_path / "package.json"):
        before = alone.read_text() if alone.exists() else None
        alone.write_text("{}")
        assert Project.read(inner).root() == inner
        alone.unlink() if before is None else alone.write_text(before)
    (inner / "langgraph.json").write_text('{"graphs": {"agent": "./agent.py:graph"}}')
    assert Project.read(inner).root() == inner


def test_the_file_with_the_variables_stays_here_whatever_its_name(project: Path) -> None:
    (project / "langgraph.json").write_text('{"dependencies": ["."], "graphs": {}, "env": "prod.vars"}')
    (project / "prod.vars").write_text("TOKEN=hush\n")
    read = Project.read(project)
    assert "prod.vars" not in archived(read)
    assert read.variables() == {"TOKEN": "hush"}


def test_an_ignored_configuration_and_a_missing_dependency_are_refused(project: Path) -> None:
    (project / ".gitignore").write_text("langgraph.json\n")
    with pytest.raises(CommandFailed, match=r"langgraph\.json is excluded"):
        archived(Project.read(project))

    (project / "langgraph.json").write_text('{"dependencies": ["./missing"], "graphs": {}}')
    (project / ".gitignore").unlink()
    with pytest.raises(CommandFailed, match="missing"):
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


# Secrets


def test_secrets_come_from_the_env_file_without_what_is_reserved_or_empty(project: Path) -> None:
    (project / ".env").write_text(
        "export OPENAI_API_KEY='k'\nEMPTY=\nPOSTGRES_URI=x\nRUNYARD_PORT=1\nRUNYARD_API_KEY=k\nPLAIN\n"
    )
    secrets, refused = sendable(Project.read(project).variables())
    assert secrets == [{"name": "OPENAI_API_KEY", "value": "k"}]
    assert refused == ["POSTGRES_URI", "RUNYARD_PORT"]

    (project / "langgraph.json").write_text('{"graphs": {}, "env": {"LEVEL": 3}}')
    (project / ".env").write_text("OTHER=x\n")
    assert Project.read(project).variables() == {"LEVEL": "3"}
