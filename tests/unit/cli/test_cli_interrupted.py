"""Ctrl-C while something is on its way: a build goes on, a run is cancelled."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import control_plane as fake
from tests.support.control_plane import REVISION, STREAM, ControlPlane, Held, R, deploy_answers, record

PROJECT = Path(__file__).parents[3]
THREAD, RUN = "33333333-3333-4333-8333-333333333333", "44444444-4444-4444-8444-444444444444"


@pytest.fixture
def server() -> Iterator[ControlPlane]:
    with fake.serving() as server:
        yield server


def interrupted(server: ControlPlane, folder: Path, until: str, *arguments: str) -> tuple[int, str]:
    """A command that got Ctrl-C when it had printed `until`: its exit code, and what it printed then."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("RUNYARD_")}
    process = subprocess.Popen(
        [sys.executable, "-m", "cli", *arguments, "--url", server.url, "--api-key", "key"],
        cwd=folder,
        env=environment | {"PYTHONPATH": str(PROJECT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        # what a shell starts in the background ignores Ctrl-C, and hands that down
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    assert process.stdout is not None
    for line in process.stdout:
        if until in line:
            break
    process.send_signal(signal.SIGINT)
    told, _ = process.communicate(timeout=20)
    return process.returncode, told


def test_a_build_goes_on_without_its_deployer(server: ControlPlane, tmp_path: Path) -> None:
    (tmp_path / "langgraph.json").write_text("{}")
    server.answers = deploy_answers(server)
    server.answers[STREAM] = [(200, Held(fake.events(fake.status("BUILDING"))))]
    server.answers[REVISION] = [(200, {"id": R, "status": "BUILDING"})]

    code, told = interrupted(server, tmp_path, "BUILDING after", "deploy")

    assert code == 130
    assert "The build goes on there: `runyard status app`" in told


def test_a_run_is_cancelled_with_its_watcher(server: ControlPlane, tmp_path: Path) -> None:
    stream = Held(fake.events(("metadata", {"run_id": RUN})))
    run = f"/threads/{THREAD}/runs/{RUN}"
    server.more_headers = {"Content-Location": run}
    found = record(source_config={"custom_url": server.url}, active_revision_id=R)
    server.answers = {
        "GET /v2/deployments": [(200, {"resources": [found]})],
        "POST /threads": [(200, {"thread_id": THREAD})],
        f"POST /threads/{THREAD}/runs/stream": [(200, stream)],
        f"POST {run}/cancel": [(200, None)],
        f"GET {run}": [(200, {"status": "interrupted"})],
    }

    code, told = interrupted(server, tmp_path, "metadata", "run", "app", "hi", "-a", "a", "--json")

    assert code == 130
    assert f"POST {run}/cancel" in server.asked
    assert json.loads(told)["data"]["status"] == "interrupted"
