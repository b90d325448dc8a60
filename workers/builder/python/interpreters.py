"""The Python interpreters on this machine that an environment can be created with."""

from __future__ import annotations

import functools
import hashlib
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from shared.errors import BuildFailed
from shared.settings import Settings
from workers.builder.python import uv

FIND_SECONDS = 30
PRINT_BASE = "import os, sys; print(os.path.realpath(sys._base_executable))"
HERE = f"{sys.version_info[0]}.{sys.version_info[1]}"


@dataclass(frozen=True)
class Interpreter:
    """A Python interpreter, outside of any virtual environment."""

    path: Path
    version: str  # major.minor

    @property
    def prefix(self) -> Path:
        """The installation folder, which the interpreter needs to run."""
        return self.path.resolve().parent.parent

    @property
    def tag(self) -> str:
        """A name of this interpreter's build. Files with different tags must not be shared."""
        build = f"{self.path.resolve()} {sys.version if self.version == HERE else self.version}"
        return f"cp{self.version.replace('.', '')}-{hashlib.sha256(build.encode()).hexdigest()[:8]}"


def find(settings: Settings, version: str | None) -> Interpreter:
    """Return the interpreter of this version; without a version, the server's own. Raises BuildFailed."""
    if version is None or version == HERE:
        return Interpreter(Path(sys.base_prefix) / "bin" / f"python{HERE}", HERE)
    path = _installed(version, settings.passed_on.get("PATH", ""))
    if path is None:
        raise BuildFailed(
            "configuration",
            f"python_version: {version} is not installed on this server, which has {HERE}",
        )
    return Interpreter(path, version)


def compile_bytecode(python: Path, folders: Sequence[Path]) -> list[str]:
    """Return the command that compiles every module in the folders to bytecode, as far as possible."""
    # Without `site`: the files in the folders must not run.
    return [str(python), "-I", "-S", "-m", "compileall", "-qq", "-j", "2", *map(str, folders)]


@functools.cache
def _installed(version: str, search_path: str) -> Path | None:
    """Return a working interpreter of this version; None if there is none. Searches only once."""
    env = {"PATH": search_path, "HOME": str(Path.home()), **uv.NO_DOWNLOADS}
    for python in uv.pythons(_output(uv.list_pythons(version), env) or b"[]", version):
        # An entry of the search path may be a script that starts the actual interpreter.
        if base := _output([python, "-I", "-c", PRINT_BASE], env):
            return Path(base.decode().strip())
    return None


def _output(argv: list[str], env: dict[str, str]) -> bytes | None:
    """Return the standard output of a command; None if the command fails."""
    try:
        done = subprocess.run(argv, env=env, capture_output=True, timeout=FIND_SECONDS, check=False, cwd="/")
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 else None
