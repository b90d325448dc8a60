"""References to objects of a project: `./file.py:attribute` or `module:attribute`."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import PurePosixPath
from typing import Any

from shared.deployments import javascript
from workers.builder.config.checks import refused
from workers.builder.config.source_tree import SourceTree


def read(tree: SourceTree, where: str, entry: Any, *, kind: str) -> str:
    """Return the validated reference found under the key `where`. `kind` names the object in errors, like "graph".

    Raises BuildFailed.
    """
    module, _, attribute = entry.partition(":") if isinstance(entry, str) else ("", "", "")
    if not module or not attribute:
        raise refused(f'{where}: {entry!r} must have the form "./file.py:attribute"')
    if reason := javascript.refusal(module, kind):
        raise refused(f"{where}: {reason}")
    if "/" in module or "\\" in module:
        path = tree.inside(module, f"{where}:")
        if not tree.is_file(path):
            raise refused(f"{where}: the file {module!r} is not in the archive")
    elif module.endswith(".py"):
        raise refused(f"{where}: write './{module}:{attribute}' for a file; {module!r} names a module")
    return entry


def require_packaged(tree: SourceTree, where: str, entry: str, packages: Iterable[PurePosixPath]) -> None:
    """Raise BuildFailed if the reference names a file outside the installed packages."""
    module = entry.partition(":")[0]
    if "/" not in module:
        return
    path = tree.inside(module, f"{where}:")
    if not any(path.is_relative_to(package) for package in packages):
        raise refused(f"{where}: '{path}' is in none of the packages that are installed")
