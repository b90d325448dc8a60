"""Isolation levels available to this user on this machine, and the settings that lead to each."""

from __future__ import annotations

import dataclasses

from cli.machine.procfile import PROJECT
from shared.settings import Settings
from workers.isolation import bubblewrap, levels

NOT_A_USER = "nobody-of-this-machine"


def _levels() -> dict[int, dict[str, str]]:
    """Return the environment of each available level. A machine without namespaces has no level 2."""
    settings = Settings.from_env({"RUNYARD_DATA_DIR": str(PROJECT)})  # read only; nothing is written there
    found = {}
    if bubblewrap.find(None).program is not None:
        found[2] = {}
    without = dataclasses.replace(settings, bwrap="")
    if any(
        levels.why_impossible(each, without) is None for each in levels.candidates(without) if each.level == 1
    ):
        found[1] = {"RUNYARD_BWRAP": ""}
    found[0] = {"RUNYARD_BWRAP": "", "RUNYARD_SANDBOX_USER": NOT_A_USER}
    return found


LEVELS = _levels()
