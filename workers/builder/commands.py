"""The argv of each build step. Pure: runs nothing, reads nothing."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from workers.builder.config.manifest import PipConfig

# The graph host needs the library whether or not a project names it.
BASE_REQUIREMENTS = ("langgraph>=1.0.10,<2", "langgraph-checkpoint>=4.1,<5")


def unpack(python: str, archive: Path, target: Path) -> list[str]:
    """The source archive into a new directory."""
    return [python, "-P", "-X", "utf8", "-m", "workers.builder.unpack", str(archive), str(target)]


def create_environment(uv: str, env: Path, python: str) -> list[str]:
    """An empty virtual environment."""
    return [uv, "venv", "--quiet", "--python", python, "--no-project", str(env)]


def resolve(uv: str, inputs: Sequence[Path], output: Path, python: str, index: PipConfig | None) -> list[str]:
    """The exact versions that satisfy the inputs, which are requirement files, as a `pylock.toml`."""
    return [
        uv, "pip", "compile", "--quiet", "--no-header", "--format", "pylock.toml", "--python", python,
        "--output-file", str(output), *_index(index), *map(str, inputs),
    ]  # fmt: skip


def export(uv: str, root: Path, package: str, output: Path, python: str) -> list[str]:
    """What a workspace's lock file says of one package, without the local packages."""
    return [
        uv, "export", "--quiet", "--frozen", "--no-dev", "--no-emit-workspace", "--no-hashes", "--no-header",
        "--no-annotate", "--directory", str(root), "--package", package, "--python", python,
        "--output-file", str(output),
    ]  # fmt: skip


def install_wheels(uv: str, requirements: Path, env_python: Path) -> list[str]:
    """Exactly the pinned wheels: nothing is built, and files are links into the cache."""
    return [
        uv, "pip", "install", "--python", str(env_python), "--link-mode", "hardlink", "--no-deps",
        "--no-build", "--require-hashes", "--requirement", str(requirements),
    ]  # fmt: skip


def install_built(
    uv: str,
    requirements: Path | None,
    directories: Sequence[Path],
    env_python: Path,
    index: PipConfig | None,
) -> list[str]:
    """What may have to be built first, and local directories as editable packages."""
    listed = [] if requirements is None else ["--requirement", str(requirements)]
    editable = [word for directory in directories for word in ("--editable", str(directory))]
    return [
        uv, "pip", "install", "--python", str(env_python), "--link-mode", "copy", "--no-deps",
        *_index(index), *listed, *editable,
    ]  # fmt: skip


def compile_bytecode(python: str, folders: Sequence[Path]) -> list[str]:
    """Bytecode for every module of the folders that can be compiled."""
    # No site: what lies in the folders must not run.
    return [python, "-I", "-S", "-m", "compileall", "-qq", "-j", "2", *map(str, folders)]


# git as a fetcher and nothing else: what a repository or a server brings along has no say.
GIT_RULES = (
    "protocol.allow=never", "protocol.https.allow=always", "protocol.http.allow=always",
    "core.hooksPath=/dev/null", "core.fsmonitor=false", "core.symlinks=false", "fetch.recurseSubmodules=false",
    "submodule.recurse=false", "http.followRedirects=false", "gc.auto=0", "maintenance.auto=false",
    "advice.detachedHead=false", "http.lowSpeedLimit=1000", "http.lowSpeedTime=60",
)  # fmt: skip


def _git(git: str, folder: Path, *rules: str) -> list[str]:
    return [git, "-C", str(folder), *(word for rule in (*GIT_RULES, *rules) for word in ("-c", rule))]


def git_init(git: str, folder: Path) -> list[str]:
    """An empty repository, without the templates of the machine."""
    return [git, "init", "--quiet", "--bare", "--template=", str(folder)]


def git_fetch(git: str, folder: Path, url: str, ref: str, resolved: str) -> list[str]:
    """One commit of a repository; `resolved` says where its host is (`host:port:address,…`)."""
    return [
        *_git(git, folder, f"http.curloptResolve={resolved}"), "fetch", "--quiet", "--depth=1", "--no-tags",
        "--no-recurse-submodules", "--no-write-commit-graph", "--", url, ref,
    ]  # fmt: skip


def git_commit(git: str, folder: Path) -> list[str]:
    """The commit that was fetched."""
    return [*_git(git, folder), "rev-parse", "--verify", "--quiet", "FETCH_HEAD^{commit}"]


def git_archive(python: str, folder: Path, commit: str, target: Path) -> list[str]:
    """A commit's files as a source archive."""
    return [python, "-P", "-X", "utf8", "-m", "workers.builder.git_archive", str(folder), commit, str(target)]


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
