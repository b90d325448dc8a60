"""The keys of a langgraph.json that name what is installed: `dependencies`, `pip_config_file` and `source`.

`source`, `{"kind": "uv"}`, names a package of a uv workspace, which is installed from the workspace's lock file. Files
of the project are only read as data. Every path must stay inside the archive.
"""

from __future__ import annotations

import configparser
import re
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import urlsplit

from workers.builder.config.fields import refused
from workers.builder.workspaces import SourceTree, plain_path

REQUIREMENT_FILES = ("requirements.txt", "pyproject.toml", "setup.py", "setup.cfg")
CREDENTIALS = re.compile(rb"git\+https?://[^\s/\"']*@")
RESERVED_PACKAGES = frozenset(
    "src langgraph-api langgraph_api langgraph langchain-core langchain_core pydantic orjson fastapi"
    " uvicorn psycopg httpx langsmith".split()
)


PYPI = "https://pypi.org/simple"
# Keys of a locked package's `source` that name a local path.
LOCAL = ("editable", "virtual", "directory", "path")


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


@dataclass(frozen=True)
class PipConfig:
    """The package sources named by a pip configuration file."""

    index_url: str | None = None
    extra_index_urls: tuple[str, ...] = ()
    find_links: tuple[str, ...] = ()
    directories: tuple[str, ...] = ()  # find-links inside the project, relative to the archive's root

    def within(self, project: Path) -> PipConfig:
        """Return a copy whose `directories` are absolute `find_links`, below the project's current location."""
        links = tuple(str(project / path) for path in self.directories)
        return replace(self, find_links=(*self.find_links, *links), directories=())


def read_index(tree: SourceTree, path: str | None) -> PipConfig | None:
    """Return the configuration in the file at this path, None without a path. Raises BuildFailed, naming the key."""
    if path is None:
        return None
    raw = tree.content(tree.inside(path, "pip_config_file:"), f"pip_config_file: {path!r}")
    parser = configparser.ConfigParser(interpolation=None)
    try:
        parser.read_string(raw.decode())
    except (UnicodeDecodeError, configparser.Error) as error:
        raise refused(f"pip_config_file: {path!r} is not a pip configuration file") from error
    options: dict[str, str] = {}
    for section in ("global", "install"):
        if parser.has_section(section):
            options.update(parser.items(section))
    urls = " ".join(options.get(key, "") for key in ("index-url", "extra-index-url", "find-links")).split()
    if any(urlsplit(url).username for url in urls):
        raise refused("pip_config_file: a URL must not hold a user name or password")
    links = options.get("find-links", "").split()
    local = [link for link in links if "://" not in link]
    inside = [tree.inside(link, "pip_config_file: find-links:") for link in local]
    return PipConfig(
        options.get("index-url"),
        tuple(options.get("extra-index-url", "").split()),
        tuple(link for link in links if link not in local),
        tuple(map(str, inside)),
    )


@dataclass(frozen=True)
class LockedPackage:
    """A package of a uv workspace, to be installed with the versions of the workspace's lock file."""

    root: PurePosixPath
    package: str
    packages: tuple[PurePosixPath, ...]  # local packages: dependencies first, the package itself last
    is_from_public_index: bool  # the lock names no index but PyPI, which the operator's index may replace


def read_locked(tree: SourceTree, source: Mapping[str, str] | None) -> LockedPackage | None:
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
