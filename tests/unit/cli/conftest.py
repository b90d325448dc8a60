"""A scripted control plane, an isolated working directory, and services to back up and restore."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from cli.backups import keys
from shared.infra import encryption, postgres
from tests.support import control_plane as fake
from tests.support.backups import KEY, PASSPHRASE, Service, fill, text_of
from tests.support.control_plane import ControlPlane
from tests.support.databases import fresh

FOREIGN = (
    "RUNYARD_API_KEY RUNYARD_URL RUNYARD_ORG RUNYARD_CONTEXT RUNYARD_LISTEN_HOST RUNYARD_HOST RUNYARD_PORT"
    " LANGGRAPH_HOST_URL LANGGRAPH_HOST_API_KEY LANGSMITH_API_KEY LANGCHAIN_API_KEY LANGSMITH_TENANT_ID"
    " LANGSMITH_DEPLOYMENT_NAME"
).split()


@pytest.fixture
def nowhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Remove all variables and files from which the command line would find a service. Shorten its pauses."""
    for name in FOREIGN:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("RUNYARD_DATA_DIR", str(tmp_path / "data"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setattr("cli.client.client.PAUSE_SECONDS", 0.01)
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


@pytest.fixture(scope="module")
def pristine(database: str, migrated: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """A service with the rows of `fill`, and a backup of it. Tests must not change it."""
    before = encryption._cipher, encryption._first, keys.COST["n"]
    keys.COST["n"] = 2**4  # of a guess of the passphrase
    folder = tmp_path_factory.mktemp("pristine")
    with fresh(database, template=migrated) as url:
        postgres.connect(url)
        encryption.configure([KEY])
        fill()
        postgres.engine().dispose()
        service = Service(url, folder)
        (folder / "phrase").write_text(PASSPHRASE)
        made = service.runyard("backup", folder / "one.backup", "--passphrase-file", folder / "phrase")
        assert made.exit_code == 0, text_of(made)
        yield service
    encryption._cipher, encryption._first, keys.COST["n"] = before


@pytest.fixture
def source(database: str, pristine: Service, tmp_path: Path) -> Iterator[Service]:
    """A copy of `pristine` that a test may change."""
    with fresh(database, template=pristine.url) as url:
        yield Service(url, tmp_path / "source")


@pytest.fixture
def target(database: str, tmp_path: Path) -> Iterator[Service]:
    """A service whose database has no tables."""
    with fresh(database) as url:
        yield Service(url, tmp_path / "target")


@pytest.fixture
def prepared(database: str, migrated: str, tmp_path: Path) -> Iterator[Service]:
    """A service with empty tables."""
    with fresh(database, template=migrated) as url:
        yield Service(url, tmp_path / "target")


@pytest.fixture
def made(pristine: Service, tmp_path: Path) -> Path:
    """A backup of `pristine` with sealed keys. The passphrase is in the file `phrase` beside it."""
    (tmp_path / "phrase").write_text(PASSPHRASE)
    return Path(shutil.copy(pristine.folder / "one.backup", tmp_path))
