"""Command lines of build steps, except those of the installer.

Each function returns the command that does what the docstring says. The functions themselves run and read nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path


def unpack(python: str, archive: Path, target: Path) -> list[str]:
    """Unpack the source archive into a new directory."""
    return [python, "-P", "-X", "utf8", "-m", "workers.builder.unpack", str(archive), str(target)]


def compile_bytecode(python: str, folders: Sequence[Path]) -> list[str]:
    """Compile every module in the folders to bytecode, as far as possible."""
    # Without `site`: the files in the folders must not run.
    return [python, "-I", "-S", "-m", "compileall", "-qq", "-j", "2", *map(str, folders)]


# Restrict git to fetching: settings, hooks and redirects of a repository or server have no effect.
GIT_RULES = (
    "protocol.allow=never", "protocol.https.allow=always", "protocol.http.allow=always",
    "core.hooksPath=/dev/null", "core.fsmonitor=false", "core.symlinks=false", "fetch.recurseSubmodules=false",
    "submodule.recurse=false", "http.followRedirects=false", "gc.auto=0", "maintenance.auto=false",
    "advice.detachedHead=false", "http.lowSpeedLimit=1000", "http.lowSpeedTime=60",
)  # fmt: skip


def _git(git: str, folder: Path, *rules: str) -> list[str]:
    return [git, "-C", str(folder), *(word for rule in (*GIT_RULES, *rules) for word in ("-c", rule))]


def git_init(git: str, folder: Path) -> list[str]:
    """Create an empty repository, without the machine's templates."""
    return [git, "init", "--quiet", "--bare", "--template=", str(folder)]


def git_fetch(git: str, folder: Path, url: str, ref: str, resolved: str) -> list[str]:
    """Fetch one commit of a repository. `resolved` gives the addresses of its host (`host:port:address,…`)."""
    return [
        *_git(git, folder, f"http.curloptResolve={resolved}"), "fetch", "--quiet", "--depth=1", "--no-tags",
        "--no-recurse-submodules", "--no-write-commit-graph", "--", url, ref,
    ]  # fmt: skip


def git_commit(git: str, folder: Path) -> list[str]:
    """Print the id of the fetched commit."""
    return [*_git(git, folder), "rev-parse", "--verify", "--quiet", "FETCH_HEAD^{commit}"]


def git_subject(git: str, folder: Path, commit: str) -> list[str]:
    """Print the first line of a commit's message."""
    return [*_git(git, folder), "show", "--no-patch", "--no-color", "--format=%s", commit]


def git_archive(python: str, folder: Path, commit: str, target: Path) -> list[str]:
    """Pack a commit's files as a source archive."""
    return [python, "-P", "-X", "utf8", "-m", "workers.builder.git_archive", str(folder), commit, str(target)]


def graph_host(env_python: Path, package: Path, *, threads: int) -> list[str]:
    """Run a graph host. The runner replaces `{socket}` with the file descriptor of the inherited socket."""
    return [str(env_python), str(package), "--socket", "{socket}", "--threads", str(threads)]
