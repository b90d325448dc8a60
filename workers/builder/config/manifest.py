"""Reading `langgraph.json` into a Manifest."""

from __future__ import annotations

import os.path
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

import orjson

from shared.errors import Invalid
from shared.runs import webhooks
from workers.builder.config import dependencies, fields, javascript
from workers.builder.config.dependencies import Dependencies, LockedPackage, PipConfig
from workers.builder.config.fields import refused
from workers.builder.config.javascript import NodeProject
from workers.builder.config.references import Graphs, names_file
from workers.builder.config.schema import LanggraphJson
from workers.builder.workspaces import SourceTree

DEFAULT_PATH = "langgraph.json"


@dataclass(frozen=True)
class Components:
    """Sets of components of generative UI, and the project whose packages they import."""

    sets: Mapping[str, PurePosixPath]  # name → script
    shared: tuple[str, ...]  # packages that the page provides
    node: NodeProject


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
    inbox: Mapping[str, Any] = field(default_factory=dict)  # rules for questions to people
    replay: Mapping[str, Any] = field(default_factory=dict)  # `tools` and `score` of replays
    checkpointer: Mapping[str, Any] = field(default_factory=dict)  # `ttl` and `serde`
    auth: Mapping[str, Any] = field(default_factory=dict)  # the project's own authorization
    http: Mapping[str, Any] = field(default_factory=dict)  # the project's own app, disabled interfaces, CORS
    python_version: str | None = None
    index: PipConfig | None = None
    node: NodeProject | None = None  # of a JavaScript project, in place of everything about Python packages
    components: Components | None = None  # of generative UI
    notes: tuple[str, ...] = ()  # keys that are handled differently here or not needed
    warnings: tuple[str, ...] = ()

    @property
    def has_app(self) -> bool:
        """Whether the project has routes of its own."""
        return bool(self.http.get("app") or self.http.get("apps"))


def read(root: Path, config_path: str | None) -> Manifest:
    """Return the manifest of an unpacked project. Raises BuildFailed, naming the key."""
    relative = SourceTree(root).inside(config_path or DEFAULT_PATH, "the configuration file")
    tree = SourceTree(root, relative.parent)
    whole = config = _json(tree, relative)
    notes: list[str] = []
    if is_javascript := javascript.check(config):
        config, notes = javascript.of_both_languages(config)
    schema = LanggraphJson()
    loaded = fields.load(schema, config)
    locked = dependencies.read_locked(tree, loaded.get("source"))
    entry_points = {f"graphs.{graph_id}": graph["path"] for graph_id, graph in loaded["graphs"].items()}
    entry_points |= {"auth.path": loaded["auth"].get("path"), "http.app": loaded["http"].get("app")}
    entry_points |= {"replay.score": loaded["replay"].get("score")}
    entry_points |= {f"http.apps.{path}": entry for path, entry in loaded["http"].get("apps", {}).items()}
    for where, entry in entry_points.items():
        if entry is not None:
            _require_file(tree, where, entry, None if locked is None else locked.packages)
    if (webhook := loaded["inbox"].get("webhook")) is not None:
        _check_webhook(webhook, loaded["webhooks"].get("url") or {})
    node = None
    if is_javascript:
        installed = Dependencies()
        node = javascript.read(tree, whole)
    elif locked is None:
        installed = dependencies.read(tree, loaded["dependencies"])
    else:
        installed = Dependencies(packages=locked.packages)
    components = _components(tree, whole, loaded, node)
    remarks = [*fields.remarks(schema, config), *_replacements(config)]
    return Manifest(
        directory=tree.directory,
        locked=locked,
        requirements=installed.requirements,
        packages=installed.packages,
        plain=installed.plain,
        import_paths=installed.import_paths,
        index=dependencies.read_index(tree, loaded["pip_config_file"]),
        node=node,
        components=components,
        notes=(*(text for level, text in remarks if level == "INFO"), *notes),
        warnings=(
            *(text for level, text in remarks if level == "WARNING"),
            *(node.warnings if node is not None else () if components is None else components.node.warnings),
        ),
        **{
            key: loaded[key]
            for key in (
                "graphs",
                "env",
                "store",
                "webhooks",
                "inbox",
                "replay",
                "checkpointer",
                "auth",
                "http",
                "python_version",
            )
        },
    )


def _components(
    tree: SourceTree, config: Mapping[str, Any], loaded: Mapping[str, Any], node: NodeProject | None
) -> Components | None:
    """Return the components of generative UI; None if there are none. Raises BuildFailed.

    A Python project needs a `package.json` for them, in the folder that holds all of their scripts or above it.
    """
    if not loaded["ui"] or loaded["http"].get("disable_ui"):
        return None
    sets: dict[str, PurePosixPath] = {}
    for name, entry in loaded["ui"].items():
        sets[name] = tree.inside(entry, f"ui.{name}:")
        if not tree.is_file(sets[name]):
            raise refused(f"ui.{name}: the file {entry!r} is not in the archive")
    if node is None:
        folder = PurePosixPath(os.path.commonpath([path.parent for path in sets.values()]))
        node = javascript.read(SourceTree(tree.root, folder), config)
    return Components(sets, tuple(loaded["ui_config"].get("shared", ())), node)


def _check_webhook(url: str, rules: Mapping[str, Any]) -> None:
    """Raise BuildFailed if the service may not call the webhook of `inbox`."""
    try:
        # Which URL of the service a path belongs to is unknown here; `disable_loopback: false` has allowed the machine.
        webhooks.check(url, rules, url_of=lambda path: f"https://localhost{path}")
    except Invalid as error:
        raise refused(f"inbox.webhook: {error.message}") from error


def _json(tree: SourceTree, path: PurePosixPath) -> dict[str, Any]:
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


def _replacements(config: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return remarks about keys whose value has another effect here."""
    remarks: list[tuple[str, str]] = []
    if isinstance(path := config.get("env"), str):
        text = f"env: {path!r} is not read on the server; the deploy command sends its variables"
        remarks.append(("INFO", text))
    if config.get("pip_installer") == "pip":
        remarks.append(("INFO", "pip_installer: packages are installed by uv"))
    return remarks


def _require_file(
    tree: SourceTree, where: str, entry: str, packages: Iterable[PurePosixPath] | None = None
) -> None:
    """Raise BuildFailed if a reference names a file that is missing, or outside the installed packages if they are given.

    `where` is the reference's key.
    """
    module = entry.partition(":")[0]
    if not names_file(module):
        return
    path = tree.inside(module, f"{where}:")
    if not tree.is_file(path):
        raise refused(f"{where}: the file {module!r} is not in the archive")
    if packages is not None and not any(path.is_relative_to(package) for package in packages):
        raise refused(f"{where}: '{path}' is in none of the packages that are installed")
