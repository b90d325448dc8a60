"""Resolving of a project's requirements to exact versions, with the installer."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from pathlib import Path

import orjson

from shared.errors import BuildFailed
from workers.builder import uv
from workers.builder.config.manifest import Manifest
from workers.builder.config.uv_workspace import LockedPackage
from workers.builder.installer import Installer
from workers.builder.interpreters import Interpreter
from workers.builder.requirements import STEP, has_options, names_files
from workers.builder.source_tree import SourceTree
from workers.builder.steps import WriteLine
from workers.builder.workspaces import Workspace

# The graph host needs LangGraph even if a project does not list it.
BASE_REQUIREMENTS = ("langgraph>=1.0.10,<2", "langgraph-checkpoint>=4.1,<5")
NAMES_LIBRARY = re.compile(r"\blanggraph(-checkpoint)?\s*[=<>~!]")


@dataclass(frozen=True)
class Inputs:
    """The inputs that determine a project's versions. Equal digests mean equal inputs."""

    manifest: Manifest
    interpreter: Interpreter
    files: tuple[Path, ...]  # requirements files
    is_ours: bool  # the project names no index besides the operator's
    digest: str


def inputs_of(project: Path, found: Manifest, interpreter: Interpreter, archive_digest: str) -> Inputs:
    """Return the inputs of a project. Raises BuildFailed."""
    listed = [path / "requirements.txt" for path in found.plain]
    tree = SourceTree(project)
    contents = {path: tree.content(path) for path in listed if tree.is_file(path)}
    settings = [path / "pyproject.toml" for path in found.packages]
    configured = [tree.content(path) for path in settings if tree.is_file(path)]
    texts = [*contents.values(), *(entry.encode() for entry in found.requirements)]
    has_index = found.index is not None or any(map(has_options, texts))
    if found.locked is not None:
        configured = []
    is_ours = not has_index and not any(map(uv.is_redirected_by, configured))
    is_ours = is_ours and (found.locked is None or found.locked.is_ours)
    # The requirements of local packages and included files may depend on any file in the archive.
    names_any = any(map(names_files, texts)) or bool(found.index and found.index.directories)
    rest = archive_digest if found.packages or names_any else ""
    parts = [
        interpreter.tag, *BASE_REQUIREMENTS, *found.requirements, repr(found.index), rest,
        *(content.decode("utf-8", "replace") for content in contents.values()),
    ]  # fmt: skip
    digest = hashlib.sha256(orjson.dumps(parts)).hexdigest()
    return Inputs(found, interpreter, tuple(project / path for path in contents), is_ours, digest)


def resolve(installer: Installer, workspace: Workspace, inputs: Inputs, write_line: WriteLine) -> Path:
    """Resolve the inputs. Returns the path of the lock file with the exact versions. Raises BuildFailed."""
    wanted, output = workspace.root / "wanted.in", workspace.root / "pylock.toml"
    local = inputs.manifest.packages if inputs.manifest.locked is None else ()
    packages = [f"--editable {workspace.project / path}" for path in local]
    lines = (*BASE_REQUIREMENTS, *inputs.manifest.requirements, *packages)
    wanted.write_text("".join(f"{line}\n" for line in lines))
    files = [wanted, *inputs.files]
    if inputs.manifest.locked is not None:
        files.append(_exported(installer, workspace, inputs.manifest.locked, write_line))
    index = inputs.manifest.index and inputs.manifest.index.within(workspace.project)
    try:
        installer.resolve(files, output, index, write_line)
    except BuildFailed as error:
        raise BuildFailed(STEP, _explained(error.message)) from error
    return output


def _exported(
    installer: Installer, workspace: Workspace, locked: LockedPackage, write_line: WriteLine
) -> Path:
    """Write a requirements file with the versions that a uv workspace's lock file lists for a package."""
    write_line("INFO", f"reading uv.lock for {locked.package}")
    output = workspace.root / "locked.txt"
    installer.export(workspace.project / locked.root, locked.package, output)
    return output


def _explained(reason: str) -> str:
    """Return the installer's reason, with additional information about this server."""
    if uv.is_unreachable(reason):
        return f"the package index cannot be reached: {reason}"
    if NAMES_LIBRARY.search(reason):
        return f"{reason}: this server runs graphs with {' and '.join(BASE_REQUIREMENTS)}"
    return reason
