"""Number of processes of each kind that `runyard up` starts."""

from __future__ import annotations

from shared.settings import Formation, Settings

# Processors kept busy by one web, one runner, and the graph host and servers that work for them.
PROCESSORS_OF_A_PAIR = 4
MOST_PAIRS = 3  # more pairs could exceed the `max_connections` of the embedded PostgreSQL


def of_machine(settings: Settings, processors: int) -> Formation:
    """Return the number of web, runner and builder processes to start on a machine.

    The default is one builder, and one web and one runner per four processors, at most three of each. `runyard dev`
    starts one of each. `RUNYARD_PROCESSES` overrides the numbers it names.
    """
    pairs = max(1, min(processors // PROCESSORS_OF_A_PAIR, MOST_PAIRS))
    if settings.dev_deployment is not None:
        pairs = 1
    return tuple({"web": pairs, "runner": pairs, "builder": 1, **dict(settings.processes)}.items())


def written(formation: Formation) -> str:
    """Return the formation in the syntax of `RUNYARD_PROCESSES`."""
    return ",".join(f"{name}={number}" for name, number in formation)


def children(formation: Formation, name: str) -> int:
    """Return how many processes the supervisor starts for a line of the Procfile.

    It starts one `web`: gunicorn, which forks its own workers.
    """
    return 1 if name == "web" else dict(formation).get(name, 1)
