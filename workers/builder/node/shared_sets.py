"""Shared sets: the packages of an npm lock file, installed once on this machine for all revisions that have this lock.

A set is shared only if its content is that of its name: all packages come from the registry, and the lock file has a
SHA-512 of each. No script is needed to install it, and none is run. The folder holds a `package.json` with nothing but
dependencies, the lock file, and `node_modules`, to which a project has a link. Other sets are installed in the
workspace of each build.
"""

from __future__ import annotations

import hashlib
import os
import platform
import re
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

import orjson

from shared.settings import Settings
from workers.builder.config.javascript import MANAGER_SETTINGS, PACKAGE, NodeProject, lock_content
from workers.builder.node import runtime
from workers.builder.node.resolved import NO_COMMANDS, SCRIPTS, Resolved
from workers.builder.node.runtime import Runtime
from workers.builder.python.packages import Packages
from workers.builder.steps import WriteLine
from workers.builder.workspaces import SourceTree, Workspace
from workers.isolation import disk

STEP = "install"
FOLDER = "node_modules"
PUBLIC_REGISTRY = "https://registry.npmjs.org/"  # npm takes the operator's in its place
NAME = r"(?:@[A-Za-z0-9~-][\w.~-]*/)?[A-Za-z0-9~-][\w.~-]*"
PLACE = re.compile(rf"{FOLDER}/{NAME}(?:/{FOLDER}/{NAME})*", re.ASCII)
INTEGRITY = re.compile(r"sha512-[A-Za-z0-9+/]{86}==")
# Of a package.json, what determines the packages.
DEPENDENCIES = (
    "dependencies", "devDependencies", "optionalDependencies", "peerDependencies", "peerDependenciesMeta",
    "overrides",
)  # fmt: skip
# Packages that work without their install script: it looks for a faster program, or prints something.
SCRIPTLESS = frozenset({"core-js", "core-js-pure", "esbuild", "fsevents", "protobufjs"})


@dataclass(frozen=True)
class SharedSet:
    """A lock file that can be installed for all projects that have it."""

    name: str  # of its folder
    lock_name: str
    lock: bytes
    package: bytes  # the package.json


def of_project(root: Path, project: NodeProject, resolved: Resolved, node: Runtime) -> SharedSet | None:
    """Return the shared set of an unpacked project; None if its packages cannot be shared."""
    tree = SourceTree(root)
    is_plain = resolved.manager == "npm" and resolved.commands == NO_COMMANDS
    if not is_plain or any(tree.is_file(project.root / name) for name in (*MANAGER_SETTINGS, "binding.gyp")):
        return None
    if resolved.lock is not None:
        lock = resolved.lock.encode()
    else:
        lock = lock_content(tree, project.root / resolved.lock_name)
    package = _reduced(tree, project.root)
    if package is None or not _is_fixed(lock):
        return None
    parts = (
        resolved.lock_name.encode(), lock, package, node.version.encode(), resolved.manager_version.encode(),
        "-".join((platform.system(), platform.machine(), *platform.libc_ver())).encode(),
    )  # fmt: skip
    digest = hashlib.sha256(b"".join(hashlib.sha256(part).digest() for part in parts)).hexdigest()
    return SharedSet(f"node-set-{digest[:32]}", resolved.lock_name, lock, package)


def _reduced(tree: SourceTree, folder: PurePosixPath) -> bytes | None:
    """Return a project's package.json without all that does not determine its packages.

    None if the installation runs scripts of the project, or installs other folders of it.
    """
    try:
        package = orjson.loads(tree.content(folder / PACKAGE))
        scripts = package.get("scripts") or {}
        if package.get("workspaces") or SCRIPTS & scripts.keys():
            return None
        return orjson.dumps({key: package[key] for key in DEPENDENCIES if package.get(key)})
    except (ValueError, AttributeError, TypeError):
        return None


def _is_fixed(lock: bytes) -> bool:
    """Whether a lock file names the content of each package, and no package needs an install script."""
    try:
        places = orjson.loads(lock)["packages"]
        return all(_is_plain(place, entry) for place, entry in places.items() if place)
    except (ValueError, KeyError, AttributeError, TypeError):
        return False


def _is_plain(place: str, entry: dict[str, Any]) -> bool:
    name = entry.get("name") or place.rpartition(f"{FOLDER}/")[2]
    if not PLACE.fullmatch(place) or entry.get("link"):
        return False
    if entry.get("hasInstallScript") and name not in SCRIPTLESS:
        return False
    if entry.get("inBundle"):  # part of another package
        return "resolved" not in entry
    resolved = entry.get("resolved", PUBLIC_REGISTRY)
    return resolved.startswith(PUBLIC_REGISTRY) and bool(INTEGRITY.fullmatch(entry["integrity"]))


def ensure(settings: Settings, shared: SharedSet, node: Runtime, write_line: WriteLine) -> Path:
    """Return the folder of a set after ensuring that it is installed. Raises BuildFailed."""
    packages = Packages(settings)

    def install(folder: Path) -> None:
        write_line("INFO", f"installing {shared.lock_name} for all projects that have it")
        folder.mkdir(parents=True)
        (folder / PACKAGE).write_bytes(shared.package)
        (folder / shared.lock_name).write_bytes(shared.lock)
        runtime.install_locked(settings, node, folder, STEP, write_line)
        (folder / FOLDER).mkdir(exist_ok=True)  # npm makes none for a lock without packages

    if not packages.ensure_folder(shared.name, install):
        write_line("INFO", f"the packages of {shared.lock_name} are installed already")
    return packages.folder / shared.name


def link(workspace: Workspace, project: NodeProject, folder: Path) -> None:
    """Make the packages of a set those of an unpacked project."""
    place = _place(workspace, project)
    if place.is_dir() and not place.is_symlink():
        disk.remove(place)  # of the archive
    else:
        place.unlink(missing_ok=True)
    place.symlink_to(folder / FOLDER)


def is_linked(settings: Settings, workspace: Workspace, project: NodeProject) -> bool:
    """Whether a project has a link to a shared set in place of packages of its own."""
    place = _place(workspace, project)
    return place.is_symlink() and Path(os.readlink(place)).is_relative_to(Packages(settings).folder)


def links_to(workspace: Workspace, project: NodeProject, folder: Path) -> bool:
    return os.readlink(_place(workspace, project)) == str(folder / FOLDER)


def _place(workspace: Workspace, project: NodeProject) -> Path:
    return workspace.project / project.root / FOLDER
