"""A revision's environment on one machine: made once, whole or not there, gone when nobody needs it.

The package installer is real, as are the processes; the graph host itself is not started here.
"""

from __future__ import annotations

import dataclasses
import gzip
import hashlib
import io
import json
import os
import sys
import tarfile
from collections.abc import Mapping
from pathlib import Path
from uuid import UUID, uuid4

import gevent
import psutil
import pytest
from sqlalchemy import text

from cli.procfile import PROJECT
from shared.database import connection
from shared.errors import BuildFailed
from shared.settings import Settings
from tests.greened import World, child, greened
from tests.waiting import wait_until
from workers import environments, manifest, steps, workspaces
from workers.environments import Made, Plan
from workers.interpreters import HERE
from workers.requirements import Requirements
from workers.workspaces import Workspace

__all__ = ["child"]

CONFIG = json.dumps(
    {"dependencies": ["."], "graphs": {"agent": "./agent.py:graph"}, "env": {"COLOUR": "red"}}
)
FILES = {"langgraph.json": CONFIG, "agent.py": "graph = None\n"}
NOTHING = "# no packages: these tests are about files\n"
DEPLOYMENT = uuid4()


def settings_for(world: World) -> Settings:
    found = Settings.from_env({**os.environ, "RUNYARD_DATA_DIR": str(world.tmp_path / "data")})
    return dataclasses.replace(found, cache_dir=PROJECT / ".cache")


def keep(files: Mapping[str, str]) -> str:
    """Store an archive of these files as an upload does; its digest."""
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w") as tar:
        for name, content in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content.encode()))
    data = gzip.compress(made.getvalue(), mtime=0)
    digest = hashlib.sha256(data).hexdigest()
    with connection() as conn:
        conn.execute(
            text("INSERT INTO archive (digest, size) VALUES (:d, :s)"), {"d": digest, "s": len(data)}
        )
        conn.execute(
            text("INSERT INTO archive_chunk (digest, n, data) VALUES (:d, 0, :data)"),
            {"d": digest, "data": data},
        )
    return digest


def make(settings: Settings, revision_id: UUID, digest: str, said: list[str] | None = None) -> Made:
    lines = said if said is not None else []
    return environments.make(
        settings,
        revision_id,
        planned(digest),
        say=lambda level, message: lines.append(message),
        deadline_seconds=60,
    )


def planned(digest: str, requirements: str | None = NOTHING) -> Plan:
    return Plan(deployment_id=DEPLOYMENT, digest=digest, config_path=None, requirements=requirements)


@greened
def test_it_is_made_once(world: World) -> None:
    settings, revision_id, digest = settings_for(world), uuid4(), keep(FILES)
    first: list[str] = []
    again: list[str] = []

    made = make(settings, revision_id, digest, first)
    same = make(settings, revision_id, digest, again)

    assert first[:2] == ["fetching the source archive", "unpacked 2 files"]
    assert again == []
    assert same == made
    assert made.workspace.python.exists()
    assert (made.workspace.project / "agent.py").read_text() == FILES["agent.py"]
    assert not (made.workspace.root / "source.tar.gz").exists()
    assert made.requirements == Requirements()
    assert made.packages is None
    assert made.workspace.root.stat().st_mode & 0o777 == 0o700


@greened
def test_two_at_once_make_one(world: World) -> None:
    settings, revision_id, digest = settings_for(world), uuid4(), keep(FILES)
    said: list[str] = []

    makers = [gevent.spawn(make, settings, revision_id, digest, said) for _ in range(3)]
    made = {str(greenlet.get().workspace.root) for greenlet in makers}

    assert len(made) == 1
    assert said.count("fetching the source archive") == 1


@greened
def test_what_a_dead_attempt_left_is_made_anew(world: World) -> None:
    settings, revision_id, digest = settings_for(world), uuid4(), keep(FILES)
    workspace = workspaces.workspace_of(settings, revision_id)
    (workspace.project / "half").mkdir(parents=True)
    workspace.requirements.write_text("half")

    make(settings, revision_id, digest)

    assert workspace.mark.exists()
    assert not (workspace.project / "half").exists()
    assert workspace.requirements.read_text() == ""


@greened
def test_what_fails_leaves_nothing(world: World) -> None:
    settings = settings_for(world)
    for files, step in (
        ({"agent.py": ""}, "configuration"),
        ({**FILES, "pyproject.toml": "[project]\nname = 7\n"}, "install"),
        ({"../outside": "x"}, "unpack"),
    ):
        revision_id = uuid4()
        with pytest.raises(BuildFailed) as caught:
            make(settings, revision_id, keep(files))
        assert caught.value.step == step
        assert "\n" not in caught.value.message
        assert not workspaces.workspace_of(settings, revision_id).root.exists()


@greened
def test_a_damaged_archive_is_not_unpacked(world: World) -> None:
    settings, digest = settings_for(world), keep(FILES)
    with connection() as conn:
        conn.execute(text("UPDATE archive_chunk SET data = data || 'x'"))

    with pytest.raises(BuildFailed, match="the source archive is damaged"):
        make(settings, uuid4(), digest)
    with pytest.raises(BuildFailed, match="the source archive is gone"):
        make(settings, uuid4(), "0" * 64)


