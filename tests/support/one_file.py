"""A project with one file and the graph `agent`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

CONFIG = {"dependencies": ["."], "graphs": {"agent": "./agent.py:graph"}}


def files(code: str, requirements: str = "", **config: Any) -> dict[str, str]:
    """Return the project's files by name. `config` overrides entries of `langgraph.json`."""
    return {
        "langgraph.json": json.dumps(CONFIG | config),
        "agent.py": code,
        "requirements.txt": requirements,
    }


def write(folder: Path, code: str, requirements: str = "", **config: Any) -> Path:
    """Write the project to a folder, which is created if missing. Returns the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files(code, requirements, **config).items():
        (folder / name).write_text(text)
    return folder
