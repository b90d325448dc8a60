"""The argv of each build step. Pure: runs nothing, reads nothing."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from workers.manifest import PipConfig

# The graph host needs the library whether or not a project names it.
BASE_REQUIREMENTS = ("langgraph>=1.0.10,<2", "langgraph-checkpoint>=4.1,<5")


def unpack(python: str, archive: Path, target: Path) -> list[str]:
    """The source archive into a new directory."""
    return [python, "-P", "-X", "utf8", "-m", "workers.unpack", str(archive), str(target)]


def create_environment(uv: str, env: Path, python: str) -> list[str]:
    """An empty virtual environment."""
    return [uv, "venv", "--quiet", "--python", python, "--no-project", str(env)]


def resolve(uv: str, inputs: Sequence[Path], output: Path, python: str, index: PipConfig | None) -> list[str]:
    """The exact versions that satisfy the inputs, which are requirement files."""
    return [
        uv, "pip", "compile", "--quiet", "--no-header", "--no-annotate", "--python", python,
        "--output-file", str(output), *_index(index), *map(str, inputs),
    ]  # fmt: skip


def install(
    uv: str,
    requirements: Path,
    env_python: Path,
    index: PipConfig | None,
    *,
    link_mode: str,
    compile_bytecode: bool,
) -> list[str]:
    """Exactly the resolved versions."""
    return [
        uv, "pip", "install", "--python", str(env_python), "--link-mode", link_mode, "--no-deps",
        *(["--compile-bytecode"] if compile_bytecode else []), *_index(index),
        "--requirement", str(requirements),
    ]  # fmt: skip


def install_packages(
    uv: str, directories: Sequence[Path], env_python: Path, index: PipConfig | None
) -> list[str]:
    """Local directories as editable packages; what they depend on is installed already."""
    editable = [word for directory in directories for word in ("--editable", str(directory))]
    return [uv, "pip", "install", "--python", str(env_python), "--no-deps", *_index(index), *editable]


def graph_host(env_python: Path, package: Path, *, threads: int) -> list[str]:
    """A graph host; `{socket}` is replaced by the number of the inherited socket."""
    return [str(env_python), str(package), "--socket", "{socket}", "--threads", str(threads)]


def _index(index: PipConfig | None) -> list[str]:
    if index is None:
        return []
    argv = [] if index.index_url is None else ["--index-url", index.index_url]
    for url in index.extra_index_urls:
        argv += ["--extra-index-url", url]
    for link in index.find_links:
        argv += ["--find-links", link]
    return argv
