"""The configuration of a JavaScript project: keys of `langgraph.json` that differ, and its `package.json` and lock file.

A project is JavaScript if one of its graphs is a script. Files of the project are only read as data.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatch
from pathlib import PurePosixPath
from typing import Any

import orjson
from semantic_version import NpmSpec, Version

from shared.deployments import project_rules
from shared.deployments.project_rules import LOCK_FILES
from workers.builder.config.fields import IGNORED, refused
from workers.builder.node.releases import RELEASES
from workers.builder.workspaces import SourceTree

OLDEST = 20
PACKAGE = "package.json"
PNPM_WORKSPACE = "pnpm-workspace.yaml"
LOCK_NAMES = {"yarn": "yarn.lock", "pnpm": "pnpm-lock.yaml", "npm": "package-lock.json"}
BUN_LOCKS = ("bun.lock", "bun.lockb")
YARN_CLASSIC, YARN_BERRY = 1, 4
PNPM_MAJORS = (9, 10, 11)
NEWER_YARN = re.compile(rb"^__metadata:[ \r]*\n +version: *(\d+)", re.MULTILINE)
OLDEST_YARN_LOCK = 8  # the format of yarn 4
PNPM_LOCK = re.compile(rb"^lockfileVersion: *['\"]?(\d+)", re.MULTILINE)
OLDEST_PNPM_LOCK = 9
MANAGER = re.compile(r"(npm|yarn|pnpm|bun)@\^?v?(\d+)")
CREDENTIALS = re.compile(rb"https?://[^\s/\"'@]+@")
MAX_LOCK_BYTES = 16 * 1024 * 1024
# Files in which a project refers to variables of the deployment, and such a reference.
MANAGER_SETTINGS = (".npmrc", ".yarnrc.yml", ".yarnrc")
REFERENCE = re.compile(rb"\$\{([A-Za-z_][A-Za-z0-9_]*)")
# A credential in such a file: of a registry, or in a URL. A value that begins with `$` is a reference.
CREDENTIAL = re.compile(
    r"""\b(?:_authToken|_auth|_password|npmAuthToken|npmAuthIdent)["']?(?:[ \t]*[=:]|[ \t])[ \t]*["']?([^\s"'$=:][^\s"']*)"""
    r"""|https?://([^\s/"'@$]+)@"""
)
MAX_LINE = 16 * 1024  # characters of a line that is searched for a credential
SPACED = re.compile(r"([<>=~^]+)\s*v?")  # an operator of a range, which npm allows to stand apart
MAX_RANGE = 200  # characters of a range of versions: parsing takes longer than in proportion to its length
MAX_PATTERNS = 100  # of the folders of a workspace
MEANINGLESS = ("python_version", "pip_installer", "dependencies")
READ_HERE = ("node_version", "node_loader")
PYTHON_ONLY = ("source", "pip_config_file")


@dataclass(frozen=True, kw_only=True)
class NodeProject:
    """The package root, manager and lock of a JavaScript project. Paths are relative to the root of the archive."""

    major: int  # of Node
    root: PurePosixPath  # where the packages are installed
    manager: str  # npm, yarn or pnpm
    manager_major: int | None  # None: the one that Node brings
    lock: PurePosixPath | None  # None: the build resolves the versions
    variables: frozenset[str]  # of the deployment, which the settings of the package manager refer to
    credentials: frozenset[str] = field(default=frozenset(), repr=False)  # as text in these settings
    warnings: tuple[str, ...] = ()


def check(config: Mapping[str, Any]) -> bool:
    """Check the keys that depend on the language. Returns whether the project is JavaScript. Raises BuildFailed."""
    if reason := project_rules.language_refusal(config):
        raise refused(reason)
    if not project_rules.is_javascript(config):
        http = config.get("http")
        if isinstance(http, dict) and http.get("apps"):
            raise refused("http.apps: only for JavaScript projects: mount apps within the one of http.app")
        return False
    for key in PYTHON_ONLY:
        if config.get(key):
            raise refused(f"{key}: only for Python projects")
    _named_major(config)
    loader = config.get("node_loader")
    if loader not in (None, "tsx"):
        raise refused(f"node_loader: {loader!r} is not supported: this server loads TypeScript with tsx")
    if isinstance(config.get("env"), list):
        raise refused("env: must be an object")
    _check_embed(config)
    return True


