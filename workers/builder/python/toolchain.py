"""The tools that create an environment: the package installer uv, and the Python interpreters on this machine.

This module builds uv's command lines and environment variables, and parses its output. `installer.py` runs the commands.
Each function in the section Commands returns the command that does what its docstring says.
"""

from __future__ import annotations

import functools
import hashlib
import struct
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import orjson
from uv import find_uv_bin

from shared.errors import BuildFailed
from shared.settings import Settings
from workers.builder.config.dependencies import PipConfig

NO_DOWNLOADS = {"UV_PYTHON_DOWNLOADS": "never"}  # of interpreters
# Without it uv warns in each build log that lock files are experimental.
PYLOCK = ("--preview-features", "pylock")
REFRESH = "--refresh"  # revalidate cached index pages
INSTALLER_PREFIXES = ("UV_", "PIP_", "NPM_")
UNSATISFIED = "No solution found"  # in a line of output: no set of versions satisfies the requirements
# Keys of `[tool.uv]` and `[tool.uv.pip]` that determine where packages come from.
ORIGINS = ("index", "sources", "index-url", "extra-index-url", "find-links")
FIND_SECONDS = 30
PRINT_BASE = "import os, sys; print(os.path.realpath(sys._base_executable))"
HERE = f"{sys.version_info[0]}.{sys.version_info[1]}"


def program() -> Path:
    """Return the path of the uv executable."""
    return Path(find_uv_bin())


# Commands


def create_environment(env: Path, python: Path) -> list[str]:
    """Create an empty virtual environment."""
    return _uv("venv", "--quiet", "--python", str(python), "--no-project", str(env))


def resolve(inputs: Sequence[Path], output: Path, python: Path, index: PipConfig | None) -> list[str]:
    """Resolve requirements files to exact versions and write them as a `pylock.toml`."""
    return _uv(
        "pip", "compile", "--quiet", "--no-header", "--format", "pylock.toml", "--python", str(python),
        "--output-file", str(output), *_index(index), *map(str, inputs),
    )  # fmt: skip


def export(root: Path, package: str, output: Path, python: Path) -> list[str]:
    """Export the versions that a workspace's lock file lists for one package, without local packages."""
    return _uv(
        "export", "--quiet", "--frozen", "--no-dev", "--no-emit-workspace", "--no-hashes", "--no-header",
        "--no-annotate", "--directory", str(root), "--package", package, "--python", str(python),
        "--output-file", str(output),
    )  # fmt: skip


def install_wheels(requirements: Path, env_python: Path) -> list[str]:
    """Install exactly the pinned wheels, as hard links into the cache. Builds nothing."""
    return _uv(
        "pip", "install", "--python", str(env_python), "--link-mode", "hardlink", "--no-deps",
        "--no-build", "--require-hashes", *PYLOCK, "--requirement", str(requirements),
    )  # fmt: skip


def install_built(
    requirements: Path | None, directories: Sequence[Path], env_python: Path, index: PipConfig | None
) -> list[str]:
    """Install requirements that may need to be built, and local directories as editable packages."""
    listed = [] if requirements is None else ["--requirement", str(requirements)]
    editable = [word for directory in directories for word in ("--editable", str(directory))]
    return _uv(
        "pip", "install", "--python", str(env_python), "--link-mode", "copy", "--no-deps",
        *_index(index), *listed, *editable,
    )  # fmt: skip


def list_pythons(version: str) -> list[str]:
    """List the interpreters of a version on this machine as JSON, including those that uv has installed."""
    return _uv("python", "list", "--only-installed", "--no-config", "--output-format", "json", version)


def _uv(*arguments: str) -> list[str]:
    return [str(program()), *arguments]


def _index(index: PipConfig | None) -> list[str]:
    if index is None:
        return []
    argv = [] if index.index_url is None else ["--index-url", index.index_url]
    for url in index.extra_index_urls:
        argv += ["--extra-index-url", url]
    for link in index.find_links:
        argv += ["--find-links", link]
    return argv


# Variables


