"""Reading `langgraph.json` into a Manifest."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

import orjson

from shared.deployments import env_names
from shared.errors import misspelt
from workers.builder.config import (
    auth,
    checkpointer,
    dependencies,
    entry_points,
    graphs,
    http,
    pip_config,
    source,
    store,
    webhooks,
)
from workers.builder.config.checks import ignored_keys, refused, unknown_keys
from workers.builder.config.dependencies import Dependencies
from workers.builder.config.graphs import Graphs
from workers.builder.config.pip_config import PipConfig
from workers.builder.config.source import LockedPackage
from workers.builder.config.source_tree import SourceTree

DEFAULT_PATH = "langgraph.json"

# Keys that describe a container image or the file itself. Most templates have them; ignoring them loses nothing.
WITHOUT_MEANING = (
    "image_distro",
    "api_version",
    "keep_pkg_tools",
    "node_version",
    "_INTERNAL_docker_tag",
    "$schema",
)
# Keys that are ignored with a warning, because the author may miss their effect.
LEFT_OUT = ("dockerfile_lines", "base_image", "ui", "ui_config", "priority")
# Keys that fail the build, because a project that relies on them must not run without them. Key → reason and remedy.
NOT_SERVED = {
    "encryption": (
        "this server searches, sorts and filters what it stores and reads it without user code, so it could not"
        " call a project's own encryption; keep its database on an encrypted volume"
    ),
}
DISTROS = ("debian", "wolfi", "bookworm")
PACKAGE_TOOLS = frozenset({"pip", "setuptools", "wheel"})
VERSION = re.compile(r"(~=|>~=)?\d+(\.\d+){0,2}(-?[a-z]+\.?\d*)?", re.IGNORECASE)
INSTALLERS = ("auto", "pip", "uv")
HONOURED = (
    "source", "dependencies", "graphs", "env", "python_version", "pip_config_file", "pip_installer", "store",
    "webhooks", "checkpointer", "auth", "http",
)  # fmt: skip
MOVED = ("project_root", "package")


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """The validated configuration of a project. Paths are relative to the root of the unpacked archive."""

    directory: PurePosixPath  # directory of the configuration file; the graphs' working directory
    graphs: Graphs
    requirements: tuple[str, ...] = ()  # passed to the installer unchanged
    packages: tuple[PurePosixPath, ...] = ()  # local directories with a pyproject.toml or setup.py
    plain: tuple[PurePosixPath, ...] = ()  # other local directories; their requirements.txt is used
    import_paths: tuple[PurePosixPath, ...] = ()  # for `plain`, on sys.path besides the working directory
    locked: LockedPackage | None = None  # a package of a uv workspace, in place of requirements
    env: Mapping[str, str] = field(default_factory=dict)
    store: Mapping[str, Any] = field(default_factory=dict)  # `ttl` and `index`
    webhooks: Mapping[str, Any] = field(default_factory=dict)  # `url` and `headers`
    checkpointer: Mapping[str, Any] = field(default_factory=dict)  # `ttl` and `serde`
    auth: Mapping[str, Any] = field(
        default_factory=dict
    )  # location and settings of the project's own authorization
    http: Mapping[str, Any] = field(default_factory=dict)  # the project's own app, disabled interfaces, CORS
    python_version: str | None = None
    index: PipConfig | None = None
    notes: tuple[str, ...] = ()  # keys that are handled differently here or not needed
    warnings: tuple[str, ...] = ()


def read(root: Path, config_path: str | None) -> Manifest:
    """Return the manifest of an unpacked project. Raises BuildFailed, naming the key."""
    relative = SourceTree(root).inside(config_path or DEFAULT_PATH, "the configuration file")
    tree = SourceTree(root, relative.parent)
    config = _load(tree, relative)
    _check_keys(config)
    graph_paths = graphs.read(tree, config.get("graphs"))
    locked = source.read(tree, config.get("source"))
    own_env = _env(config.get("env", {}))
    own_auth, own_http = auth.read(tree, config.get("auth")), http.read(tree, config.get("http"))
    if locked is None:
        wanted = dependencies.read(tree, config.get("dependencies", []))
    else:
        wanted = Dependencies(packages=locked.packages)
        graphs.require_packaged(tree, graph_paths, locked.packages)
        for where, entry in (("auth.path", own_auth.get("path")), ("http.app", own_http.get("app"))):
            if entry is not None:
                entry_points.require_packaged(tree, where, entry, locked.packages)
    return Manifest(
        directory=tree.directory,
        graphs=graph_paths,
        locked=locked,
        requirements=wanted.requirements,
        packages=wanted.packages,
        plain=wanted.plain,
        import_paths=wanted.import_paths,
        env=own_env,
        store=store.read(config.get("store")),
        webhooks=webhooks.read(config.get("webhooks"), own_env),
        checkpointer=checkpointer.read(config.get("checkpointer")),
        auth=own_auth,
        http=own_http,
        python_version=_python_version(config.get("python_version")),
        index=pip_config.read(tree, config.get("pip_config_file")),
        notes=tuple(_notes(config)),
        warnings=tuple(_warnings(config)),
    )


def _check_keys(config: Mapping[str, Any]) -> None:
    """Raise BuildFailed for unsupported keys, and for invalid values of keys that are otherwise ignored."""
    if "graphs" not in config and (key := misspelt("graphs", config)):
        raise refused(f"{key}: unknown key. Did you mean graphs?")
    for key in MOVED:
        if config.get(key):
            raise refused(f"{key}: this key belongs into 'source' now")
    for key, reason in NOT_SERVED.items():
        if config.get(key):
            raise refused(f"{key}: not supported: {reason}")
    if (config.get("pip_installer") or "auto") not in INSTALLERS:
        raise refused(f"pip_installer: must be one of {', '.join(INSTALLERS)}")
    if config.get("source") is not None and config.get("dependencies"):
        raise refused("dependencies: must be empty when there is a source: uv.lock says what is installed")
    _check_ignored(config)


def _check_ignored(config: Mapping[str, Any]) -> None:
    """Raise BuildFailed for an invalid value of an ignored key. A wrong value there is still the author's mistake."""
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


def _load(tree: SourceTree, path: PurePosixPath) -> dict[str, Any]:
    name, raw = str(path), tree.content(path)
    try:
        config = orjson.loads(raw)
    except orjson.JSONDecodeError as error:
        raise refused(f"{name} is not valid JSON: {error}") from error
    if b"\\u0000" in raw:  # neither a database column nor an environment variable can hold NUL
        raise refused(f"{name} must not hold NUL characters")
    if not isinstance(config, dict):
        raise refused(f"{name} must hold a JSON object")
    return config


def _notes(config: Mapping[str, Any]) -> list[str]:
    found = [f"{key}: has no meaning here and is ignored" for key in WITHOUT_MEANING if config.get(key)]
    if isinstance(config.get("env"), str):
        found.append(
            f"env: {config['env']!r} is not read on the server; the deploy command sends its variables"
        )
    if config.get("pip_installer") == "pip":
        found.append("pip_installer: packages are installed by uv")
    return found + checkpointer.notes(config.get("checkpointer"))


def _warnings(config: Mapping[str, Any]) -> list[str]:
    known = {*WITHOUT_MEANING, *LEFT_OUT, *NOT_SERVED, *HONOURED, *MOVED}
    left_out = [f"{key}: is not done here and is ignored" for key in LEFT_OUT if config.get(key)]
    return (
        left_out
        + ignored_keys(config, known)
        + unknown_keys(config, auth.KNOWN)
        + unknown_keys(config, http.KNOWN)
    )


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
