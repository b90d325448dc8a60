"""How many of each process `runyard up` starts."""

from __future__ import annotations

from shared.settings import Formation, Settings

# One web and one runner keep, with the graph host and the servers that work for them, about so many processors busy.
PROCESSORS_OF_A_PAIR = 4
MOST_PAIRS = 3  # more may take more connections than the embedded PostgreSQL has


def of_machine(settings: Settings, processors: int) -> Formation:
    """Those that `RUNYARD_PROCESSES` names; of web and runner else one for every four processors, of builder one."""
    pairs = max(1, min(processors // PROCESSORS_OF_A_PAIR, MOST_PAIRS))
    if settings.dev_deployment is not None:
        pairs = 1
    return tuple({"web": pairs, "runner": pairs, "builder": 1, **dict(settings.processes)}.items())


def written(formation: Formation) -> str:
    """As the setting is written."""
    return ",".join(f"{name}={number}" for name, number in formation)


def children(formation: Formation, name: str) -> int:
    """How many processes of a line of the Procfile are started: one web is gunicorn, which starts those of `web`."""
    return 1 if name == "web" else dict(formation).get(name, 1)
