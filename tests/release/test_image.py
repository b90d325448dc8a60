"""The steps of deploy/Dockerfile, run in an empty folder. The result is started by a user who may write only data.

No image can be built here. /src and /opt are subfolders of that folder, and a virtual environment stands for the base.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

import httpx
import pytest

from cli.machine import embedded
from cli.machine.procfile import PROJECT
from tests.support import dockerfile
from tests.support.installed import names_checkout, run
from tests.support.servers import valkey_url
from tests.support.stack import free_port, heed_signals
from tests.support.waiting import wait_until

ARGUMENTS, (BUILD, FINAL) = dockerfile.read(PROJECT / "deploy" / "Dockerfile")
NOT_HERE = {
    "uv python install": "fetches interpreters from outside the package index",
    "apt-get": "changes the machine",
    "useradd": "changes the machine",
    "install -d -o": "gives a folder away, which only root may: the test does it where it is root",
}
STOP_SECONDS = 180
NOBODY = 65534


class Image:
    """Files that the steps create, below a root folder."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.base = root / "base"  # Python and pip of the base image
        self.left_out: set[str] = set()
        run([python_of_everybody(root / "python"), "-m", "venv", self.base])
        for step in BUILD.instructions:
            if step.word == "COPY":
                self._copy(step.words)
            elif step.word == "RUN":
                self._run(step.text)
        self.left_out |= {name for step in FINAL.all("RUN") for name in NOT_HERE if name in step.text}

    def here(self, text: str) -> str:
        """Move the folders in a text of the Dockerfile below the root folder."""
        return re.sub(r"(?<![\w.])(?=/(?:src|opt)\b)", str(self.root), text)

    def _copy(self, words: list[str]) -> None:
        ignored = (PROJECT / ".dockerignore").read_text().splitlines()
        sources = [PROJECT / word for word in words[:-1]]
        for path in [found for source in sources for found in (source, *source.rglob("*"))]:
            name = str(path.relative_to(PROJECT))
            if path.is_file() and dockerfile.lets_through(ignored, name):
                target = self.root / "src" / name
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(path, target)

    def _run(self, text: str) -> None:
        reasons = {name for name in NOT_HERE if name in text}
        self.left_out |= reasons
        if reasons:
            return
        outside = {name: value for name, value in os.environ.items() if not names_checkout(value)}
        own = {"PATH": f"{self.base}/bin:{os.defpath}", **BUILD.variables}
        run(["/bin/sh", "-ec", self.here(text)], cwd=self.root / "src", env=outside | own)

    @property
    def state(self) -> dict[str, float]:
        """Modification time of each installed file."""
        return {str(path): path.lstat().st_mtime for path in (self.root / "opt").rglob("*")}


@pytest.fixture(scope="module")
def image() -> Iterator[Image]:
    with tempfile.TemporaryDirectory(prefix="runyard-") as folder:
        os.chmod(folder, 0o755)
        made = Image(Path(folder))
        run(["chmod", "-R", "a-w", made.root / "opt"])
        yield made
        run(["chmod", "-R", "u+w", made.root / "opt"])


@pytest.fixture
def data(image: Image) -> Path:
    """The only folder that the service may write, closed to other users."""
    folder = image.root / "data"
    folder.mkdir(mode=0o700)
    if user() is not None:
        os.chown(folder, NOBODY, NOBODY)
    return folder


def python_of_everybody(folder: Path) -> Path:
    """Return this Python, or a copy of it if other users cannot enter its folder."""
    ours = Path(sys.base_prefix) / "bin" / Path(sys.executable).resolve().name
    if all(parent.stat().st_mode & 0o001 for parent in ours.resolve().parents):
        return ours
    left_out = shutil.ignore_patterns("test", "tests", "site-packages", "__pycache__")
    shutil.copytree(sys.base_prefix, folder, symlinks=True, ignore=left_out)
    return folder / "bin" / ours.name


def user() -> int | None:
    """Return the id of another user if this process runs as root."""
    return NOBODY if os.geteuid() == 0 else None


def started(argv: list[str], variables: Mapping[str, str], data: Path, log: Path) -> subprocess.Popen[bytes]:
    with log.open("wb") as out:
        return subprocess.Popen(
            argv,
            cwd=data,
            env=dict(variables),
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            start_new_session=True,
            preexec_fn=heed_signals,
            user=user(),
            group=user(),
            extra_groups=None if user() is None else [],
        )


def answers(port: int) -> bool:
    try:
        return httpx.get(f"http://127.0.0.1:{port}/ok?ready=1").status_code == 200
    except httpx.TransportError:
        return False


def test_all_steps_run_but_those_that_need_another_machine(image: Image) -> None:
    programs = {path.name for path in (image.root / "opt" / "runyard" / "bin").iterdir()}

    assert image.left_out == set(NOT_HERE)
    assert {"runyard", "python", "gunicorn", "celery", "uv"} <= programs
    [modules] = (image.root / "opt" / "runyard").glob("lib/python3.*/site-packages/runyard")
    assert (modules / "app" / "web" / "static" / "console" / "index.html").is_file()
    [about] = modules.parent.glob("runyard-*.dist-info")
    assert {path.name for path in (about / "licenses").iterdir()} == {"LICENSE", "NOTICE"}
    assert (modules.parent / "opentelemetry" / "exporter" / "otlp" / "proto" / "http").is_dir()
    assert list((modules / "app" / "web").rglob("*.pyc")), "what cannot be written later is compiled now"


def test_its_command_serves_for_a_user_who_can_only_write_the_data(image: Image, data: Path) -> None:
    before = image.state
    first, second = free_port(), free_port()
    given = {
        **FINAL.variables,
        "PATH": f"{image.here('/opt/runyard/bin')}:{os.defpath}",
        "HOME": str(data),
        "LD_LIBRARY_PATH": str(
            image.root / "python" / "lib"
        ),  # a copied Python otherwise searches its old folder
        "RUNYARD_DATA_DIR": str(data),
        "RUNYARD_LISTEN_HOST": "127.0.0.1",
        "RUNYARD_PORT": str(first),
    }
    servers = {
        "DATABASE_URL": embedded.postgres_url(data),
        "RUNYARD_ENCRYPTION_KEYS_FILE": str(data / "secret.key"),
        "RUNYARD_API_KEY_FILE": str(data / "admin.key"),
        "RUNYARD_PORT": str(second),
    }
    runyard = image.here("/opt/runyard/bin/runyard")
    up_log, web_log = image.root / "up.log", image.root / "web.log"
    up = started([runyard, "up"], given, data, up_log)
    web: subprocess.Popen[bytes] | None = None
    try:
        wait_until(lambda: answers(first) or up.poll() is not None, 120, what="the service to be ready")
        assert up.poll() is None, up_log.read_text()
        command = json.loads(FINAL.all("CMD")[0].text)
        assert command[0] == Path(runyard).name
        variables = {**given, **servers, "REDIS_URL": valkey_url(data)}
        web = started([runyard, *command[1:]], variables, data, web_log)
        wait_until(lambda: answers(second) or web.poll() is not None, 60, what="another web process")
        assert web.poll() is None, web_log.read_text()
        web.terminate()
        assert web.wait(STOP_SECONDS) == 0, web_log.read_text()
    finally:
        if web is not None:
            web.kill()
            web.wait()
        up.send_signal(signal.SIGINT)
        code = up.wait(STOP_SECONDS)
    assert code == 0, up_log.read_text()
    assert image.state == before
