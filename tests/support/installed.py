"""Runyard as a user installs it: from its wheel, in a separate environment without access to the checkout."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import psutil

from cli.machine.procfile import PROJECT
from tests.support import namesakes
from tests.support.stack import Stack

CACHE = (
    PROJECT / ".cache"
)  # of downloads, which all platforms of the suite share; it does not count as part of the checkout
UV = str(Path(sys.executable).with_name("uv"))


def run(argv: Sequence[str | Path], **options: object) -> str:
    """Run a command and return its output. Raises AssertionError with the whole output if it fails."""
    done = subprocess.run(
        list(map(str, argv)),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=300,
        check=False,
        **options,  # type: ignore[call-overload]
    )
    assert done.returncode == 0, f"{argv}: {done.stdout}"
    return done.stdout


def make_dist(target: Path, *, umask: int = 0o022) -> dict[str, bytes]:
    """Run `make dist`. Returns the created files by name."""
    # Assumes that `install` is up to date, because installing packages would disturb the running suite.
    argv = ["make", "--assume-old=install", "dist", f"OUT={target}", f"VENV={sys.prefix}"]
    run(argv, cwd=PROJECT, umask=umask)
    return {path.name: path.read_bytes() for path in sorted(target.glob("runyard-*"))}


class Installed:
    """An environment with the locked dependencies and the wheel."""

    def __init__(self, folder: Path, wheel: Path, *, lock: str = "requirements.lock") -> None:
        self.env = folder / "env"
        run([UV, "venv", "--quiet", "--python", sys.executable, "--no-project", self.env])
        self._uv("pip", "sync", "--require-hashes", PROJECT / lock)
        before = self._names()
        self._uv("pip", "install", "--no-deps", wheel)
        self.added = self._names() - before

    def _uv(self, *arguments: str | Path) -> None:
        run([UV, *arguments[:2], "--quiet", "--python", self.env / "bin" / "python", *arguments[2:]])

    def _names(self) -> set[str]:
        return {path.name for path in (*self.modules.iterdir(), *(self.env / "bin").iterdir())}

    @property
    def modules(self) -> Path:
        return next((self.env / "lib").glob("python3.*")) / "site-packages"

    @property
    def runyard(self) -> str:
        return str(self.env / "bin" / "runyard")


class InstalledStack(Stack):
    """A platform started from an installed wheel, with an example deployed and with packages named like ours nearby."""

    prepares_database = True

    def __init__(self, installed: Installed, folder: Path) -> None:
        super().__init__(folder / "data")
        self._installed = installed
        self._theirs = folder / "theirs"
        namesakes.write(self._theirs)
        namesakes.write(folder / "path")

    @property
    def command(self) -> Sequence[str]:
        return [self._installed.runyard, "demo", "--keep"]

    @property
    def folder(self) -> Path:
        return self._theirs

    @property
    def environment(self) -> dict[str, str]:
        """Environment of a user without a checkout, with packages named like ours on the Python path."""
        places = os.environ.get("PATH", os.defpath).split(os.pathsep)
        own = {
            "PATH": os.pathsep.join(place for place in places if not names_checkout(place)),
            "RUNYARD_CACHE_DIR": str(CACHE),
        }
        without = {name: value for name, value in super().environment.items() if not names_checkout(value)}
        return namesakes.among(without | own, self._theirs.parent / "path")

    def type(self, *arguments: str, more: Mapping[str, str] | None = None) -> str:
        """Run a command of the installed `runyard` and return its output. Raises AssertionError if it fails."""
        return run([self._installed.runyard, *arguments], cwd=self.folder, env={**self.known, **(more or {})})

    @property
    def known(self) -> dict[str, str]:
        return self.environment | {"RUNYARD_URL": self.url, "RUNYARD_API_KEY": self.api_key}


def names_checkout(text: str) -> bool:
    """Return whether the text contains a path of the checkout."""
    return str(PROJECT) in text.replace(str(CACHE), "")


def reached(up: psutil.Process) -> Iterator[str]:
    """Yield every property of a process and its descendants that refers to the checkout, as far as it is readable."""
    for process in (up, *up.children(recursive=True)):
        for look in (process.cmdline, process.cwd, process.environ, process.open_files, process.memory_maps):
            with suppress(psutil.AccessDenied, psutil.NoSuchProcess):
                if names_checkout(found := str(look())):
                    yield f"{process.name()} {look.__name__}: {found}"
