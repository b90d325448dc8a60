"""A control plane that answers from a script, and a folder from which nothing else is found."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import control_plane as fake
from tests.support.control_plane import ControlPlane

FOREIGN = (
    *("RUNYARD_API_KEY", "RUNYARD_URL", "RUNYARD_ORG", "RUNYARD_HOST", "RUNYARD_PORT", "LANGGRAPH_HOST_URL"),
    *(
        "LANGGRAPH_HOST_API_KEY",
        "LANGSMITH_API_KEY",
        "LANGCHAIN_API_KEY",
        "LANGSMITH_TENANT_ID",
        "LANGSMITH_DEPLOYMENT_NAME",
    ),
)


@pytest.fixture
def nowhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Neither the shell's variables nor files of this folder tell where the service is."""
    for name in FOREIGN:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("RUNYARD_DATA_DIR", str(tmp_path / "data"))
    monkeypatch.setattr("cli.api.client.PAUSE_SECONDS", 0.01)
    monkeypatch.setattr("cli.deployments.following.POLL_SECONDS", 0.01)
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def server() -> Iterator[ControlPlane]:
    with fake.serving() as server:
        yield server


@pytest.fixture
def project(tmp_path: Path) -> Path:
    folder = tmp_path / "My App"
    folder.mkdir()
    (folder / "langgraph.json").write_text('{"dependencies": ["."], "graphs": {"agent": "./agent.py:graph"}}')
    (folder / "agent.py").write_text("graph = None\n")
    return folder
