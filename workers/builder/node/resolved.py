"""The resolved set of a JavaScript project: what another machine needs to make the same packages.

A revision stores it as JSON where a Python revision stores its requirements.
"""

from __future__ import annotations

import hashlib
from dataclasses import asdict, dataclass
from pathlib import Path

import orjson

from shared.errors import BuildFailed
from workers.builder.config import javascript
from workers.builder.config.javascript import NodeProject
from workers.builder.workspaces import SourceTree


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
    if project.lock is not None:
        content = javascript.lock_content(tree, project.lock)
    else:
        content = tree.content(project.root / javascript.PACKAGE)
        if _depends_on_files(tree, project, content):
            content += archive_digest.encode()
    settings = [
        tree.content(path).decode("utf-8", "replace")
        for name in javascript.MANAGER_SETTINGS
        if tree.is_file(path := project.root / name)
    ]
    parts = [
        node, project.manager, project.manager_major, str(project.root), str(project.lock), asdict(commands),
        hashlib.sha256(content).hexdigest(), *settings,
    ]  # fmt: skip
    return hashlib.sha256(orjson.dumps(parts)).hexdigest()


def _depends_on_files(tree: SourceTree, project: NodeProject, package: bytes) -> bool:
    """Whether the versions may depend on other files of the archive: workspaces, and packages in folders."""
    is_workspace = b'"workspaces"' in package or tree.is_file(project.root / javascript.PNPM_WORKSPACE)
    return is_workspace or any(word in package for word in (b"file:", b"link:", b"workspace:", b"portal:"))
