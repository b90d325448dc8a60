"""Print what this machine offers to user code as one JSON object: `python -m workers.machine FOLDER`.

`runyard doctor` shows it. The command changes nothing. FOLDER is the data directory, or its nearest existing parent.
"""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from shared.setting_values import BadSetting
from shared.settings import Settings
from workers.builder.python import interpreters, uv
from workers.isolation import levels

FIND_SECONDS = 30


def look(settings: Settings) -> dict[str, Any]:
    """Return the isolation level, the obstacles to a better one, and the Python interpreters."""
    found: dict[str, Any] = {"refusal": "", "pythons": pythons(settings), "uv": _uv_version()}
    try:
        best, reasons = levels.find(settings)
    except BadSetting as error:
        return {**found, "refusal": str(error)}
    return {
        **found,
        "level": best.level,
        "meaning": levels.MEANINGS[best.level],
        "reasons": reasons,
        "advice": levels.advice(settings),
    }


def pythons(settings: Settings) -> list[str]:
    """Return the versions that a project's `python_version` may name, the service's own first."""
    said = _output(uv.list_pythons(">=3.11"), settings)
    others = {".".join(version.split(".")[:2]) for version in uv.versions(said or b"[]")}
    return [interpreters.HERE, *sorted(others - {interpreters.HERE}, key=_as_number)]


def _as_number(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split("."))


def _uv_version() -> str:
    said = _output([str(uv.program()), "--version"], None) or b"uv unknown"
    return said.decode().split()[1]


def _output(argv: list[str], settings: Settings | None) -> bytes | None:
    """Return a command's standard output, or None if it fails."""
    passed_on = {} if settings is None else {"PATH": settings.passed_on.get("PATH", "")}
    env = {**passed_on, "HOME": str(Path.home()), **uv.NO_DOWNLOADS}
    try:
        done = subprocess.run(argv, env=env, capture_output=True, timeout=FIND_SECONDS, check=False, cwd="/")
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 else None


if __name__ == "__main__":
    own = Settings.from_env(os.environ)
    print(json.dumps(look(dataclasses.replace(own, data_dir=Path(sys.argv[1])))))  # noqa: T201
