"""The resolved set of a JavaScript project: what another machine needs to make the same packages.

A revision stores it as JSON where a Python revision stores its requirements.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import orjson

from shared.errors import BuildFailed
from workers.builder.config import javascript
from workers.builder.config.javascript import NodeProject
from workers.builder.workspaces import SourceTree

SETTINGS = (*javascript.MANAGER_SETTINGS, javascript.PNPM_WORKSPACE)
# Scripts of the project itself that an installation runs.
SCRIPTS = frozenset("preinstall install postinstall prepublish preprepare prepare postprepare".split())
CODE_FILES = (".pnpmfile.cjs", ".pnpmfile.mjs", "binding.gyp")
DEPENDENCIES = (
    "dependencies devDependencies optionalDependencies peerDependencies overrides resolutions pnpm".split()
)
LOCAL = re.compile(rb'"(?:file|link|workspace|portal|patch):|"\.{0,2}/|"patchedDependencies"')
# Words of settings with which files of the project change an installation.
EXTENDED = re.compile(rb"plugins|yarn-?path|pnpmfile|patch|^packages:", re.IGNORECASE | re.MULTILINE)


@dataclass(frozen=True, kw_only=True)
class Commands:
    """The commands of a deployment's `source_config` that replace the installation, and that follow it."""

    install: str | None = None
    build: str | None = None


NO_COMMANDS = Commands()


@dataclass(frozen=True, kw_only=True)
class Resolved:
    """The exact versions of Node and of the package manager, the lock file, and the commands."""

    node: str
    manager: str
    manager_version: str
    root: str
    lock_name: str
    lock_digest: str
    lock: str | None  # the text of a lock file that the build made; that of a project is in its archive
    commands: Commands = NO_COMMANDS

    def __str__(self) -> str:
        return orjson.dumps({"language": "javascript", **asdict(self)}).decode()

    @property
    def node_major(self) -> int:
        return int(self.node.partition(".")[0])

    @classmethod
    def parse(cls, text: str) -> Resolved:
        """Parse a stored set. Raises BuildFailed."""
        try:
            fields = orjson.loads(text)
            del fields["language"]
            return cls(**{**fields, "commands": Commands(**fields["commands"])})
        except (ValueError, KeyError, TypeError) as error:
            raise BuildFailed("requirements", "their list cannot be read") from error


def is_javascript(requirements: str) -> bool:
    """Whether the stored requirements of a revision are those of a JavaScript project."""
    return requirements.startswith("{")


def commands_of(requirements: str) -> Commands:
    """Return the commands of a revision by its stored requirements."""
    return Resolved.parse(requirements).commands if is_javascript(requirements) else NO_COMMANDS


def inputs_digest(
    root: Path, project: NodeProject, commands: Commands, node: str, archive_digest: str
) -> str:
    """Return a digest of what determines the versions of an unpacked project's packages."""
    tree = SourceTree(root)
    settings = _settings(tree, project)
    if project.lock is not None:
        content = javascript.lock_content(tree, project.lock)
    else:
        content = tree.content(project.root / javascript.PACKAGE)
        if _depends_on_files(orjson.loads(content), settings):
            content += archive_digest.encode()
    return _digest(
        node, project.manager, project.manager_major, str(project.root), str(project.lock), asdict(commands),
        hashlib.sha256(content).hexdigest(), *_texts(settings),
    )  # fmt: skip


def packages_digest(root: Path, project: NodeProject, resolved: Resolved) -> str | None:
    """Return a digest of what determines the installed packages of an unpacked project.

    Returns None if they may depend on other files of the archive: on local packages, patches, or code that runs. The same
    holds with commands of the deployment, which may need more than the packages of an installation.
    """
    tree = SourceTree(root)
    path = project.root / javascript.PACKAGE
    content = tree.content(path) if tree.is_file(path) else b"{}"
    package = orjson.loads(content)  # the configuration has been read: it is an object
    settings = _settings(tree, project)
    if (
        resolved.commands != NO_COMMANDS
        or _depends_on_files(package, settings)
        or any(tree.is_file(project.root / name) for name in CODE_FILES)
        or (isinstance(scripts := package.get("scripts"), dict) and SCRIPTS & scripts.keys())
    ):
        return None
    return _digest(
        resolved.node, resolved.manager, resolved.manager_version, resolved.root, resolved.lock_digest,
        *_texts([content, *settings]),
    )  # fmt: skip


def _settings(tree: SourceTree, project: NodeProject) -> list[bytes]:
    """Return the contents of the files with which the project configures its package manager."""
    paths = (project.root / name for name in SETTINGS)
    return [tree.content(path) for path in paths if tree.is_file(path)]


def _depends_on_files(package: Mapping[str, Any], settings: Sequence[bytes]) -> bool:
    """Whether the versions may depend on other files of the archive: workspaces, and packages in folders."""
    dependencies = orjson.dumps([package.get(key) for key in DEPENDENCIES])
    return (
        "workspaces" in package
        or LOCAL.search(dependencies) is not None
        or any(EXTENDED.search(content) for content in settings)
    )


def _texts(contents: Iterable[bytes]) -> list[str]:
    return [content.decode("utf-8", "replace") for content in contents]


def _digest(*parts: Any) -> str:
    return hashlib.sha256(orjson.dumps(parts)).hexdigest()
