"""`runyard up`: the processes that it starts, its port, and the prefix of their output lines."""

from __future__ import annotations

import io
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from cli.errors import CannotStart
from cli.machine import embedded, procfile, serve, up
from cli.machine.supervisor import Lines
from cli.machine.up import run_service
from shared.infra.postgres import MOST_CONNECTIONS
from shared.settings import Settings

RESERVED = 3 + 10  # connections for superusers, and for an operator's own sessions


@pytest.mark.parametrize(("processors", "pairs"), [(1, 1), (2, 1), (7, 1), (8, 2), (12, 3), (128, 3)])
def test_a_machine_gets_a_web_and_a_runner_for_every_four_processors(processors: int, pairs: int) -> None:
    found = dict(procfile.formation_of(Settings.from_env({}), processors))

    assert found == {"web": pairs, "runner": pairs, "builder": 1}
    most = int(embedded.POSTGRES_SETTINGS["max_connections"]) - RESERVED
    assert sum(MOST_CONNECTIONS[name] * number for name, number in found.items()) <= most


def test_what_is_named_is_started_and_developing_takes_one_of_each() -> None:
    settings = Settings.from_env({"RUNYARD_PROCESSES": "runner=5"})

    assert dict(procfile.formation_of(settings, 8)) == {"web": 2, "runner": 5, "builder": 1}

    settings = Settings.from_env({"RUNYARD_DEV_DEPLOYMENT": "app"})

    assert dict(procfile.formation_of(settings, 64)) == {"web": 1, "runner": 1, "builder": 1}

    found = procfile.formation_of(Settings.from_env({}), 8)

    assert Settings.from_env({"RUNYARD_PROCESSES": procfile.formation_text(found)}).processes == found


@pytest.mark.parametrize(("dev", "chooses"), [(None, "--port or RUNYARD_PORT"), ("my-project", "--port")])
def test_a_port_that_is_taken_is_reported_with_what_chooses_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dev: str | None, chooses: str
) -> None:
    monkeypatch.setattr("cli.machine.up.close_memory", lambda: None)  # would affect the tests' process
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        settings = Settings(data_dir=tmp_path / "data", port=port, dev_deployment=dev)
        with pytest.raises(CannotStart, match=rf"Port {port} .* choose another with {chooses}\."):
            run_service(settings, Lines(), lambda settings: None)


def test_a_start_imports_little(tmp_path: Path) -> None:
    """The supervisor keeps what it imports as long as it lives."""
    heavy = ("_hashlib", "_ssl", "httpx", "psycopg", "rich", "typer", "urllib.request")
    script = (
        "import sys; import cli.__main__ as it\n"
        "try: it.main()\nexcept SystemExit as end: code = end.code\n"
        f"print(code, [name for name in {heavy} if name in sys.modules])"
    )
    env = {**os.environ, "RUNYARD_DATA_DIR": str(tmp_path)}
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        done = subprocess.run(
            [sys.executable, "-c", script, "up", "--host", "127.0.0.1", "-p", port],
            cwd=procfile.PROJECT,
            env=env,
            capture_output=True,
            text=True,
        )

    assert done.stdout == "1 []\n"
    assert done.stderr.startswith(f"Error: Port {port} on 127.0.0.1 cannot be used")


@pytest.mark.parametrize("arguments", [["--help"], ["--port"], ["--port", "0"], ["--host", "-p"], ["x"]])
def test_other_arguments_are_left_to_typer(arguments: list[str]) -> None:
    assert up.quick(arguments) is None


def test_options_of_a_start_go_before_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {
        "RUNYARD_PORT": "9000",
        "RUNYARD_HOST": "10.0.0.1",
        "RUNYARD_LISTEN_HOST": "",
    }.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("RUNYARD_URL", raising=False)

    assert serve.settings_for(None, None).url == "http://10.0.0.1:9000"
    assert serve.settings_for(9001, "127.0.0.1").url == "http://127.0.0.1:9001"


def test_each_line_of_what_a_process_says_bears_its_name() -> None:
    out = io.StringIO()

    Lines(out).show("agent", "Traceback:\n  File\n\nValueError")

    assert out.getvalue().splitlines() == [
        f"agent    │ {text}" for text in ("Traceback:", "  File", "", "ValueError")
    ]
