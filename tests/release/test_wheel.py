"""The wheel: reproducible from a commit, with one top-level package, and a complete service without the checkout."""

from __future__ import annotations

import io
import os
import subprocess
import tarfile
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import httpx
import psutil
import pytest

from cli.machine.procfile import PROJECT
from shared import __version__
from tests.support import namesakes
from tests.support.installed import Installed, InstalledStack, make_dist, reached, run
from tests.support.stack import free_port, heed_signals
from tests.support.waiting import wait_until

WHEEL = f"runyard-{__version__}-py3-none-any.whl"
STOP_SECONDS = 180


@pytest.fixture(scope="module")
def place() -> Iterator[Path]:
    """Folder that other users can enter. A service that runs as root executes user code as another user."""
    with tempfile.TemporaryDirectory(prefix="runyard-") as folder:
        os.chmod(folder, 0o755)
        yield Path(folder)


@pytest.fixture(scope="module")
def built(place: Path) -> dict[str, bytes]:
    return make_dist(place / "dist")


@pytest.fixture(scope="module")
def installed(place: Path, built: dict[str, bytes]) -> Installed:
    return Installed(place, place / "dist" / WHEEL)


@pytest.fixture(scope="module")
def platform(place: Path, installed: Installed) -> Iterator[InstalledStack]:
    with InstalledStack(installed, place) as stack:
        yield stack


@contextmanager
def started(
    platform: InstalledStack, env: Mapping[str, str], log: Path, *arguments: str
) -> Iterator[subprocess.Popen[bytes]]:
    """Run a command of the installed program beside the platform. Writes its output to a file."""
    with log.open("wb") as out:
        process = subprocess.Popen(
            [platform.command[0], *arguments],
            cwd=platform.folder,
            env=env,
            stdout=out,
            stderr=out,
            start_new_session=True,
            preexec_fn=heed_signals,
        )
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def test_the_same_commit_gives_the_same_bytes(built: dict[str, bytes], tmp_path: Path) -> None:
    assert set(built) == {WHEEL, f"runyard-{__version__}.tar.gz"}
    assert make_dist(tmp_path / "again", umask=0o077) == built


def test_the_source_has_what_is_named_and_nothing_that_lies_about(built: dict[str, bytes]) -> None:
    with tarfile.open(fileobj=io.BytesIO(built[f"runyard-{__version__}.tar.gz"])) as source:
        found = {Path(name).parts[1] for name in source.getnames()}

    named = {path.name for path in PROJECT.iterdir() if not path.name.startswith(".")} & {
        "bench", "cli", "deploy", "docs", "examples", "shared", "tests", "web", "workers", "Makefile", "Procfile",
        "CHANGELOG.md", "CODE_OF_CONDUCT.md", "CONTRIBUTING.md", "LICENSE", "NOTICE", "README.md", "SECURITY.md",
        "docker-compose.yml", "mkdocs.yml", "pyproject.toml", "requirements.lock", "requirements-cli.lock", "requirements-dev.lock",
    }  # fmt: skip
    assert found == named | {".dockerignore", ".gitignore", "PKG-INFO"}


def test_it_puts_one_name_among_the_packages(installed: Installed) -> None:
    assert installed.added == {"runyard", f"runyard-{__version__}.dist-info"}
    assert {path.name for path in (installed.modules / "runyard").iterdir()} == {
        "__init__.py", "__main__.py", "app",
    }  # fmt: skip


def test_it_brings_the_licence_and_the_notice(installed: Installed) -> None:
    licences = installed.modules / f"runyard-{__version__}.dist-info" / "licenses"

    for name in ("LICENSE", "NOTICE"):
        assert (licences / name).read_bytes() == (PROJECT / name).read_bytes()


