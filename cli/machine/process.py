"""`runyard process`: run one line of the Procfile under an external supervisor."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer

from cli.errors import BadUsage, CommandFailed
from cli.machine import procfile
from cli.options import sentences
from shared.settings import VARIABLES, Settings, check_public, unknown_variables

# Settings that a process requires; processes that are not listed require SERVING.
NEEDED = {"release": ("database_url",), "beat": ("redis_url",)}
SERVING = ("database_url", "redis_url", "encryption_keys")


def command(
    name: Annotated[
        str,
        typer.Argument(
            help="Process: release, web, runner, builder or beat.", metavar="PROCESS", show_default=False
        ),
    ],
) -> None:
    """Execute one process of the service, for containers, systemd and Kubernetes.

    Start `release` first: it migrates the database and ends. The other processes serve until SIGTERM. The settings name
    the servers and keys; unlike `runyard up`, this command creates none. The command replaces itself by the process, which
    keeps the process id.
    """
    with sentences():
        line = line_of(name)
        environment = environment_of(line, os.environ)
        for text in unknown_variables(os.environ):
            typer.echo(text, err=True)
        os.chdir(procfile.PROJECT)
        os.execve(line.argv[0], line.argv, environment)


def line_of(name: str) -> procfile.ProcfileLine:
    """Return the line of the Procfile with this name. Raises BadUsage."""
    lines = {line.name: line for line in procfile.read()}
    if name not in lines:
        raise BadUsage(f"There is no process {name!r}. There are: {', '.join(lines)}.")
    return lines[name]


def environment_of(line: procfile.ProcfileLine, given: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of the process: the given variables, with absolute paths and our search paths.

    Raises BadSetting, and CommandFailed if a required setting is missing.
    """
    check_public(given)
    settings = Settings.from_env(given)
    missing = [VARIABLES[name] for name in NEEDED.get(line.name, SERVING) if not getattr(settings, name)]
    if missing:
        raise CommandFailed(
            f"{line.name} needs {' and '.join(missing)}: set what is missing, or start the whole service with"
            " `runyard up`."
        )
    return line.environment({**given, **_paths(given, settings), **procfile.surroundings(given)})


def _paths(given: Mapping[str, str], settings: Settings) -> dict[str, str]:
    """Return the variables that hold paths, made absolute. The process runs in another working directory."""
    files = [f"{name}_FILE" for name in VARIABLES.values()]
    return {
        "RUNYARD_DATA_DIR": str(settings.data_dir),
        "RUNYARD_CACHE_DIR": str(settings.cache_dir),
        **{name: str(Path(given[name]).absolute()) for name in files if given.get(name)},
    }
