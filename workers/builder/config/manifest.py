"""Reads `langgraph.json`: every key is honoured, refused with a reason, or said to be without meaning here."""

from __future__ import annotations

import configparser
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import urlsplit

import orjson

from shared.deployments import env_names
from shared.errors import BuildFailed
from workers.builder.config import graph_ids, uv_project
from workers.builder.config.store import read as read_store
from workers.builder.config.uv_project import Locked
from workers.builder.config.webhooks import read as read_webhooks

STEP = "configuration"
DEFAULT_PATH = "langgraph.json"

# Keys that describe a container image, a user interface or an editor: nothing here corresponds to them.
WITHOUT_MEANING = (
    "dockerfile_lines", "base_image", "image_distro", "api_version", "keep_pkg_tools", "ui", "ui_config",
    "node_version", "priority", "_INTERNAL_docker_tag", "$schema",
)  # fmt: skip
# What would be missed if it were ignored, and what there is instead.
NOT_SERVED = {
    "checkpointer": "this server keeps checkpoints itself, and as long as their thread",
    "auth": "this server's own API keys decide who may call a deployment",
    "encryption": "this server does not call a project's own encryption",
    "http": "this server serves no routes of a project's own",
}
DISTROS = ("debian", "wolfi", "bookworm")
PACKAGE_TOOLS = frozenset({"pip", "setuptools", "wheel"})
VERSION = re.compile(r"(~=|>~=)?\d+(\.\d+){0,2}(-?[a-z]+\.?\d*)?", re.IGNORECASE)
INSTALLERS = ("auto", "pip", "uv")
HONOURED = (
    "source", "dependencies", "graphs", "env", "python_version", "pip_config_file", "pip_installer", "store",
    "webhooks",
)  # fmt: skip
MOVED = ("project_root", "package")
MAX_CONFIG_BYTES = 1024 * 1024
REQUIREMENT_FILES = ("requirements.txt", "pyproject.toml", "setup.py", "setup.cfg")
SCRIPTS = (".ts", ".mts", ".cts", ".js", ".mjs", ".cjs")
RESERVED_PACKAGES = frozenset(
    "src langgraph-api langgraph_api langgraph langchain-core langchain_core pydantic orjson fastapi"
    " uvicorn psycopg httpx langsmith".split()
)


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """What a project's configuration asks for; paths are relative to the unpacked archive."""

    directory: PurePosixPath  # of the configuration file: where the graphs run
    graphs: Mapping[str, Mapping[str, Any]]  # graph id → {"path": "module:attribute", "description"}
    requirements: tuple[str, ...] = ()  # given to the installer as they are
    packages: tuple[PurePosixPath, ...] = ()  # local directories with a pyproject.toml or setup.py
    plain: tuple[PurePosixPath, ...] = ()  # local directories without: their requirements.txt is honoured
    import_paths: tuple[PurePosixPath, ...] = ()  # what makes them importable, beside the working directory
    locked: Locked | None = None  # a package of a uv workspace, instead of requirements
    env: Mapping[str, str] = field(default_factory=dict)
    store: Mapping[str, Any] = field(default_factory=dict)  # `ttl` and `index`
    webhooks: Mapping[str, Any] = field(default_factory=dict)  # `url` and `headers`
    python_version: str | None = None
    index: PipConfig | None = None
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True)
class PipConfig:
    """What a pip configuration file says of where packages come from."""

    index_url: str | None = None
    extra_index_urls: tuple[str, ...] = ()
    find_links: tuple[str, ...] = ()
    directories: tuple[str, ...] = ()  # of the project, with packages in them

    def within(self, project: Path) -> PipConfig:
        """The same, with the directories where the project is now."""
        links = tuple(str(project / path) for path in self.directories)
        return replace(self, find_links=(*self.find_links, *links), directories=())


def refused(reason: str) -> BuildFailed:
    return BuildFailed(STEP, reason)


