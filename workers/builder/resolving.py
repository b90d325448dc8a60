"""What a project asks for, and the exact versions that satisfy it: the installer decides, in the sandbox."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from pathlib import Path

import orjson

from shared.errors import BuildFailed
from workers.builder import commands
from workers.builder.config import manifest
from workers.builder.config.manifest import Manifest
from workers.builder.config.uv_project import Locked
from workers.builder.interpreters import Interpreter
from workers.builder.requirements import STEP, configures_installer, has_options, names_files
from workers.builder.steps import Place, Say
from workers.builder.workspaces import Workspace

OWN_CLAIM = re.compile(r"\blanggraph(-checkpoint)?\s*[=<>~!]")
UNREACHABLE = re.compile(
    r"Failed to fetch|error sending request|Request failed after|dns error", re.IGNORECASE
)


@dataclass(frozen=True)
class Asked:
    """What a project asks for; the same digest, the same wishes."""

    manifest: Manifest
    interpreter: Interpreter
    files: tuple[Path, ...]  # requirement files
    is_ours: bool  # nothing but the operator's index says where packages come from
    digest: str


def asked(project: Path, found: Manifest, interpreter: Interpreter, archive_digest: str) -> Asked:
    """What the project asks for; raises BuildFailed."""
    listed = [path / "requirements.txt" for path in found.plain]
    contents = {path: manifest.content(project, path) for path in listed if (project / path).is_file()}
    settings = [path / "pyproject.toml" for path in found.packages]
    configured = [manifest.content(project, path) for path in settings if (project / path).is_file()]
    texts = [*contents.values(), *(entry.encode() for entry in found.requirements)]
    has_index = found.index is not None or any(map(has_options, texts))
    if found.locked is not None:
        configured = []
    is_ours = not has_index and not any(map(configures_installer, configured))
    is_ours = is_ours and (found.locked is None or found.locked.is_ours)
    # What local packages and further files ask for may depend on anything in the archive.
    names_any = any(map(names_files, texts)) or bool(found.index and found.index.directories)
    rest = archive_digest if found.packages or names_any else ""
    wishes = [
        interpreter.tag, *commands.BASE_REQUIREMENTS, *found.requirements, repr(found.index), rest,
        *(content.decode("utf-8", "replace") for content in contents.values()),
    ]  # fmt: skip
    digest = hashlib.sha256(orjson.dumps(wishes)).hexdigest()
    return Asked(found, interpreter, tuple(project / path for path in contents), is_ours, digest)


def resolve(place: Place, uv: str, workspace: Workspace, asked: Asked, say: Say) -> Path:
    """Where the lock file with the exact versions is; raises BuildFailed."""
    wanted, output = workspace.root / "wanted.in", workspace.root / "pylock.toml"
    local = asked.manifest.packages if asked.manifest.locked is None else ()
    packages = [f"--editable {workspace.project / path}" for path in local]
    lines = (*commands.BASE_REQUIREMENTS, *asked.manifest.requirements, *packages)
    wanted.write_text("".join(f"{line}\n" for line in lines))
    inputs = [wanted, *asked.files]
    if asked.manifest.locked is not None:
        inputs.append(_exported(place, uv, workspace, asked, asked.manifest.locked, say))
    python = str(asked.interpreter.path)
    index = asked.manifest.index and asked.manifest.index.within(workspace.project)
    argv = commands.resolve(uv, inputs, output, python, index)
    try:
        place.ask_index(STEP, argv, say, readonly=[asked.interpreter.prefix])
    except BuildFailed as error:
        raise BuildFailed(STEP, _explained(error.message)) from error
    return output


def _exported(place: Place, uv: str, workspace: Workspace, asked: Asked, locked: Locked, say: Say) -> Path:
    """A requirements file with what the lock file of a uv workspace says of a package."""
    say("INFO", f"reading uv.lock for {locked.package}")
    output, root = workspace.root / "locked.txt", workspace.project / locked.root
    argv = commands.export(uv, root, locked.package, output, str(asked.interpreter.path))
    place.run(STEP, argv, lambda level, message: None, readonly=[asked.interpreter.prefix])
    return output


def _explained(reason: str) -> str:
    """The installer's reason, with what its reader cannot know."""
    if UNREACHABLE.search(reason):
        return f"the package index cannot be reached: {reason}"
    if OWN_CLAIM.search(reason):
        return f"{reason}: this server runs graphs with {' and '.join(commands.BASE_REQUIREMENTS)}"
    return reason
