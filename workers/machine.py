"""Print what this machine offers to user code as one JSON object: `python -m workers.machine FOLDER`.

`runyard doctor` shows it. The command changes nothing. FOLDER is the data directory, or its nearest existing parent.
"""

from __future__ import annotations

import dataclasses
import json
import os
import sys
from pathlib import Path
from typing import Any

from shared.setting_values import BadSetting
from shared.settings import Settings
from workers.builder.python import toolchain
from workers.isolation import levels


def report(settings: Settings) -> dict[str, Any]:
    """Return the isolation level, the obstacles to a better one, and the Python interpreters."""
    tools = {"refusal": "", "pythons": pythons(settings), "uv": _uv_version()}
    try:
        best, reasons = levels.find(settings)
    except BadSetting as error:
        return {**tools, "refusal": str(error)}
    return {
        **tools,
        "level": best.level,
        "meaning": levels.MEANINGS[best.level],
        "reasons": reasons,
        "advice": levels.advice(settings),
    }


def pythons(settings: Settings) -> list[str]:
    """Return the versions that a project's `python_version` may name, the service's own first."""
    env = {"PATH": settings.passed_on.get("PATH", "")}
    versions = toolchain.versions(toolchain.output_of(toolchain.list_pythons(">=3.11"), env) or b"[]")
    others = {".".join(version.split(".")[:2]) for version in versions}
    return [toolchain.HERE, *sorted(others - {toolchain.HERE}, key=_as_number)]


def _as_number(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split("."))


def _uv_version() -> str:
    output = toolchain.output_of([str(toolchain.program()), "--version"], {}) or b"uv unknown"
    return output.decode().split()[1]


if __name__ == "__main__":
    settings = Settings.from_env(os.environ)
    print(json.dumps(report(dataclasses.replace(settings, data_dir=Path(sys.argv[1])))))  # noqa: T201
