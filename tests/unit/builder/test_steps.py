"""Build steps: their commands, output, failures and limits. No process of a step outlives it."""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import os
import shutil
import sys
from pathlib import Path

import psutil
import pytest

from shared.errors import BuildFailed
from shared.settings import Settings
from tests.support.greened import World, greened
from tests.support.waiting import wait_until
from tests.unit.builder.test_environments import FILES
from workers.builder import builder, environments, host_command, steps
from workers.builder.config import manifest
from workers.builder.environments import Environment
from workers.builder.python import toolchain
from workers.builder.python.requirements import Requirements
from workers.builder.python.toolchain import HERE, Interpreter
from workers.builder.workspaces import Workspace, write_untrusted


@greened
def test_a_link_a_build_step_leaves_is_not_followed(world: World) -> None:
    secret = world.tmp_path / "secret"
    secret.write_text("private")
    link = world.tmp_path / "list.txt"
    link.symlink_to(secret)

    with pytest.raises(BuildFailed, match="cannot be read"):
        environments._read(link)
    write_untrusted(link, "new")

    assert secret.read_text() == "private"
    assert link.read_text() == "new"


@greened
def test_a_step_says_its_output_a_bounded_line_at_a_time_and_why_it_fails(world: World) -> None:
    said: list[str] = []
    code = "print('one'); print('x' * 20_000); import sys; sys.stderr.write('two')"

    reason = steps.execute(
        [sys.executable, "-c", code], world.tmp_path, {}, lambda level, message: said.append(message)
    )

    assert reason is None
    assert {said[0], said[-1]} == {"one", "two"}
    assert max(map(len, said)) == steps.LINE_BYTES
    assert sum(map(len, said)) == 20_006

    def reason_of(code: str) -> str | None:
        return steps.execute([sys.executable, "-c", code], world.tmp_path, {}, lambda level, message: None)

    assert reason_of("raise ValueError('seven')") == "ValueError: seven"
    assert reason_of("import os; os._exit(7)") == "the step ended with 7"
    assert reason_of("import os; os.kill(os.getpid(), 9)") == "the step was killed by SIGKILL"


def test_the_reason_of_a_failure_is_one_line_that_is_whole_until_secrets_in_it_are_masked() -> None:
    output = ["warning: x", "error: No solution found", "  cause: Because a", "  cause: and b", "", "hint: c"]
    assert steps.cause(output) == "No solution found: Because a: and b"
    assert steps.cause(["first", "ValueError: boom", ""]) == "ValueError: boom"
    assert steps.cause([]) == ""
    assert steps.cause(["error: " + "x" * 2_000 + "a-long-password"]).endswith("xa-long-password")

    trace = 'Traceback (most recent call last):\n  File "a.py", line 1, in <module>\n    f()\n    ^^^\n'
    message = "RuntimeError: Form data requires a package.\nInstall it with:\n\n  pip install a-package\n"
    chained = f"{trace}KeyError: 1\n\nDuring handling of this:\n\n{trace}ValueError: two"
    for text, summary in (
        (f"./a.py failed\n{trace}{message}", "./a.py failed: RuntimeError: Form data requires a package."),
        (f"./a.py failed\n{chained}", "./a.py failed: ValueError: two"),
        ("no graphs\n  what is there\n  and that", "no graphs: and that"),
        (
            "./a.ts failed\nTypeError: x\n    at f (/p/a.ts:1:2)\n    at async file:///p/b.ts:3:4",
            "./a.ts failed: TypeError: x",
        ),
        ("one line\n", "one line"),
        ("", "failed"),
    ):
        assert builder.summary(text) == summary


@greened
def test_a_step_that_takes_too_much_is_ended(world: World) -> None:
    hoard = "x = bytearray(200 * 2**20); import time; time.sleep(300)"
    fill = "[open(str(n), 'wb').write(bytes(10**5)) for n in range(20)]; import time; time.sleep(300)"

    hide = """
import os, time
held = [open(str(number), "wb", 0) for number in range(20)]
for file in held:
    os.unlink(file.name)
    file.write(bytes(10**5))
time.sleep(300)
"""

    def reason(code: str) -> str | None:
        for path in world.tmp_path.iterdir():
            path.unlink()
        return steps.execute([sys.executable, "-c", code], world.tmp_path, {}, lambda level, message: None)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(steps, "WATCH_SECONDS", 0.05)
        patch.setattr(steps, "MAX_MEMORY_BYTES", 100 * 2**20)
        assert reason(hoard) == "the step took more than 100 MiB of memory"
        patch.setattr(steps, "MAX_DISK_BYTES", 2**20)
        assert reason(fill) == "the build took more than 1 MiB of disk"
        assert reason(hide) == "the build took more than 1 MiB of disk"


