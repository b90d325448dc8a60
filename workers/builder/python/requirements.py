"""The exact versions of a revision's environment, and the two ways of installing them.

Wheels of the operator's index are pinned by hash and run no code during installation. They are installed from a cache
that all deployments share. All other packages (source distributions, repositories, URLs, directories of the project,
packages of an index that the project names) may run their own code. The builder installs them in the sandbox, with the
deployment's own cache.

The text of a set is a requirements file, in which the line BUILT_HERE separates the two kinds.
"""

from __future__ import annotations

import hashlib
import json
import re
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from shared.errors import BuildFailed

STEP = "requirements"
BUILT_HERE = "# installed in the sandbox, with a cache of the deployment's own"
PROJECT_VARIABLE = "PROJECT_ROOT"  # in lines that name a file of the project; the installer sets it
# `\s` at the beginning of a line would search through all empty lines below it, again for each of them.
OPTION = re.compile(rb"^[^\S\n]*-", re.MULTILINE)
WEB = ("https://", "http://")
LOCAL = re.compile(rb"^[^\S\n]*(\.|/|file:|\$)|@\s*(\.|/|file:|\$)", re.MULTILINE)


@dataclass(frozen=True)
class Requirements:
    """A resolved set of requirements."""

    wheels: tuple[str, ...] = ()
    built: tuple[str, ...] = ()
    # A `pylock.toml` with the URLs of the wheels. Only a set that this build has resolved has one.
    lock: str = field(default="", compare=False, repr=False)

    def __str__(self) -> str:
        parts = [*self.wheels, *([BUILT_HERE, *self.built] if self.built else [])]
        return "".join(f"{line}\n" for line in parts)

    @property
    def key(self) -> str:
        """The name of the set of wheels: a digest."""
        return hashlib.sha256("\n".join(self.wheels).encode()).hexdigest()[:32]

    @classmethod
    def parse(cls, text: str) -> Requirements:
        """Parse the text of a set. Requirements without hashes are never installed from the shared cache."""
        wheels, _, built = text.partition(BUILT_HERE)
        pinned = [line for line in _lines(wheels) if "--hash=" in line]
        loose = [line for line in _lines(wheels) if "--hash=" not in line]
        return cls(tuple(pinned), (*loose, *_lines(built)))


def _lines(text: str) -> list[str]:
    lines = [line.strip() for line in text.splitlines()]
    return [line for line in lines if line and not line.startswith("#")]


def from_lock(
    lock: str, project: Path, local: Iterable[Path], *, is_from_operator_index: bool
) -> Requirements:
    """Return the set that a resolver's `pylock.toml` contains. Raises BuildFailed.

    `local` are directories that are installed separately and left out. `is_from_operator_index` means that every
    package without its own URL comes from the operator's index.
    """
    try:
        packages = [each for each in tomllib.loads(lock)["packages"] if not _is_one_of(each, local)]
        pinned = [each for each in packages if is_from_operator_index and _is_pinned(each)]
        built = [each for each in packages if each not in pinned]
        return Requirements(
            wheels=tuple(_line(each, project) for each in pinned),
            built=tuple(_line(each, project) for each in built),
            lock="".join(('lock-version = "1.0"\ncreated-by = "runyard"\n', *map(_locked, pinned))),
        )
    except (tomllib.TOMLDecodeError, KeyError, TypeError, AttributeError) as error:
        raise BuildFailed(STEP, "their list cannot be read") from error


def _is_one_of(package: Mapping[str, Any], directories: Iterable[Path]) -> bool:
    path = package.get("directory", {}).get("path")
    return path is not None and Path(path) in directories


def _is_pinned(package: Mapping[str, Any]) -> bool:
    """Whether a package consists of wheels of an index, each with a URL and a hash."""
    wheels = package.get("wheels") or []
    is_indexed = not any(key in package for key in ("vcs", "archive", "directory"))
    return is_indexed and bool(wheels) and all(map(_has_address_and_hash, wheels))


def _has_address_and_hash(wheel: Mapping[str, Any]) -> bool:
    return wheel.get("url", "").startswith(WEB) and "sha256" in wheel.get("hashes", {})


def _locked(package: Mapping[str, Any]) -> str:
    """Return the entry of a pinned package in a `pylock.toml`. JSON strings are also valid TOML strings."""
    wheels = [
        f"{{ url = {json.dumps(wheel['url'])}, hashes = {{ sha256 = {json.dumps(wheel['hashes']['sha256'])} }} }}"
        for wheel in package["wheels"]
    ]
    return (
        f"[[packages]]\nname = {json.dumps(package['name'])}\nversion = {json.dumps(package['version'])}\n"
        f"wheels = [{', '.join(wheels)}]\n"
    )


def _line(package: Mapping[str, Any], project: Path) -> str:
    """Return the line of a package in a requirements file."""
    name = package["name"]
    if "vcs" in package:
        vcs = package["vcs"]
        fragment = f"#subdirectory={vcs['subdirectory']}" if vcs.get("subdirectory") else ""
        return f"{name} @ {vcs['type']}+{vcs['url']}@{vcs['commit-id']}{fragment}"
    if "archive" in package:
        archive = package["archive"]
        address = archive.get("url") or _file(archive["path"], project)
        return f"{name} @ {address}"
    if "directory" in package:
        directory = package["directory"]
        address = _file(directory["path"], project)
        return f"-e {address}" if directory.get("editable") else f"{name} @ {address}"
    files = package.get("wheels") or ([package["sdist"]] if "sdist" in package else [])
    hashes = sorted({f"--hash=sha256:{file['hashes']['sha256']}" for file in files if "hashes" in file})
    return " ".join((f"{name}=={package['version']}", *hashes))


def _file(path: str, project: Path) -> str:
    """Return the URL of a file or folder of the project. Raises BuildFailed if it is outside the project."""
    whole = Path(path) if Path(path).is_absolute() else project / path
    if not whole.is_relative_to(project):
        raise BuildFailed(STEP, f"{path!r} lies outside the project")
    return f"file://${{{PROJECT_VARIABLE}}}/{whole.relative_to(project).as_posix()}"


def has_options(content: bytes) -> bool:
    """Whether a requirements file contains options, such as other files, indexes or directories."""
    return OPTION.search(content) is not None


def names_files(content: bytes) -> bool:
    """Whether requirements depend on other files of the project."""
    return has_options(content) or LOCAL.search(content) is not None