def read(root: Path, config_path: str | None) -> Manifest:
    """The manifest of an unpacked project; raises BuildFailed naming the key."""
    relative = _inside(PurePosixPath(), config_path or DEFAULT_PATH, "the configuration file")
    config = _load(root / relative, str(relative))
    directory = relative.parent
    for key in MOVED:
        if config.get(key):
            raise refused(f"{key}: this key belongs into 'source' now")
    for key, reason in NOT_SERVED.items():
        if config.get(key):
            raise refused(f"{key}: not supported: {reason}")
    if (config.get("pip_installer") or "auto") not in INSTALLERS:
        raise refused(f"pip_installer: must be one of {', '.join(INSTALLERS)}")
    _check_ignored(config)
    graphs = _graphs(root, directory, config.get("graphs"))
    locked = _locked(root, directory, config)
    env = _env(config.get("env", {}))
    requirements, packages, plain = (), (), ()
    if locked is None:
        requirements, packages, plain = _dependencies(root, directory, config.get("dependencies", []))
    else:
        packages = locked.packages
        _require_inside(directory, graphs, packages)
    return Manifest(
        directory=directory,
        graphs=graphs,
        locked=locked,
        requirements=requirements,
        packages=packages,
        plain=plain,
        import_paths=_import_paths(root, directory, plain),
        env=env,
        store=read_store(config.get("store")),
        webhooks=read_webhooks(config.get("webhooks"), env),
        python_version=_python_version(config.get("python_version")),
        index=_pip_config(root, directory, config.get("pip_config_file")),
        warnings=tuple(_warnings(config)),
    )


def _check_ignored(config: Mapping[str, Any]) -> None:
    """What has no meaning here must make sense all the same: its author means something by it."""
    distro, tools, version = (config.get(key) for key in ("image_distro", "keep_pkg_tools", "api_version"))
    if distro is not None and distro not in DISTROS:
        raise refused(f"image_distro: must be one of {', '.join(DISTROS)}")
    is_list = isinstance(tools, list) and all(isinstance(tool, str) for tool in tools)
    if tools not in (None, True, False) and not (is_list and PACKAGE_TOOLS.issuperset(tools)):
        raise refused("keep_pkg_tools: must be true or an array of pip, setuptools and wheel")
    if version is not None and not (isinstance(version, str) and VERSION.fullmatch(version)):
        raise refused('api_version: must have the form "1.2.3"')
    if version and config.get("_INTERNAL_docker_tag"):
        raise refused("api_version: must not be given with _INTERNAL_docker_tag")
    priority = config.get("priority")
    if priority and not (isinstance(priority, dict) and ":" in str(priority.get("path"))):
        raise refused('priority: must be an object with a "path" of the form "./file.py:attribute"')


def _load(path: Path, name: str) -> dict[str, Any]:
    raw = _bytes_of(path, name)
    try:
        config = orjson.loads(raw)
    except orjson.JSONDecodeError as error:
        raise refused(f"{name} is not valid JSON: {error}") from error
    if b"\\u0000" in raw:  # no database column and no environment takes it
        raise refused(f"{name} must not hold NUL characters")
    if not isinstance(config, dict):
        raise refused(f"{name} must hold a JSON object")
    return config


def _bytes_of(path: Path, name: str) -> bytes:
    """The content of a small file of the project; raises BuildFailed.

    Build steps may have put a link in its place, which must not be followed.
    """
    try:
        with open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), "rb") as file:
            raw = file.read(MAX_CONFIG_BYTES + 1)
    except (FileNotFoundError, IsADirectoryError, NotADirectoryError) as error:
        raise refused(f"{name} is not in the archive") from error
    except OSError as error:
        raise refused(f"{name} cannot be read: {error.strerror}") from error
    if len(raw) > MAX_CONFIG_BYTES:
        raise refused(f"{name} is larger than {MAX_CONFIG_BYTES // 1024} KiB")
    return raw


def content(root: Path, path: PurePosixPath) -> bytes:
    """The content of a small file of the project; raises BuildFailed."""
    return _bytes_of(root / path, str(path))


def _warnings(config: Mapping[str, Any]) -> list[str]:
    said = [f"{key}: has no meaning here and is ignored" for key in WITHOUT_MEANING if config.get(key)]
    known = {*WITHOUT_MEANING, *NOT_SERVED, *HONOURED, *MOVED}
    said += [f"{key}: unknown key, ignored" for key in config if key not in known]
    if isinstance(config.get("env"), str):
        said.append(
            f"env: {config['env']!r} is not read on the server; the deploy command sends its variables"
        )
    if config.get("pip_installer") == "pip":
        said.append("pip_installer: packages are installed by uv")
    return said


