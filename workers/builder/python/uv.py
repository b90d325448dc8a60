"""Knowledge about uv, the package installer: its commands, environment variables, output and error texts.

This module builds command lines and parses output. `installer.py` runs the commands. Each function in the section
Commands returns the command that does what its docstring says.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import orjson
from uv import find_uv_bin

from workers.builder.config.pip_config import PipConfig

NO_DOWNLOADS = {"UV_PYTHON_DOWNLOADS": "never"}  # of interpreters
# Without it uv warns in each build log that lock files are experimental.
PYLOCK = ("--preview-features", "pylock")
REFRESH = "--refresh"  # revalidate cached index pages
OWN_VARIABLES = ("UV_", "PIP_")
UNSATISFIED = "No solution found"  # in a line of output: no set of versions satisfies the requirements
# Keys of `[tool.uv]` and `[tool.uv.pip]` that determine where packages come from.
ORIGINS = ("index", "sources", "index-url", "extra-index-url", "find-links")


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
    return {name: value for name, value in env.items() if not name.startswith(OWN_VARIABLES)}


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
