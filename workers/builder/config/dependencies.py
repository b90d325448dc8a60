"""The `dependencies` key of a langgraph.json: requirements, and directories of the project."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from urllib.parse import urlsplit

from workers.builder.config.fields import refused
from workers.builder.source_tree import SourceTree

REQUIREMENT_FILES = ("requirements.txt", "pyproject.toml", "setup.py", "setup.cfg")
CREDENTIALS = re.compile(rb"git\+https?://[^\s/\"']*@")
RESERVED_PACKAGES = frozenset(
    "src langgraph-api langgraph_api langgraph langchain-core langchain_core pydantic orjson fastapi"
    " uvicorn psycopg httpx langsmith".split()
)


@dataclass(frozen=True, kw_only=True)
class Dependencies:
    """The dependencies to install for a project. Paths are relative to the root of the archive."""

    requirements: tuple[str, ...] = ()  # passed to the installer unchanged
    packages: tuple[PurePosixPath, ...] = ()  # local directories with a pyproject.toml or setup.py
    plain: tuple[PurePosixPath, ...] = ()  # other local directories; their requirements.txt is used
    import_paths: tuple[PurePosixPath, ...] = ()  # for `plain`, on sys.path besides the working directory


def read(tree: SourceTree, entries: Sequence[str]) -> Dependencies:
    """Return the validated dependencies. Raises BuildFailed, naming the key."""
    if not entries:
        raise refused('dependencies: must not be empty; `["."]` is the project itself')
    requirements: list[str] = []
    packages: list[PurePosixPath] = []
    plain: list[PurePosixPath] = []
    for entry in entries:
        if not entry.startswith("."):
            requirements.append(_requirement(entry))
            continue
        path = _directory(tree, entry)
        (packages if _is_package(tree, path) else plain).append(path)
    _check_names(tree, plain)
    return Dependencies(
        requirements=tuple(requirements),
        packages=tuple(packages),
        plain=tuple(plain),
        import_paths=_import_paths(tree, plain),
    )


def _directory(tree: SourceTree, entry: str) -> PurePosixPath:
    path = tree.inside(entry, "dependencies:")
    if not tree.is_dir(path):
        raise refused(f"dependencies: {entry!r} is not a directory of the archive")
    _check_urls(tree, path)
    return path


def _is_package(tree: SourceTree, path: PurePosixPath) -> bool:
    return tree.is_file(path / "pyproject.toml") or tree.is_file(path / "setup.py")


def _requirement(entry: str) -> str:
    if not entry.strip() or re.match(r"\s*-", entry) or "\n" in entry:
        raise refused(f"dependencies: {entry!r} is not a package requirement")
    for url in re.findall(r"https?://\S+", entry):
        if urlsplit(url).username:
            raise refused("dependencies: a URL must not hold a user name or password")
    return entry


def _check_urls(tree: SourceTree, path: PurePosixPath) -> None:
    """Raise BuildFailed for a URL with credentials in the directory's requirement files.

    The service would otherwise store the credentials together with the source.
    """
    for name in REQUIREMENT_FILES:
        if tree.is_file(path / name) and CREDENTIALS.search(tree.content(path / name)):
            raise refused(f"{path / name}: a URL must not hold a user name or password")


def _check_names(tree: SourceTree, plain: Iterable[PurePosixPath]) -> None:
    """Raise BuildFailed if a package of a plain directory has a reserved name, or a name used by another directory."""
    owners: dict[str, PurePosixPath] = {}
    for path in plain:
        is_flat = _is_flat(tree, path)
        if is_flat and "-" in path.name:
            raise refused(f"dependencies: '{path}' cannot be imported: its name has a hyphen")
        for name in [path.name] if is_flat else _packages_in(tree.root / path):
            if name in RESERVED_PACKAGES:
                raise refused(f"dependencies: '{path}' holds a package named {name!r}, which is reserved")
            if owners.setdefault(name, path) != path:
                raise refused(
                    f"dependencies: '{owners[name]}' and '{path}' both hold a package named {name!r}"
                )


def _import_paths(tree: SourceTree, plain: Iterable[PurePosixPath]) -> tuple[PurePosixPath, ...]:
    paths = [path.parent if _is_flat(tree, path) else path for path in plain]
    return tuple(path for path in dict.fromkeys(paths) if path != tree.directory)


def _is_flat(tree: SourceTree, path: PurePosixPath) -> bool:
    """Whether the directory itself is a package. The root of the archive has no name, so it never is."""
    return bool(path.parts) and tree.is_file(path / "__init__.py")


def _packages_in(folder: Path) -> list[str]:
    return sorted(child.name for child in folder.iterdir() if child.is_dir() and any(child.glob("*.py")))
