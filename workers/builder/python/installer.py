"""Resolving and installing requirements with uv, in the sandbox of a build."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import orjson

from shared.errors import BuildFailed
from workers.builder.config.dependencies import LockedPackage, PipConfig
from workers.builder.config.manifest import Manifest
from workers.builder.python import toolchain
from workers.builder.python.requirements import PROJECT_VARIABLE, STEP, has_options, names_files
from workers.builder.python.toolchain import Interpreter
from workers.builder.steps import StepSandbox, WriteLine
from workers.builder.workspaces import SourceTree, Workspace

ENVIRONMENT, INSTALL = "environment", "install"  # names of steps
# The graph host needs LangGraph even if a project does not list it.
BASE_REQUIREMENTS = ("langgraph>=1.0.10,<2", "langgraph-checkpoint>=4.1,<5")
UNREACHABLE = re.compile(
    r"Failed to fetch|error sending request|Request failed after|dns error", re.IGNORECASE
)
NAMES_LIBRARY = re.compile(r"\blanggraph(-checkpoint)?\s*[=<>~!]")


class Installer:
    """Runs uv for one environment. Each method raises BuildFailed if its command fails."""

    def __init__(self, sandbox: StepSandbox, interpreter: Interpreter) -> None:
        self._sandbox = sandbox
        self._interpreter = interpreter
        self._variables = toolchain.variables(sandbox.passed_on, sandbox.cache)

    def create_environment(self, env: Path, write_line: WriteLine) -> None:
        """Create an empty virtual environment."""
        self._run(toolchain.create_environment(env, self._interpreter.path), write_line, step=ENVIRONMENT)

    def resolve(
        self, inputs: Sequence[Path], output: Path, index: PipConfig | None, write_line: WriteLine
    ) -> None:
        """Resolve the inputs and write the exact versions to a `pylock.toml`."""
        argv = toolchain.resolve(inputs, output, self._interpreter.path, index)
        refresh_unsatisfied(partial(self._run, step=STEP), argv, write_line)

    def export(self, root: Path, package: str, output: Path) -> None:
        """Write the versions that a workspace's lock file lists for a package to a requirements file."""
        argv = toolchain.export(root, package, output, self._interpreter.path)
        self._run(argv, lambda level, message: None, step=STEP)

    def install_wheels(self, requirements: Path, env: Path, write_line: WriteLine, *, writable: Path) -> None:
        """Install pinned wheels as links into the cache. The cache and `env` must be inside the folder `writable`."""
        argv = toolchain.install_wheels(requirements, env / "bin" / "python")
        refresh_unsatisfied(partial(self._run, step=INSTALL, writable=[writable]), argv, write_line)

    def install_built(
        self,
        requirements: Path | None,
        directories: Sequence[Path],
        env: Path,
        index: PipConfig | None,
        write_line: WriteLine,
        *,
        project: Path,
        readonly: Sequence[Path],
    ) -> None:
        """Build and install requirements, which may refer to files of the project, and the project's directories."""
        argv = toolchain.install_built(requirements, directories, env / "bin" / "python", index)
        run = partial(self._run, step=INSTALL, readonly=readonly, variables={PROJECT_VARIABLE: str(project)})
        refresh_unsatisfied(run, argv, write_line)

    def _run(
        self,
        argv: list[str],
        write_line: WriteLine,
        *,
        step: str,
        readonly: Sequence[Path] = (),
        writable: Sequence[Path] = (),
        variables: Mapping[str, str] | None = None,
    ) -> None:
        self._sandbox.run(
            step,
            argv,
            write_line,
            readonly=[toolchain.program(), self._interpreter.prefix, *readonly],
            writable=writable,
            variables={**self._variables, **(variables or {})},
        )


def refresh_unsatisfied(
    run: Callable[[list[str], WriteLine], None], argv: list[str], write_line: WriteLine
) -> None:
    """Run a command that queries a package index. If no version fits, run it again with a refreshed index.

    Index pages are cached for minutes, so a missing version may be a new release. Output of the first run from that
    error on is written only if there is no second run.
    """
    held_back: list[tuple[str, str]] = []

    def hold(level: str, message: str) -> None:
        if held_back or toolchain.UNSATISFIED in message:
            held_back.append((level, message))
        else:
            write_line(level, message)

    try:
        run(argv, hold)
    except BuildFailed:
        if not held_back:
            raise
        run([*argv, toolchain.REFRESH], write_line)
    else:
        for line in held_back:
            write_line(*line)


@dataclass(frozen=True)
class Inputs:
    """The inputs that determine a project's versions. Equal digests mean equal inputs."""

    manifest: Manifest
    interpreter: Interpreter
    files: tuple[Path, ...]  # requirements files
    is_from_operator_index: bool  # the project names no other index
    digest: str


def inputs_of(project: Path, manifest: Manifest, interpreter: Interpreter, archive_digest: str) -> Inputs:
    """Return the inputs of a project. Raises BuildFailed."""
    listed = [path / "requirements.txt" for path in manifest.plain]
    tree = SourceTree(project)
    contents = {path: tree.content(path) for path in listed if tree.is_file(path)}
    settings = [path / "pyproject.toml" for path in manifest.packages]
    configured = [tree.content(path) for path in settings if tree.is_file(path)]
    texts = [*contents.values(), *(entry.encode() for entry in manifest.requirements)]
    names_index = manifest.index is not None or any(map(has_options, texts))
    if manifest.locked is None:
        names_index = names_index or any(map(toolchain.is_redirected_by, configured))
    else:
        names_index = names_index or not manifest.locked.is_from_public_index
    # The requirements of local packages and included files may depend on any file in the archive.
    names_any = any(map(names_files, texts)) or bool(manifest.index and manifest.index.directories)
    rest = archive_digest if manifest.packages or names_any else ""
    parts = [
        interpreter.tag, *BASE_REQUIREMENTS, *manifest.requirements, repr(manifest.index), rest,
        *(content.decode("utf-8", "replace") for content in contents.values()),
    ]  # fmt: skip
    digest = hashlib.sha256(orjson.dumps(parts)).hexdigest()
    return Inputs(manifest, interpreter, tuple(project / path for path in contents), not names_index, digest)


def resolve(installer: Installer, workspace: Workspace, inputs: Inputs, write_line: WriteLine) -> Path:
    """Resolve the inputs. Returns the path of the lock file with the exact versions. Raises BuildFailed."""
    listed, output = workspace.root / "requirements.in", workspace.root / "pylock.toml"
    local = inputs.manifest.packages if inputs.manifest.locked is None else ()
    packages = [f"--editable {workspace.project / path}" for path in local]
    lines = (*BASE_REQUIREMENTS, *inputs.manifest.requirements, *packages)
    listed.write_text("".join(f"{line}\n" for line in lines))
    files = [listed, *inputs.files]
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
    if UNREACHABLE.search(reason):
        return f"the package index cannot be reached: {reason}"
    if NAMES_LIBRARY.search(reason):
        return f"{reason}: this server runs graphs with {' and '.join(BASE_REQUIREMENTS)}"
    return reason
