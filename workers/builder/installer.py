"""Execution of uv in the sandbox of a build, for one interpreter and with one cache."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

from shared.errors import BuildFailed
from workers.builder import uv
from workers.builder.config.pip_config import PipConfig
from workers.builder.interpreters import Interpreter
from workers.builder.requirements import PROJECT_VARIABLE
from workers.builder.steps import StepSandbox, WriteLine

ENVIRONMENT, REQUIREMENTS, INSTALL = "environment", "requirements", "install"  # names of steps


class Installer:
    """Runs uv for one environment. Each method raises BuildFailed if its command fails."""

    def __init__(self, sandbox: StepSandbox, interpreter: Interpreter) -> None:
        self._sandbox = sandbox
        self._interpreter = interpreter
        self._variables = uv.variables(sandbox.passed_on, sandbox.cache)

    def create_environment(self, env: Path, write_line: WriteLine) -> None:
        """Create an empty virtual environment."""
        self._run(uv.create_environment(env, self._interpreter.path), write_line, step=ENVIRONMENT)

    def resolve(
        self, inputs: Sequence[Path], output: Path, index: PipConfig | None, write_line: WriteLine
    ) -> None:
        """Resolve the inputs and write the exact versions to a `pylock.toml`."""
        argv = uv.resolve(inputs, output, self._interpreter.path, index)
        refresh_unsatisfied(partial(self._run, step=REQUIREMENTS), argv, write_line)

    def export(self, root: Path, package: str, output: Path) -> None:
        """Write the versions that a workspace's lock file lists for a package to a requirements file."""
        argv = uv.export(root, package, output, self._interpreter.path)
        self._run(argv, lambda level, message: None, step=REQUIREMENTS)

    def install_wheels(self, requirements: Path, env: Path, write_line: WriteLine, *, writable: Path) -> None:
        """Install pinned wheels as links into the cache. The cache and `env` must be inside the folder `writable`."""
        argv = uv.install_wheels(requirements, env / "bin" / "python")
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
        argv = uv.install_built(requirements, directories, env / "bin" / "python", index)
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
            readonly=[uv.program(), self._interpreter.prefix, *readonly],
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
    held: list[tuple[str, str]] = []

    def hold(level: str, message: str) -> None:
        if held or uv.is_unsatisfied(message):
            held.append((level, message))
        else:
            write_line(level, message)

    try:
        run(argv, hold)
    except BuildFailed:
        if not held:
            raise
        run([*argv, uv.REFRESH], write_line)
    else:
        for line in held:
            write_line(*line)
