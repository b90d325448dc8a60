"""The Python interpreters of this machine that an environment may be made with."""

from __future__ import annotations

import functools
import hashlib
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from shared.errors import BuildFailed
from shared.settings import Settings
from workers.builder import uv

FIND_SECONDS = 30
PRINT_BASE = "import os, sys; print(os.path.realpath(sys._base_executable))"
HERE = f"{sys.version_info[0]}.{sys.version_info[1]}"


@dataclass(frozen=True)
class Interpreter:
    """A Python, outside of any environment."""

    path: Path
    version: str  # major.minor

    @property
    def prefix(self) -> Path:
        """The folder it needs to run."""
        return self.path.resolve().parent.parent

    @property
    def tag(self) -> str:
        """Tells apart what may not be shared between two."""
        build = f"{self.path.resolve()} {sys.version if self.version == HERE else self.version}"
        return f"cp{self.version.replace('.', '')}-{hashlib.sha256(build.encode()).hexdigest()[:8]}"


def find(settings: Settings, version: str | None) -> Interpreter:
    """The interpreter of this version, the server's own when there is no wish; raises BuildFailed."""
    if version is None or version == HERE:
        return Interpreter(Path(sys.base_prefix) / "bin" / f"python{HERE}", HERE)
    path = _installed(version, settings.passed_on.get("PATH", ""))
    if path is None:
        raise BuildFailed(
            "configuration",
            f"python_version: {version} is not installed on this server, which has {HERE}",
        )
    return Interpreter(path, version)


@functools.cache
def _installed(version: str, search_path: str) -> Path | None:
    """An interpreter of this version that works; looked for once."""
    env = {"PATH": search_path, "HOME": str(Path.home()), **uv.NO_DOWNLOADS}
    for python in uv.pythons(_output(uv.list_pythons(version), env) or b"[]", version):
        # what a search path names may be a script that starts another one
        if base := _output([python, "-I", "-c", PRINT_BASE], env):
            return Path(base.decode().strip())
    return None


def _output(argv: list[str], env: dict[str, str]) -> bytes | None:
    """The standard output of a command; None when it fails."""
    try:
        done = subprocess.run(argv, env=env, capture_output=True, timeout=FIND_SECONDS, check=False, cwd="/")
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 else None
