"""How many processes `runyard up` starts on a machine."""

from __future__ import annotations

import pytest

from cli.machine import embedded, formation
from shared.infra.postgres import MOST_CONNECTIONS
from shared.settings import Settings

RESERVED = 3 + 10  # for superusers, and for whoever looks into the database


@pytest.mark.parametrize(("processors", "pairs"), [(1, 1), (2, 1), (7, 1), (8, 2), (12, 3), (128, 3)])
def test_a_machine_gets_a_web_and_a_runner_for_every_four_processors(processors: int, pairs: int) -> None:
    found = dict(formation.of_machine(Settings.from_env({}), processors))

    assert found == {"web": pairs, "runner": pairs, "builder": 1}
    most = int(embedded.POSTGRES_SETTINGS["max_connections"]) - RESERVED
    assert sum(MOST_CONNECTIONS[name] * number for name, number in found.items()) <= most


def test_what_is_named_is_started_on_every_machine() -> None:
    settings = Settings.from_env({"RUNYARD_PROCESSES": "runner=5"})

    assert dict(formation.of_machine(settings, 8)) == {"web": 2, "runner": 5, "builder": 1}


def test_developing_takes_one_of_each() -> None:
    settings = Settings.from_env({"RUNYARD_DEV_DEPLOYMENT": "app"})

    assert dict(formation.of_machine(settings, 64)) == {"web": 1, "runner": 1, "builder": 1}


def test_processes_read_it_as_it_was_written() -> None:
    found = formation.of_machine(Settings.from_env({}), 8)

    assert Settings.from_env({"RUNYARD_PROCESSES": formation.written(found)}).processes == found