@greened
def test_what_a_step_started_does_not_outlive_it(world: World) -> None:
    for program in ("sleep 300", "setsid sleep 300"):  # the second one leaves the session
        said: list[str] = []

        steps.execute(
            ["/bin/sh", "-c", f'{program} >/dev/null 2>&1 & echo "$!"'],
            world.tmp_path,
            {"PATH": os.environ["PATH"]},
            lambda level, message, said=said: said.append(message),
        )

        wait_until(lambda said=said: not _runs(int(said[0])))


def _runs(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def test_an_archive_is_unpacked_and_modules_compiled_where_nothing_of_the_project_is_run() -> None:
    argv = environments.unpack_command(Path("/r/a.tar.gz"), Path("/r/project"))

    assert argv[argv.index("-m") :] == ["-m", "workers.builder.unpack", "/r/a.tar.gz", "/r/project"]
    assert "-P" in argv

    argv = toolchain.compile_bytecode(Path("/usr/bin/python3"), [Path("/r/env")])

    assert argv[0] == "/usr/bin/python3"
    assert {"-I", "-S"} < set(argv[:4])
    assert argv[-1] == "/r/env"

    assert host_command.graph_host_command(Path("/r/env/bin/python"), Path("/app/graph_host"), threads=8) == [
        *("/r/env/bin/python", "/app/graph_host", "--socket", "{socket}", "--threads", "8")
    ]


# Starting a graph host


def test_a_host_gets_the_allowed_variables_and_what_the_project_configures(tmp_path: Path) -> None:
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

    command = host_command.host_command(settings, made, {"API_KEY": "k", "COLOUR": "blue"})

    assert set(command.env) == {
        *("PATH", "LANG", "HTTPS_PROXY", "HOME", "VIRTUAL_ENV", "GRAPH_HOST_CONFIG", "MALLOC_ARENA_MAX"),
        *("PYTHONUNBUFFERED", "PYTHONDONTWRITEBYTECODE", "API_KEY", "COLOUR"),
    }
    assert command.env["COLOUR"] == "blue", "a secret goes over the file"
    assert command.env["HOME"] == str(workspace.home)
    assert command.env["PATH"] == f"{workspace.env}/bin:{packages}/bin:/usr/bin"
    assert command.cwd == str(workspace.project)
    least = {
        "graphs": {"agent": {"path": "./agent.py:graph", "description": None}},
        "paths": [],
        "store": {},
        "inspect": False,
        "auth": None,
        "http": None,
        "replay": None,
        "secrets": ["API_KEY", "COLOUR"],
    }
    assert json.loads(command.env["GRAPH_HOST_CONFIG"]) == least

    more = dataclasses.replace(
        made.manifest,
        auth={"path": "./a.py:auth", "cache_keys": ["x"]},
        http={"app": "./a.py:app", "middleware_order": "auth_first"},
        checkpointer={"ttl": {"default_ttl": 5}, "serde": {"allowed_msgpack_modules": [["a", "State"]]}},
    )
    command = host_command.host_command(settings, dataclasses.replace(made, manifest=more), {})
    assert json.loads(command.env["GRAPH_HOST_CONFIG"]) == {
        **least,
        "secrets": [],
        "auth": {"path": "./a.py:auth"},
        "http": {"app": "./a.py:app", "middleware_order": "auth_first"},
        "allowed_msgpack_modules": [["a", "State"]],
    }


def test_no_host_has_to_compile_the_package_that_it_is_made_of(tmp_path: Path) -> None:
    package = tmp_path / "graph_host"
    shutil.copytree(host_command.GRAPH_HOST, package, ignore=shutil.ignore_patterns("__pycache__"))

    host_command.keep_bytecode(Interpreter(Path(sys.executable), HERE), package)

    modules = list(package.rglob("*.py"))
    assert modules
    assert [path for path in modules if not Path(importlib.util.cache_from_source(str(path))).exists()] == []
