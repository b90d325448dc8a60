"""The Procfile, which is the single list of the service's processes; how many of each start; and `runyard process`."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from cli import PROJECT
from cli.errors import BadUsage, CommandFailed
from shared.setting_values import Formation
from shared.settings import VARIABLES, Settings, check_public

LINE = re.compile(r"^(?P<name>[a-z][a-z0-9-]*):\s*(?P<command>\S.*)$")
RELEASE, BEAT = "release", "beat"
WITH_BEAT = " --with-beat"  # option of a worker
# Addresses and keys that a process never uses. Withholding them means that a compromised process cannot leak them.
WITHHELD = {
    BEAT: (
        "DATABASE_URL", "DATABASE_READ_URL", "DATABASE_DIRECT_URL", "RUNYARD_API_KEY", "RUNYARD_ENCRYPTION_KEYS",
    )
}  # fmt: skip


# Set by honcho. With it `release` keeps running after the migrations, because honcho stops everything when a process
# ends. Under our own supervisor `release` has to end, so the variable is removed.
UNDER_HONCHO = "HONCHO_PROCESS_NAME"

# Settings that a process requires; processes that are not listed require SERVING.
NEEDED = {"release": ("database_url",), BEAT: ("redis_url",)}
SERVING = ("database_url", "redis_url", "encryption_keys")

# Processors kept busy by one web, one runner, and the graph host and servers that work for them.
PROCESSORS_OF_A_PAIR = 4
MOST_PAIRS = 3  # more pairs could exceed the `max_connections` of the embedded PostgreSQL


class BadProcfile(ValueError):
    """A line of the Procfile cannot be read."""


@dataclass(frozen=True)
class ProcfileLine:
    name: str
    command: str  # shell syntax; may refer to variables

    @property
    def argv(self) -> list[str]:
        """The command line. The shell replaces itself with the command (`exec`), so the process id is the command's."""
        return ["/bin/sh", "-c", f"exec {self.command}"]

    def environment(self, whole: Mapping[str, str]) -> dict[str, str]:
        """Return the part of the service's environment that this process receives."""
        withheld = {f"{name}{end}" for name in WITHHELD.get(self.name, ()) for end in ("", "_FILE")}
        withheld.add(UNDER_HONCHO)
        return {name: value for name, value in whole.items() if name not in withheld}


def read(path: Path = PROJECT / "Procfile") -> list[ProcfileLine]:
    """Return the lines in order. Raises BadProcfile."""
    lines = []
    for number, text in enumerate(path.read_text().splitlines(), 1):
        if not text.strip() or text.startswith("#"):
            continue
        match = LINE.match(text)
        if match is None:
            raise BadProcfile(f"{path}, line {number}: not `name: command`: {text!r}")
        lines.append(ProcfileLine(match["name"], match["command"].strip()))
    return lines


def base_environment(variables: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that every process needs: search paths of programs and modules, and interpreter options."""
    return {
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), variables.get("PATH", os.defpath)]),
        # Keep modules in the caller's folder or path out, such as a project's own `shared` package.
        "PYTHONPATH": str(PROJECT),
        "PYTHONSAFEPATH": "1",
        "PYTHONUNBUFFERED": "1",
        "MALLOC_ARENA_MAX": "2",  # a heap per thread would take memory that is never returned
    }


# The number of processes


def formation_of(settings: Settings, processors: int) -> Formation:
    """Return the number of web, runner and builder processes to start on a machine.

    The default is one builder, and one web and one runner per four processors, at most three of each. `runyard dev`
    starts one of each. `RUNYARD_PROCESSES` overrides the numbers it names.
    """
    pairs = max(1, min(processors // PROCESSORS_OF_A_PAIR, MOST_PAIRS))
    if settings.dev_deployment is not None:
        pairs = 1
    return tuple({"web": pairs, "runner": pairs, "builder": 1, **dict(settings.processes)}.items())


def formation_text(formation: Formation) -> str:
    """Return the formation in the syntax of `RUNYARD_PROCESSES`."""
    return ",".join(f"{name}={number}" for name, number in formation)


def supervised(formation: Formation) -> list[ProcfileLine]:
    """Return a line for each process that the supervisor starts: `web`, `runner`, `runner.2` …, `builder` ….

    It starts one `web`: gunicorn, which forks its own workers. The first builder also runs the schedule of beat: a
    process of its own would take 24 MB.
    """
    lines = []
    for line in read():
        if line.name in (RELEASE, BEAT):
            continue
        count = 1 if line.name == "web" else dict(formation).get(line.name, 1)
        for number in range(1, count + 1):
            name = line.name if number == 1 else f"{line.name}.{number}"
            lines.append(ProcfileLine(name, line.command + (WITH_BEAT if name == "builder" else "")))
    return lines


def line_of(name: str) -> ProcfileLine:
    """Return the line of the Procfile with this name. Raises BadUsage."""
    lines = {line.name: line for line in read()}
    if name not in lines:
        raise BadUsage(f"There is no process {name!r}. There are: {', '.join(lines)}.")
    return lines[name]


def environment_of(line: ProcfileLine, variables: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of the process: the given variables, with absolute paths and our search paths.

    Raises BadSetting, and CommandFailed if a required setting is missing.
    """
    check_public(variables)
    settings = Settings.from_env(variables)
    missing = [VARIABLES[name] for name in NEEDED.get(line.name, SERVING) if not getattr(settings, name)]
    if missing:
        raise CommandFailed(
            f"{line.name} needs {' and '.join(missing)}: set what is missing, or start the whole service with"
            " `runyard up`."
        )
    return line.environment({**variables, **_paths(variables, settings), **base_environment(variables)})


def _paths(variables: Mapping[str, str], settings: Settings) -> dict[str, str]:
    """Return the variables that hold paths, made absolute. The process runs in another working directory."""
    files = [f"{name}_FILE" for name in VARIABLES.values()]
    return {
        "RUNYARD_DATA_DIR": str(settings.data_dir),
        "RUNYARD_CACHE_DIR": str(settings.cache_dir),
        **{name: str(Path(variables[name]).absolute()) for name in files if variables.get(name)},
    }
