"""`runyard top`: one refresh as text and as JSON, live output in a terminal, and the keys that end it."""

from __future__ import annotations

import io
import json
import os
import pty
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pytest
from rich.console import Console

from cli.client.client import Client
from cli.operating import top
from tests.support.commands import runyard
from tests.support.control_plane import ControlPlane, D

pytestmark = pytest.mark.usefixtures("nowhere")

POOL = {
    "name": "default", "runners": 1, "draining": 0, "silent": 0, "slots": 100, "hosts": 2, "running": 1, "pending": 3,
    "oldest_wait_seconds": 7.0, "ended_a_minute": 12,
}  # fmt: skip
BUSY = {
    "id": D, "name": "chat\x1b[2J", "status": "READY", "pool": "default", "revision_number": 4,
    "runs_a_minute": 2.34, "success": 100, "failed": 2, "wait_p50": 0.1, "duration_p50": 0.34,
    "duration_p95": 34.2, "running": 1, "waiting": 3, "oldest_wait_seconds": 7.0,
}  # fmt: skip
IDLE = {
    **BUSY, "id": "2", "name": "idle", "revision_number": None, "running": 0, "waiting": 0, "failed": 0,
    "duration_p50": None, "duration_p95": None,
}  # fmt: skip
RUN = {"run_id": "r-1", "thread_id": "t-1", "started_at": "2026-03-04T12:00:00+00:00", "attempt": 2}
NOW = datetime(2026, 3, 4, 12, 5, tzinfo=UTC)


@pytest.fixture
def service(server: ControlPlane) -> ControlPlane:
    server.answers |= {
        "GET /v2/metrics/overview": [(200, {"deployments": [IDLE, BUSY]})],
        "GET /v2/workers": [(200, {"workers": [], "pools": [POOL]})],
        f"GET /v2/deployments/{D}": [
            (
                200,
                {"id": D, "name": "chat", "source_config": {"custom_url": "http://elsewhere.invalid/d/chat"}},
            )
        ],
        "POST /d/chat/runs/search": [(200, [RUN])],
    }
    return server


def called(server: ControlPlane, *options: str) -> str:
    result = runyard(server, "top", *options)
    assert result.exit_code == 0, result.output
    return result.stdout


def test_a_look_as_json_has_all_that_is_shown(service: ControlPlane) -> None:
    found = json.loads(called(service, "--once", "--json"))

    assert set(found) == {"at", "pools", "deployments", "runs"}
    assert found["runs"] == [{"deployment": BUSY["name"], **RUN}]
    assert service.body("POST /d/chat/runs/search") == {"status": ["running"], "limit": 10}

    service.answers["POST /d/chat/runs/search"] = [(404, {"detail": "Not Found"})]

    assert json.loads(called(service, "--once", "--json"))["runs"] == []


def test_a_look_without_a_terminal_is_plain_text_with_the_busiest_first(service: ControlPlane) -> None:
    text = called(service, "--once")

    assert "\x1b" not in text
    lines = [line.split() for line in text.splitlines() if line.strip()]
    assert lines[1][:4] == ["default", "1", "1", "100"]
    assert lines[3] == ["chat�[2J", "default", "v4", "1", "3", "7", "s", "2.3", "2", "0.34", "s", "34", "s"]
    assert lines[4] == ["idle", "default", "-", "0", "0", "-", "2.3", "0", "-", "-"]
    assert lines[6][:3] == ["r-1", "chat�[2J", "t-1"]


def test_runs_are_shown_with_how_long_they_have_run() -> None:
    screen = Console(file=io.StringIO(), width=160)
    found = {"pools": [], "deployments": [], "runs": [{"deployment": "chat", **RUN}]}
    screen.print(top.draw(found, NOW))

    text = screen.file.getvalue()  # type: ignore[attr-defined]
    assert "There are no deployments." in text
    assert text.splitlines()[-1].split() == ["r-1", "chat", "t-1", "5", "min", "2"]


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Replace stdin by a terminal. Yields the descriptor to which a test writes keystrokes."""
    typed, ours = pty.openpty()
    with os.fdopen(ours, "r") as stdin:
        monkeypatch.setattr(sys, "stdin", stdin)
        yield typed
    os.close(typed)


def test_a_key_is_read_without_a_line(terminal: int) -> None:
    with top.keys() as pressed:
        assert pressed(0) == ""
        os.write(terminal, b"q")
        assert pressed(30) == "q"


def test_it_is_live_in_a_terminal_until_q(
    service: ControlPlane, terminal: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    screen = io.StringIO()
    monkeypatch.setattr(top, "console", lambda: Console(file=screen, force_terminal=True, width=160))
    monkeypatch.setattr(top, "LOOK_SECONDS", 0.01)
    service.answers["GET /v2/workers"] *= 3
    asked = top.read
    looks: list[int] = []

    def ask(client: Any) -> dict[str, Any]:
        looks.append(1)
        if len(looks) == 3:
            os.write(terminal, b"q")
        return asked(client)

    monkeypatch.setattr(top, "read", ask)
    with Client(service.url, "k") as client:
        top._live(client)

    assert len(looks) >= 3
    assert "chat�[2J" in screen.getvalue()