def _check_embed(config: Mapping[str, Any]) -> None:
    store = config.get("store")
    index = store.get("index") if isinstance(store, dict) else None
    embed = index.get("embed") if isinstance(index, dict) else None
    if isinstance(embed, str) and not project_rules.is_script(embed):
        raise refused(
            f"store.index.embed: {embed!r} cannot be used with JavaScript graphs: name a file,"
            ' "./embed.ts:embed"'
        )


def of_both_languages(config: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Return the keys that mean the same for both languages, and a note about each that means nothing here."""
    kept = {key: value for key, value in config.items() if key not in (*MEANINGLESS, *READ_HERE)}
    notes = [f"{key}: {IGNORED[1]}" for key in MEANINGLESS if config.get(key)]
    checkpointer = config.get("checkpointer")
    if isinstance(checkpointer, dict) and checkpointer.get("serde"):
        kept["checkpointer"] = {key: value for key, value in checkpointer.items() if key != "serde"}
        notes.append(f"checkpointer.serde: {IGNORED[1]}")
    return kept, notes


def _named_major(config: Mapping[str, Any]) -> int | None:
    """Return the major version of Node that the project names. Raises BuildFailed if no release here can be used."""
    value = config.get("node_version")
    if value is None:
        return None
    match = re.fullmatch(r"v?(\d{1,4})", value) if isinstance(value, str) else None
    if match is None:
        shown = orjson.dumps(value).decode()[:MAX_RANGE]
        raise refused(f'node_version: must be a major version such as "24", not {shown}')
    major = int(match[1])
    if major < OLDEST:
        raise refused(f"node_version: must be {OLDEST} or newer")
    if major != OLDEST and major not in RELEASES:
        raise refused(f"node_version: {major} is not installed on this server, which has {majors()}")
    return major


def majors() -> str:
    return " and ".join(map(str, sorted(RELEASES)))


def read(tree: SourceTree, config: Mapping[str, Any]) -> NodeProject:
    """Return what is needed to install the project. Raises BuildFailed, naming the key or file."""
    directory = _nearest(tree, lambda path: tree.is_file(path / PACKAGE))
    if directory is None:
        raise refused(f"{PACKAGE} is missing")
    package = _package(tree, directory)
    warnings: list[str] = []
    major = _major(config, package, warnings)
    lock_root = _nearest(
        tree, lambda path: any(tree.is_file(path / name) for name in (*LOCK_FILES, *BUN_LOCKS))
    )
    root = _workspace_root(tree, directory) if lock_root is None else lock_root
    declared = _declared(_package(tree, root) if tree.is_file(root / PACKAGE) else {}) or _declared(package)
    lock = None if lock_root is None else _lock(tree, root, declared and declared[0], warnings)
    if lock is None:
        manager, named = declared or ("pnpm" if tree.is_file(root / PNPM_WORKSPACE) else "npm", None)
        if manager not in LOCK_NAMES:
            raise refused(
                f"packageManager: {manager} is not supported: this server installs with npm, yarn or pnpm"
            )
    else:
        manager = LOCK_FILES[lock.name]
        named = declared[1] if declared is not None and declared[0] == manager else None
    content = b"" if lock is None else lock_content(tree, lock)
    _check_credentials(tree, {directory / PACKAGE, root / PACKAGE}, lock, content)
    folders = {root, directory, tree.directory}
    settings = [
        path for folder in sorted(folders) for name in MANAGER_SETTINGS if tree.is_file(path := folder / name)
    ]
    found = [each for path in settings for each in _credentials(path, tree.content(path))]
    warnings.extend(
        f"{place}: holds a credential as text: refer to a secret of the deployment, such as ${{NPM_TOKEN}}"
        for place, _ in found
    )
    return NodeProject(
        major=major,
        root=root,
        manager=manager,
        manager_major=_manager_major(manager, named, None if lock is None else content, warnings),
        lock=lock,
        variables=frozenset(
            name.decode() for path in settings for name in REFERENCE.findall(tree.content(path))
        ),
        credentials=frozenset(credential for _, credential in found),
        warnings=tuple(warnings),
    )


def _credentials(path: PurePosixPath, content: bytes) -> Iterator[tuple[str, str]]:
    """Yield the credentials that settings of a package manager hold as text, each with its file and line."""
    for number, line in enumerate(content.decode("utf-8", "replace").splitlines(), 1):
        if not line.lstrip().startswith(("#", ";")) and (match := CREDENTIAL.search(line[:MAX_LINE])):
            yield f"{path}, line {number}", match[1] or match[2].rpartition(":")[2]


def _nearest(tree: SourceTree, accepts: Callable[[PurePosixPath], bool]) -> PurePosixPath | None:
    """Return the first accepted folder, from that of the configuration upward to the archive's root."""
    return next(filter(accepts, (tree.directory, *tree.directory.parents)), None)


def _workspace_root(tree: SourceTree, directory: PurePosixPath) -> PurePosixPath:
    """Return the folder whose workspace a package is part of, where package managers install it; else its own."""
    for folder in directory.parents:
        if tree.is_file(folder / PNPM_WORKSPACE):
            return folder
        patterns = _package(tree, folder).get("workspaces") if tree.is_file(folder / PACKAGE) else None
        if isinstance(patterns, dict):  # of yarn, beside the key `nohoist`
            patterns = patterns.get("packages")
        if not isinstance(patterns, list):
            continue
        path = str(directory.relative_to(folder))
        if any(_matches(path, pattern) for pattern in patterns[:MAX_PATTERNS]):
            return folder
    return directory


def _matches(path: str, pattern: Any) -> bool:
    is_short = isinstance(pattern, str) and len(pattern) <= MAX_RANGE
    return is_short and fnmatch(path, pattern.removeprefix("./").rstrip("/"))


def _package(tree: SourceTree, folder: PurePosixPath) -> dict[str, Any]:
    path = folder / PACKAGE
    try:
        package = orjson.loads(tree.content(path))
    except orjson.JSONDecodeError as error:
        raise refused(f"{path} is not valid JSON: {error}") from error
    if not isinstance(package, dict):
        raise refused(f"{path} is not valid JSON: it must hold an object")
    return package


def _major(config: Mapping[str, Any], package: Mapping[str, Any], warnings: list[str]) -> int:
    """Return the major version of Node to run the project with. It is never lower than the one that it names."""
    named = _named_major(config)
    if named == OLDEST:
        warnings.append(f"Node {OLDEST} is past its end of life: the project runs on Node {max(RELEASES)}")
    is_chosen = named in RELEASES
    candidates = [major for major in RELEASES if not is_chosen or major >= (named or 0)]
    candidates.sort(key=lambda major: (major != named, -major))
    engines = package.get("engines")
    text = engines.get("node") if isinstance(engines, dict) else None
    if not isinstance(text, str):
        return candidates[0]
    wanted = _range(text)
    if wanted is None:
        warnings.append(
            f"{PACKAGE}: engines.node: {text[:MAX_RANGE]!r} is not a range of versions and is ignored"
        )
        return candidates[0]
    for major in candidates:
        if Version(RELEASES[major].version) in wanted:
            return major
    raise refused(f'{PACKAGE} asks for Node "{text}": this server has {majors()}')


def _range(text: str) -> NpmSpec | None:
    """Parse a range of versions as npm does. Returns None if it is not one."""
    if len(text) > MAX_RANGE:
        return None
    try:
        return NpmSpec(SPACED.sub(r"\1", text.strip()))
    except ValueError:
        return None


def _declared(package: Mapping[str, Any]) -> tuple[str, int | None] | None:
    """Return the package manager that a `package.json` declares and its major version, None if it declares none."""
    text = package.get("packageManager")
    if isinstance(text, str) and (match := MANAGER.match(text)):
        return match[1], int(match[2])
    engines = package.get("devEngines")
    manager = engines.get("packageManager") if isinstance(engines, dict) else None
    name = manager.get("name") if isinstance(manager, dict) else None
    return (name, None) if isinstance(name, str) else None


def _lock(tree: SourceTree, root: PurePosixPath, declared: str | None, warnings: list[str]) -> PurePosixPath:
    """Return the lock file to install from. Raises BuildFailed if there are only ones of unsupported managers."""
    present = [name for name in LOCK_FILES if tree.is_file(root / name)]
    if not present:
        name = next(name for name in BUN_LOCKS if tree.is_file(root / name))
        raise refused(f"{name}: this server installs with npm, yarn or pnpm: commit one of their lock files")
    chosen = next((name for name in present if LOCK_FILES[name] == declared), present[0])
    if len({LOCK_FILES[name] for name in present}) > 1:
        others = ", ".join(name for name in present if name != chosen)
        warnings.append(f"{chosen} is used, and {others} is not: a project needs one lock file")
    return root / chosen


def lock_content(tree: SourceTree, lock: PurePosixPath) -> bytes:
    """Return the content of a lock file. Raises BuildFailed."""
    try:
        content = tree.read(lock, MAX_LOCK_BYTES + 1)
    except OSError as error:
        raise refused(f"{lock} cannot be read: {error.strerror}") from error
    if len(content) > MAX_LOCK_BYTES:
        raise refused(f"{lock} is larger than {MAX_LOCK_BYTES // 2**20} MiB")
    return content


def _manager_major(manager: str, named: int | None, lock: bytes | None, warnings: list[str]) -> int | None:
    """Return the major version of the package manager. Raises BuildFailed for a lock that none here can read."""
    if manager == "npm":
        return None
    if manager == "yarn":
        return _yarn_major(named, lock)
    match = PNPM_LOCK.search(lock) if lock else None
    if lock is not None and (match is None or int(match[1]) < OLDEST_PNPM_LOCK):
        raise refused(
            "pnpm-lock.yaml: its format is older than that of pnpm 9: run pnpm install with a newer pnpm and commit it"
        )
    if named in PNPM_MAJORS:
        return named
    chosen = max(PNPM_MAJORS) if (named or 0) > max(PNPM_MAJORS) else PNPM_MAJORS[1]
    if named is not None:
        warnings.append(f"packageManager: pnpm {named} is not on this server: pnpm {chosen} is used")
    return chosen


def _yarn_major(named: int | None, lock: bytes | None) -> int:
    if lock is None:
        return YARN_BERRY if (named or YARN_CLASSIC) > YARN_CLASSIC else YARN_CLASSIC
    match = NEWER_YARN.search(lock)
    if match is None:
        return YARN_CLASSIC
    if int(match[1]) < OLDEST_YARN_LOCK:
        raise refused(
            "yarn.lock: its format is older than that of yarn 4: run yarn install with yarn 4 and commit it"
        )
    return YARN_BERRY


def _check_credentials(
    tree: SourceTree, packages: set[PurePosixPath], lock: PurePosixPath | None, content: bytes
) -> None:
    """Raise BuildFailed for a URL with credentials, which the service would store together with the source."""
    texts: Iterator[tuple[PurePosixPath, bytes]] = (
        (path, tree.content(path)) for path in sorted(packages) if tree.is_file(path)
    )
    for path, text in (*texts, *([] if lock is None else [(lock, content)])):
        if CREDENTIALS.search(text):
            raise refused(f"{path}: a URL must not hold a user name or password")