def _inside(directory: PurePosixPath, path: str, what: str) -> PurePosixPath:
    """A path of the project, from the archive's root on; raises BuildFailed when it leads outside."""
    if not path or path.startswith("/") or "\\" in path or "\0" in path:
        raise refused(f"{what} {path!r} must be a relative path")
    parts: list[str] = list(directory.parts)
    for part in PurePosixPath(path).parts:
        if part != "..":
            parts.append(part)
        elif parts:
            parts.pop()
        else:
            raise refused(f"{what} {path!r} leads outside the archive")
    return PurePosixPath(*parts)


def _locked(root: Path, directory: PurePosixPath, config: Mapping[str, Any]) -> Locked | None:
    """What `source` names; raises BuildFailed."""
    if config.get("source") is None:
        return None
    source = uv_project.check(config["source"])
    if config.get("dependencies"):
        raise refused("dependencies: must be empty when there is a source: uv.lock says what is installed")
    above = _inside(directory, source.get("root") or ".", "source.root:")
    return uv_project.read(root, directory, source, above, lambda path: content(root, path))


def _require_inside(
    directory: PurePosixPath, graphs: Mapping[str, Mapping[str, Any]], packages: Iterable[PurePosixPath]
) -> None:
    """Raises BuildFailed for a graph's file that no package of the workspace brings."""
    for graph_id, graph in graphs.items():
        module = graph["path"].partition(":")[0]
        if "/" not in module:
            continue
        path = _inside(directory, module, f"graphs.{graph_id}:")
        if not any(path.is_relative_to(package) for package in packages):
            raise refused(f"graphs.{graph_id}: '{path}' is in none of the packages that are installed")


def _dependencies(
    root: Path, directory: PurePosixPath, entries: Any
) -> tuple[tuple[str, ...], tuple[PurePosixPath, ...], tuple[PurePosixPath, ...]]:
    if not isinstance(entries, list) or not all(isinstance(entry, str) for entry in entries):
        raise refused("dependencies: must be an array of strings")
    if not entries:
        raise refused('dependencies: must not be empty; `["."]` is the project itself')
    requirements: list[str] = []
    packages: list[PurePosixPath] = []
    plain: list[PurePosixPath] = []
    for entry in entries:
        if not entry.startswith("."):
            requirements.append(_requirement(entry))
            continue
        path = _inside(directory, entry, "dependencies:")
        if not (root / path).is_dir():
            raise refused(f"dependencies: {entry!r} is not a directory of the archive")
        _check_urls(root, path)
        if (root / path / "pyproject.toml").is_file() or (root / path / "setup.py").is_file():
            packages.append(path)
        else:
            plain.append(path)
    _check_names(root, plain)
    return tuple(requirements), tuple(packages), tuple(plain)


def _requirement(entry: str) -> str:
    if not entry.strip() or re.match(r"\s*-", entry) or "\n" in entry:
        raise refused(f"dependencies: {entry!r} is not a package requirement")
    for url in re.findall(r"https?://\S+", entry):
        if urlsplit(url).username:
            raise refused("dependencies: a URL must not hold a user name or password")
    return entry


def _check_urls(root: Path, path: PurePosixPath) -> None:
    """Refuse credentials in what a local directory asks for: they would be kept with its source."""
    for name in REQUIREMENT_FILES:
        if (root / path / name).is_file():
            raw = _bytes_of(root / path / name, str(path / name))
            if re.search(rb"git\+https?://[^\s/\"']*@", raw):
                raise refused(f"{path / name}: a URL must not hold a user name or password")


def _check_names(root: Path, plain: Iterable[PurePosixPath]) -> None:
    """Each plain directory gives its packages names of their own; raises BuildFailed."""
    taken: dict[str, PurePosixPath] = {}
    for path in plain:
        is_flat = _is_flat(root, path)
        if is_flat and "-" in path.name:
            raise refused(f"dependencies: '{path}' cannot be imported: its name has a hyphen")
        for name in [path.name] if is_flat else _packages_in(root / path):
            if name in RESERVED_PACKAGES:
                raise refused(f"dependencies: '{path}' holds a package named {name!r}, which is reserved")
            if taken.setdefault(name, path) != path:
                raise refused(
                    f"dependencies: '{taken[name]}' and '{path}' both hold a package named {name!r}"
                )


def _import_paths(
    root: Path, directory: PurePosixPath, plain: Iterable[PurePosixPath]
) -> tuple[PurePosixPath, ...]:
    found = [path.parent if _is_flat(root, path) else path for path in plain]
    return tuple(path for path in dict.fromkeys(found) if path != directory)


def _is_flat(root: Path, path: PurePosixPath) -> bool:
    """Whether the directory is a package itself; the archive's root has no name to be one."""
    return bool(path.parts) and (root / path / "__init__.py").is_file()