@greened
def test_a_build_that_takes_too_long_is_ended(world: World) -> None:
    settings, revision_id = settings_for(world), uuid4()
    digest = keep({**FILES, "pyproject.toml": BACKEND, "backend.py": "import time\ntime.sleep(300)\n"})

    with pytest.raises(BuildFailed) as caught:
        environments.make(
            settings,
            revision_id,
            planned(digest),
            say=lambda level, message: None,
            deadline_seconds=4,
        )

    assert (caught.value.step, caught.value.message) == ("time", "the build took more than 4 s")
    assert not workspaces.workspace_of(settings, revision_id).root.exists()


# A build backend that is part of the project: it needs no package.
BACKEND = (
    "[project]\nname = 'slow'\nversion = '1'\n"
    "[build-system]\nrequires = []\nbuild-backend = 'backend'\nbackend-path = ['.']\n"
)


@greened
def test_a_link_a_build_step_leaves_is_not_followed(world: World) -> None:
    secret = world.tmp_path / "secret"
    secret.write_text("private")
    link = world.tmp_path / "list.txt"
    link.symlink_to(secret)

    with pytest.raises(BuildFailed, match="cannot be read"):
        environments._read(link)
    environments._write(link, "new")

    assert secret.read_text() == "private"
    assert link.read_text() == "new"


@greened
def test_a_step_says_its_output_a_bounded_line_at_a_time(world: World) -> None:
    said: list[str] = []
    code = "print('one'); print('x' * 20_000); import sys; sys.stderr.write('two')"

    reason = steps.execute(
        [sys.executable, "-c", code], world.tmp_path, {}, lambda level, message: said.append(message)
    )

    assert reason is None
    assert {said[0], said[-1]} == {"one", "two"}
    assert max(map(len, said)) == steps.LINE_BYTES
    assert sum(map(len, said)) == 20_006


@greened
def test_a_step_that_fails_gives_its_reason(world: World) -> None:
    def reason(code: str) -> str | None:
        return steps.execute([sys.executable, "-c", code], world.tmp_path, {}, lambda level, message: None)

    assert reason("raise ValueError('seven')") == "ValueError: seven"
    assert reason("import os; os._exit(7)") == "the step ended with 7"
    assert reason("import os; os.kill(os.getpid(), 9)") == "the step was killed by SIGKILL"


def test_the_installer_s_causes_become_one_line() -> None:
    told = ["warning: x", "error: No solution found", "  cause: Because a", "  cause: and b", "", "hint: c"]

    assert steps.cause(told) == "No solution found: Because a: and b"
    assert steps.cause(["first", "ValueError: boom", ""]) == "ValueError: boom"
    assert steps.cause([]) == ""


@greened
def test_a_step_that_takes_too_much_is_ended(world: World) -> None:
    hoard = "x = bytearray(200 * 2**20); import time; time.sleep(300)"
    fill = "[open(str(n), 'wb').write(bytes(10**5)) for n in range(20)]; import time; time.sleep(300)"

    def reason(code: str) -> str | None:
        return steps.execute([sys.executable, "-c", code], world.tmp_path, {}, lambda level, message: None)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(steps, "WATCH_SECONDS", 0.05)
        patch.setattr(steps, "MAX_MEMORY_BYTES", 100 * 2**20)
        assert reason(hoard) == "the step took more than 100 MiB of memory"
        patch.setattr(steps, "MAX_DISK_BYTES", 2**20)
        assert reason(fill) == "the build took more than 1 MiB of disk"


@greened
def test_what_a_step_started_does_not_outlive_it(world: World) -> None:
    said: list[str] = []

    steps.execute(
        ["/bin/sh", "-c", 'sleep 300 >/dev/null 2>&1 & echo "$!"'],
        world.tmp_path,
        {"PATH": os.environ["PATH"]},
        lambda level, message: said.append(message),
    )

    wait_until(lambda: not _runs(int(said[0])))


def _runs(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


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
    made = Made(workspace, manifest.read(workspace.project, None), Requirements(), packages, HERE)

    command = environments.host_command(settings, made, {"API_KEY": "k", "COLOUR": "blue"})

    assert set(command.env) == {
        *("PATH", "LANG", "HTTPS_PROXY", "HOME", "VIRTUAL_ENV", "GRAPH_HOST_CONFIG", "MALLOC_ARENA_MAX"),
        *("PYTHONUNBUFFERED", "PYTHONDONTWRITEBYTECODE", "API_KEY", "COLOUR"),
    }
    assert command.env["COLOUR"] == "blue", "a secret goes over the file"
    assert command.env["HOME"] == str(workspace.home)
    assert command.env["PATH"] == f"{workspace.env}/bin:{packages}/bin:/usr/bin"
    assert command.cwd == str(workspace.project)
    assert json.loads(command.env["GRAPH_HOST_CONFIG"]) == {
        "graphs": {"agent": {"path": "./agent.py:graph", "description": None}},
        "paths": [],
        "inspect": False,
    }