def variables(passed_on: Mapping[str, str], cache: Path) -> dict[str, str]:
    """Return uv's environment variables, in addition to those that are passed on from the operator."""
    variables = {
        **NO_DOWNLOADS,
        "UV_CACHE_DIR": str(cache),
        "UV_NO_CONFIG": "1",  # only the operator and pip_config_file determine where packages come from
        "UV_NO_PROGRESS": "1",
    }
    if "PIP_INDEX_URL" in passed_on and "UV_DEFAULT_INDEX" not in passed_on:
        variables["UV_INDEX_URL"] = passed_on.get("UV_INDEX_URL", passed_on["PIP_INDEX_URL"])
    if "PIP_CERT" in passed_on:
        variables["SSL_CERT_FILE"] = passed_on.get("SSL_CERT_FILE", passed_on["PIP_CERT"])
    return variables


def without_variables(env: Mapping[str, str]) -> dict[str, str]:
    """Return environment variables without those for package installers."""
    return {name: value for name, value in env.items() if not name.startswith(INSTALLER_PREFIXES)}


# Answers, errors and files


def pythons(answer: bytes, version: str) -> Iterator[str]:
    """Yield the paths of CPython interpreters of a version from the output of `list_pythons`, the best first."""
    for python in orjson.loads(answer):
        if python["implementation"] == "cpython" and python["version"].startswith(f"{version}."):
            yield python["path"]


def versions(answer: bytes) -> set[str]:
    """Return the versions of CPython interpreters from the output of `list_pythons`."""
    return {python["version"] for python in orjson.loads(answer) if python["implementation"] == "cpython"}


def is_redirected_by(pyproject: bytes) -> bool:
    """Whether a `pyproject.toml` tells uv where packages come from. Returns True if the file cannot be parsed."""
    try:
        table = tomllib.loads(pyproject.decode())["tool"]["uv"]
        return any(table.get(key) or table.get("pip", {}).get(key) for key in ORIGINS)
    except KeyError:
        return False
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, TypeError, AttributeError):
        return True


# Interpreters


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


def find_interpreter(settings: Settings, version: str | None) -> Interpreter:
    """Return the interpreter of this version; without a version, the server's own. Raises BuildFailed."""
    if version is None or version == HERE:
        return Interpreter(Path(sys.base_prefix) / "bin" / f"python{HERE}", HERE)
    path = _installed(version, settings.passed_on.get("PATH", ""))
    if path is None:
        raise BuildFailed(
            "configuration", f"python_version: {version} is not installed on this server, which has {HERE}"
        )
    return Interpreter(path, version)


def compile_bytecode(python: Path, folders: Sequence[Path]) -> list[str]:
    """Return the command that compiles every module in the folders to bytecode, as far as possible."""
    # Without `site`: the files in the folders must not run.
    return [str(python), "-I", "-S", "-m", "compileall", "-qq", *map(str, folders)]


def is_compiled(version: str, folder: Path) -> bool:
    """Whether every module in a folder has bytecode for this version of Python that is as new as its source."""
    return all(_has_bytecode(version.replace(".", ""), path) for path in folder.rglob("*.py"))


def _has_bytecode(tag: str, source: Path) -> bool:
    """Compare the source's time and size with the header of the bytecode, as Python does when it imports a module."""
    bytecode = source.parent / "__pycache__" / f"{source.stem}.cpython-{tag}.pyc"
    found = source.stat()
    with suppress(OSError), bytecode.open("rb") as file:
        stamp = struct.pack("<III", 0, int(found.st_mtime) & 0xFFFFFFFF, found.st_size & 0xFFFFFFFF)
        return file.read(16)[4:] == stamp
    return False


@functools.cache
def _installed(version: str, search_path: str) -> Path | None:
    """Return a working interpreter of this version; None if there is none. Searches only once."""
    env = {"PATH": search_path}
    for python in pythons(output_of(list_pythons(version), env) or b"[]", version):
        # An entry of the search path may be a script that starts the actual interpreter.
        if base := output_of([python, "-I", "-c", PRINT_BASE], env):
            return Path(base.decode().strip())
    return None


def output_of(argv: list[str], env: dict[str, str]) -> bytes | None:
    """Return the standard output of uv or an interpreter; None if the command fails. `env`: its additional variables."""
    env = {**env, "HOME": str(Path.home()), **NO_DOWNLOADS}
    try:
        done = subprocess.run(argv, env=env, capture_output=True, timeout=FIND_SECONDS, check=False, cwd="/")
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 else None
