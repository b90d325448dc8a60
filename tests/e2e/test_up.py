"""`runyard up`, `demo`, `deploy` and `keys`, called like a user does."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import httpx
import psutil
import psycopg
import pytest

from cli.machine.procfile import PROJECT
from shared.infra import database_version
from tests.support import namesakes
from tests.support.stack import Stack, free_port
from tests.support.waiting import wait_until


def test_it_runs_every_process_of_the_procfile(stack: Stack) -> None:
    for name in ("web", "runner", "builder", "postgres", "valkey"):
        wait_until(lambda name=name: stack.pids(name), what=name)


def test_it_prepares_the_database(stack: Stack) -> None:
    with psycopg.connect(stack.database_url) as connection:
        row = connection.execute("SELECT version_num FROM alembic_version").fetchone()
    assert row == (database_version.needed(),)


def test_a_second_one_on_the_same_folder_says_so(stack: Stack) -> None:
    second = run_up({**stack.environment, "RUNYARD_PORT": str(free_port())})
    assert second.returncode == 1
    assert f"process {stack.up_pid}" in second.stderr
    assert "RUNYARD_DATA_DIR" in second.stderr


def test_beside_it_the_doctor_finds_everything_as_it_should_be(stack: Stack, tmp_path: Path) -> None:
    ran = subprocess.run(
        [sys.executable, "-m", "cli", "doctor", "--json"],
        cwd=tmp_path,
        env={**stack.environment, "PYTHONPATH": str(PROJECT), "PYTHONSAFEPATH": "1"},
        capture_output=True,
        text=True,
        check=False,
    )

    found = {check["name"]: check["state"] for check in json.loads(ran.stdout)["checks"]}
    assert (ran.returncode, list(tmp_path.iterdir())) == (0, [])
    for name in ("port", "schema", "encryption keys", "eviction", "append-only file", "max_connections"):
        assert found[name] == "ok", ran.stdout


def test_a_port_that_is_taken_is_a_sentence(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        ran = run_up({**os.environ, "RUNYARD_PORT": port, "RUNYARD_DATA_DIR": str(tmp_path)})
    assert ran.returncode == 1
    assert f"Port {port}" in ran.stderr
    assert "RUNYARD_PORT" in ran.stderr


def test_a_database_that_does_not_answer_is_a_sentence(tmp_path: Path) -> None:
    ran = run_up(
        {
            **os.environ,
            "RUNYARD_PORT": str(free_port()),
            "RUNYARD_DATA_DIR": str(tmp_path),
            "DATABASE_URL": "postgresql://nobody@127.0.0.1:9/none",
        }
    )
    assert ran.returncode == 1
    assert "DATABASE_URL" in ran.stderr


def run_up(environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "cli", "up"],
        cwd=PROJECT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_a_key_made_while_it_runs_is_accepted_at_once(stack: Stack) -> None:
    made = stack.cli("keys", "create", "--name", "ci")
    assert "with the role run: it may read and use deployments" in made.stderr
    answer = httpx.get(f"{stack.url}/v2/deployments", headers={"X-Api-Key": made.stdout.strip()})
    assert answer.status_code == 200


@pytest.mark.release
def test_a_demo_shows_events_and_leaves_nothing_also_among_packages_of_our_names(tmp_path: Path) -> None:
    """The first start is killed while it prepares the database. The next one continues."""
    stack = Stack(tmp_path / "data")  # only its environment is used; nothing is started
    namesakes.write(tmp_path / "theirs")
    before = {process.pid for process in psutil.process_iter()}
    folder, environment = tmp_path / "theirs", namesakes.among(stack.environment, tmp_path / "theirs")
    with subprocess.Popen(
        [namesakes.RUNYARD, "demo"], cwd=folder, env=environment, stdout=subprocess.PIPE, text=True
    ) as killed:
        assert killed.stdout is not None
        assert killed.stdout.readline() == "Preparing the database.\n"
        killed.kill()
    ran = subprocess.run(
        [namesakes.RUNYARD, "demo"],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert namesakes.LOADED not in ran.stdout + ran.stderr
    assert "DEPLOYED" in ran.stdout
    assert "messages" in ran.stdout
    assert f"{stack.url}/d/chat" in ran.stdout
    left = [
        process
        for process in psutil.process_iter(["environ"])
        if process.pid not in before and str(tmp_path) in str(process.info["environ"])
    ]
    assert left == []
