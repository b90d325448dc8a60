"""How a graph host is started: the variables it may see, and what the project says of itself."""

from __future__ import annotations

import importlib.util
import json
import shutil
import sys
from pathlib import Path, PurePosixPath

from shared.settings import Settings
from tests.unit.builder.test_environments import FILES
from workers.builder import host_commands
from workers.builder.config import manifest
from workers.builder.config.manifest import Manifest
from workers.builder.environments import Environment
from workers.builder.interpreters import HERE
from workers.builder.requirements import Requirements
from workers.builder.workspaces import Workspace


def test_a_host_gets_the_allowed_variables_and_no_other(tmp_path: Path) -> None:
    outside = {
        **dict.fromkeys(("DATABASE_URL", "REDIS_URL", "RUNYARD_ENCRYPTION_KEYS", "AWS_SECRET", "HOME"), "x"),
        **dict.fromkeys(("UV_INDEX_URL", "PIP_INDEX_URL", "LD_PRELOAD", "PYTHONPATH"), "y"),
        **{"PATH": "/usr/bin", "LANG": "C.UTF-8", "HTTPS_PROXY": "http://proxy", "RUNYARD_ISOLATION": "none"},
    }
    settings = Settings.from_env({**outside, "RUNYARD_DATA_DIR": str(tmp_path)})
    workspace = Workspace(tmp_path / "revisions" / "x")
    (workspace.project).mkdir(parents=True)
    for name, content in FILES.items():
        (workspace.project / name).write_text(content)
    packages = tmp_path / "packages" / "env"
    made = Environment(workspace, manifest.read(workspace.project, None), Requirements(), packages, HERE)

    command = host_commands.host_command(settings, made, {"API_KEY": "k", "COLOUR": "blue"})

    assert set(command.env) == {
        *(
            "PATH",
            "LANG",
            "HTTPS_PROXY",
            "HOME",
            "VIRTUAL_ENV",
            "GRAPH_HOST_CONFIG",
            "MALLOC_ARENA_MAX",
        ),
        *("PYTHONUNBUFFERED", "PYTHONDONTWRITEBYTECODE", "API_KEY", "COLOUR"),
    }
    assert command.env["COLOUR"] == "blue", "a secret goes over the file"
    assert command.env["HOME"] == str(workspace.home)
    assert command.env["PATH"] == f"{workspace.env}/bin:{packages}/bin:/usr/bin"
    assert command.cwd == str(workspace.project)
    assert json.loads(command.env["GRAPH_HOST_CONFIG"]) == {
        "graphs": {"agent": {"path": "./agent.py:graph", "description": None}},
        "paths": [],
        "store": {},
        "inspect": False,
        "auth": None,
        "http": None,
        "secrets": ["API_KEY", "COLOUR"],
    }


def test_a_host_gets_what_the_project_says_of_its_authorization_its_app_and_its_checkpoints(
    tmp_path: Path,
) -> None:
    settings = Settings.from_env({"RUNYARD_DATA_DIR": str(tmp_path), "RUNYARD_ISOLATION": "none"})
    workspace = Workspace(tmp_path / "revisions" / "x")
    workspace.project.mkdir(parents=True)
    found = Manifest(
        directory=PurePosixPath(),
        graphs={},
        auth={"path": "./a.py:auth", "cache_keys": ["x"]},
        http={"app": "./a.py:app", "middleware_order": "auth_first"},
        checkpointer={"ttl": {"default_ttl": 5}, "serde": {"allowed_msgpack_modules": [["a", "State"]]}},
    )
    made = Environment(workspace, found, Requirements(), None, HERE)

    command = host_commands.host_command(settings, made, {})

    config = json.loads(command.env["GRAPH_HOST_CONFIG"])
    assert config["auth"] == {"path": "./a.py:auth"}
    assert config["http"] == {"app": "./a.py:app", "middleware_order": "auth_first"}
    assert config["allowed_msgpack_modules"] == [["a", "State"]]
    assert "ttl" not in config


def test_no_host_has_to_compile_the_package_that_it_is_made_of(tmp_path: Path) -> None:
    package = tmp_path / "graph_host"
    shutil.copytree(host_commands.GRAPH_HOST, package, ignore=shutil.ignore_patterns("__pycache__"))

    host_commands.keep_bytecode(Path(sys.executable), package)

    modules = list(package.rglob("*.py"))
    assert modules
    assert [path for path in modules if not Path(importlib.util.cache_from_source(str(path))).exists()] == []