def test_it_has_what_serves_and_nothing_of_development(installed: Installed) -> None:
    app = installed.modules / "runyard" / "app"

    assert {path.name for path in app.iterdir()} == {
        "Procfile", "cli", "examples", "shared", "web", "workers",
    }  # fmt: skip
    for name in (
        "web/static/console/index.html",
        "web/static/docs.html",
        "shared/migrations/script.py.mako",
        "workers/node_host/main.mjs",
        "workers/node_host/protocol/writer.mjs",
        "workers/builder/node/tools/package-lock.json",
    ):
        assert (app / name).is_file()
    found = {path.name for path in app.rglob("*")}
    assert not found & {"vendoring", "node_modules", "tests", ".env", ".runyard"}
    ignoring = {path.relative_to(app).parts[0] for path in app.rglob(".gitignore")}
    assert ignoring <= {"examples"}, "a template of `runyard new` may have one"


def test_it_serves_and_nothing_of_it_leads_to_the_checkout(platform: InstalledStack) -> None:
    assert platform.type("--version").strip() == __version__
    platform.type("new", "my-agent")
    platform.type("deploy", "my-agent", "--no-input")
    said = platform.type("run", "my-agent", "Hello from the wheel")

    assert "Hello from the wheel" in said
    assert "messages" in platform.log.read_text(), "the run of the demonstration"
    for page in ("/", "/docs", "/openapi.json", "/o/static/0/console/main.js"):
        assert httpx.get(platform.url + page).status_code == 200, page
    assert list(reached(psutil.Process(platform.up_pid))) == []
    assert namesakes.LOADED not in platform.log.read_text()


def test_the_command_line_alone_deploys_and_runs(platform: InstalledStack, place: Path) -> None:
    light = Installed(place / "light", place / "dist" / WHEEL, lock="requirements-cli.lock")
    environment = {**platform.known, "HOME": str(place)}

    def type_(*arguments: str) -> str:
        return run([light.runyard, *arguments], cwd=place, env=environment)

    assert type_("--version").strip() == __version__
    type_("new", "remote")
    type_("deploy", "remote", "--no-input")
    assert "Hello from afar" in type_("run", "remote", "Hello from afar")
    for arguments in (
        ["keys", "list"],
        ["workers"],
        ["top", "--once"],
        ["logs", "remote"],
        ["threads", "list", "-n", "remote"],
    ):
        type_(*arguments)
    with pytest.raises(AssertionError, match=r"runyard\[server\]"):
        type_("up")


def test_a_process_of_it_is_started_by_its_name(platform: InstalledStack) -> None:
    service = {
        **platform.environment,
        "DATABASE_URL": platform.database_url,
        "REDIS_URL": platform.redis_url,
        "RUNYARD_ENCRYPTION_KEYS_FILE": os.path.relpath(platform.data_dir / "secret.key", platform.folder),
        "RUNYARD_POOL": "wheels",
    }
    platform.type("process", "release", more=service)
    log = platform.folder / "runner.log"
    with started(platform, service, log, "process", "runner") as runner:
        wait_until(lambda: "wheels" in platform.type("workers"), 60, what="the runner of the pool")
        became = " ".join(psutil.Process(runner.pid).cmdline())
        assert "runs.wheels,hosts.wheels" in became
        assert list(reached(psutil.Process(runner.pid))) == []
        runner.terminate()
        assert runner.wait(STOP_SECONDS) == 0, log.read_text()
    assert namesakes.LOADED not in log.read_text()


def test_dev_serves_a_new_project_in_a_folder_like_any_other(platform: InstalledStack, place: Path) -> None:
    platform.type("new", "developed")
    port, log = free_port(), place / "dev.log"
    argv = ("dev", "developed", "--port", str(port), "--no-reload")
    with started(platform, platform.environment, log, *argv) as dev:
        wait_until(lambda: "developed serves." in log.read_text() or dev.poll() is not None, 120)
        assert dev.poll() is None, log.read_text()
        assert httpx.get(f"http://127.0.0.1:{port}/docs").status_code == 200
        found = httpx.post(f"http://127.0.0.1:{port}/assistants/search", json={}).json()
        assert [assistant["graph_id"] for assistant in found] == ["chat"]
        assert list(reached(psutil.Process(dev.pid))) == []
        dev.terminate()
        dev.wait(STOP_SECONDS)
    assert namesakes.LOADED not in log.read_text()