def _packages_in(folder: Path) -> list[str]:
    return sorted(child.name for child in folder.iterdir() if child.is_dir() and any(child.glob("*.py")))


def _graphs(root: Path, directory: PurePosixPath, graphs: Any) -> dict[str, dict[str, Any]]:
    if not isinstance(graphs, dict) or not graphs:
        raise refused('graphs: must be a non-empty object of graph id → "./file.py:attribute"')
    return {graph_id: _graph(root, directory, graph_id, entry) for graph_id, entry in graphs.items()}


def _graph(root: Path, directory: PurePosixPath, graph_id: str, entry: Any) -> dict[str, Any]:
    where = f"graphs.{graph_id}"
    if reason := graph_ids.why_not(graph_id):
        shown = ascii(graph_id[: graph_ids.MAX_LENGTH])
        raise refused(f"graphs: {shown} cannot be the name of a graph: {reason}")
    description = None
    if isinstance(entry, dict):
        description = entry.get("description")
        if description is not None and not isinstance(description, str):
            raise refused(f"{where}.description: must be a string")
        entry = entry.get("path")
    if not isinstance(entry, str):
        raise refused(f'{where}: must be "module:attribute" or an object with a "path"')
    module, _, attribute = entry.partition(":")
    if not module or not attribute:
        raise refused(f'{where}: {entry!r} must have the form "./file.py:attribute"')
    if module.endswith(SCRIPTS):
        raise refused(f"{where}: {module!r} is a JavaScript graph, which this server does not run")
    if "/" in module or "\\" in module:
        path = _inside(directory, module, f"{where}:")
        if not (root / path).is_file():
            raise refused(f"{where}: the file {module!r} is not in the archive")
    elif module.endswith(".py"):
        raise refused(f"{where}: write './{module}:{attribute}' for a file; {module!r} names a module")
    return {"path": entry, "description": description}


def _env(env: Any) -> dict[str, str]:
    if isinstance(env, str):
        return {}
    if not isinstance(env, dict):
        raise refused("env: must be an object of strings or the path of a file")
    if odd := [name for name, value in env.items() if value is None or isinstance(value, dict | list)]:
        raise refused(f"env: the value of {odd[0]!r} must be a string")
    values = {
        name: value if isinstance(value, str) else orjson.dumps(value).decode() for name, value in env.items()
    }
    if bad := env_names.refused(values):
        raise refused(f"env: these names cannot be set by a deployment: {', '.join(sorted(bad))}")
    return values


def _python_version(wanted: Any) -> str | None:
    if wanted is None:
        return None
    match = re.fullmatch(r"(\d+)\.(\d+)(-[a-z]+)?", wanted) if isinstance(wanted, str) else None
    if match is None or "bullseye" in wanted:
        raise refused(f'python_version: {wanted!r} must have the form "3.11"')
    version = (int(match[1]), int(match[2]))
    if version < (3, 11):
        raise refused(f"python_version: {wanted} is too old, 3.11 is the oldest that is supported")
    return f"{version[0]}.{version[1]}"


def _pip_config(root: Path, directory: PurePosixPath, path: Any) -> PipConfig | None:
    if path is None:
        return None
    if not isinstance(path, str):
        raise refused("pip_config_file: must be a path")
    raw = _bytes_of(root / _inside(directory, path, "pip_config_file:"), f"pip_config_file: {path!r}")
    parser = configparser.ConfigParser(interpolation=None)
    try:
        parser.read_string(raw.decode())
    except (UnicodeDecodeError, configparser.Error) as error:
        raise refused(f"pip_config_file: {path!r} is not a pip configuration file") from error
    found: dict[str, str] = {}
    for section in ("global", "install"):
        if parser.has_section(section):
            found.update(parser.items(section))
    urls = " ".join(found.get(key, "") for key in ("index-url", "extra-index-url", "find-links")).split()
    if any(urlsplit(url).username for url in urls):
        raise refused("pip_config_file: a URL must not hold a user name or password")
    links = found.get("find-links", "").split()
    local = [link for link in links if "://" not in link]
    inside = [_inside(directory, link, "pip_config_file: find-links:") for link in local]
    return PipConfig(
        found.get("index-url"),
        tuple(found.get("extra-index-url", "").split()),
        tuple(link for link in links if link not in local),
        tuple(map(str, inside)),
    )
