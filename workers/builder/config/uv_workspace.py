"""The `source` key of a langgraph.json, `{"kind": "uv"}`: the package of a uv workspace to deploy, from its lock file.

This module only reads `pyproject.toml` files and `uv.lock` as data. Every path must stay inside the archive.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

from workers.builder.config.fields import refused
from workers.builder.source_tree import SourceTree, plain_path

PYPI = "https://pypi.org/simple"
# Keys of a locked package's `source` that name a local path.
LOCAL = ("editable", "virtual", "directory", "path")


@dataclass(frozen=True)
class LockedPackage:
    """A package of a uv workspace, to be installed with the versions of the workspace's lock file."""

    root: PurePosixPath
    package: str
    packages: tuple[PurePosixPath, ...]  # local packages: dependencies first, the package itself last
    is_from_public_index: bool  # the lock names no index but PyPI, which the operator's index may replace


def read(tree: SourceTree, source: Mapping[str, str] | None) -> LockedPackage | None:
    """Return the package to install, None if `source` is not set. Raises BuildFailed, naming the key."""
    if source is None:
        return None
    root = tree.inside(source.get("root") or ".", "source.root:")  # the workspace's directory
    for name in ("pyproject.toml", "uv.lock"):
        if not tree.is_file(root / name):
            raise refused(
                f"source.root: '{root}' holds no {name}; when it lies above the configuration file, the whole"
                " workspace must be in the archive"
            )
    members = _members(tree, root)
    package = _target(members, tree.directory, root, source.get("package"))
    lock = _toml(tree, root / "uv.lock")
    packages = _with_local_dependencies(lock, root, members, package)
    for path in packages:
        if _toml(tree, path / "pyproject.toml").get("tool", {}).get("uv", {}).get("package") is False:
            raise refused(f"source: '{path}' has tool.uv.package = false and cannot be installed")
    return LockedPackage(root, package, packages, _is_of_public_index(lock))


def normalized(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _members(tree: SourceTree, root: PurePosixPath) -> dict[str, PurePosixPath]:
    """Return the directories of the workspace's packages by normalized package name. Raises BuildFailed."""
    config = _toml(tree, root / "pyproject.toml")
    members: dict[str, PurePosixPath] = {}
    paths = [root] if config.get("project", {}).get("name") else []
    workspace = config.get("tool", {}).get("uv", {}).get("workspace", {})
    excluded = _matching(tree, root, workspace.get("exclude", []))
    paths += sorted(_matching(tree, root, workspace.get("members", [])) - excluded - {root})
    for path in paths:
        name = _toml(tree, path / "pyproject.toml").get("project", {}).get("name")
        if not isinstance(name, str):
            raise refused(f"source: '{path}/pyproject.toml' has no project.name")
        other = members.setdefault(normalized(name), path)
        if other != path:
            raise refused(f"source: '{other}' and '{path}' are both named {name!r}")
    return members


def _matching(tree: SourceTree, root: PurePosixPath, patterns: Any) -> set[PurePosixPath]:
    """Return the directories with a `pyproject.toml` that match a pattern.

    Raises BuildFailed for a pattern that leads outside the workspace root.
    """
    if not isinstance(patterns, list) or not all(isinstance(pattern, str) for pattern in patterns):
        raise refused("source: the members of the workspace must be an array of strings")
    directories: set[PurePosixPath] = set()
    for pattern in patterns:
        if pattern.startswith("/") or ".." in PurePosixPath(pattern).parts or not pattern:
            raise refused(f"source: the workspace member {pattern!r} leads outside the root")
        for path in (tree.root / root).glob(pattern):
            if (path / "pyproject.toml").is_file():
                directories.add(PurePosixPath(path.relative_to(tree.root)))
    return directories


def _target(
    members: Mapping[str, PurePosixPath], directory: PurePosixPath, root: PurePosixPath, name: str | None
) -> str:
    if not members:
        raise refused(f"source.root: '{root}' holds no package: neither a project.name nor workspace members")
    if name is not None:
        if normalized(name) not in members:
            raise refused(f"source.package: there is no {name!r}; there are {', '.join(sorted(members))}")
        return normalized(name)
    if len(members) == 1:
        return next(iter(members))
    around = [
        (len(path.parts), name)
        for name, path in members.items()
        if directory.is_relative_to(path) and (path != root or directory == root)
    ]
    if not around:
        raise refused(f"source.package: name the one to deploy: {', '.join(sorted(members))}")
    return max(around)[1]


def _with_local_dependencies(
    lock: Mapping[str, Any], root: PurePosixPath, members: Mapping[str, PurePosixPath], target: str
) -> tuple[PurePosixPath, ...]:
    """Return the directories of the local packages that the target depends on, then the target's own.

    Raises BuildFailed for a local package outside the workspace, and for an unreadable lock file.
    """
    locked = {entry.get("name"): entry for entry in lock.get("package", []) if isinstance(entry, dict)}
    if target not in locked:
        raise refused(f"source.root: uv.lock does not know {target!r}: run `uv lock`")
    ordered: list[PurePosixPath] = []
    seen: set[str] = set()

    def visit(name: str) -> None:
        entry = locked.get(name)
        if entry is None or name in seen:
            return
        seen.add(name)
        local = next((entry["source"][key] for key in LOCAL if key in entry.get("source", {})), None)
        for dependency in entry.get("dependencies", []):
            visit(dependency["name"])
        if local is None:
            return
        if members.get(name) != plain_path(root / local):
            raise refused(
                f"source: the local package {name!r} at {local!r} is not a package of the workspace"
            )
        ordered.append(members[name])

    try:
        visit(target)
    except (KeyError, TypeError, AttributeError) as error:
        raise refused("source.root: uv.lock cannot be read") from error
    return tuple(ordered)


def _is_of_public_index(lock: Mapping[str, Any]) -> bool:
    registries = {entry.get("source", {}).get("registry") for entry in lock.get("package", [])}
    return {registry.rstrip("/") for registry in registries - {None}} <= {PYPI}


def _toml(tree: SourceTree, path: PurePosixPath) -> dict[str, Any]:
    try:
        return tomllib.loads(tree.content(path).decode())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise refused(f"source: {path} is not valid TOML: {error}") from error
