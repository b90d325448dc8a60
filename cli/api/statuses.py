"""Statuses of revisions and runs: their groups, and their styles on a terminal.

The service's own definitions are in `shared/models/statuses.py`. Importing them would load SQLAlchemy and double the
start time of a command. A test compares the two.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

REVISION_FAILURES = frozenset({"CREATE_FAILED", "BUILD_FAILED", "DEPLOY_FAILED"})
REVISION_ENDS = REVISION_FAILURES | {"DEPLOYED", "SKIPPED", "INTERRUPTED"}
UNSUCCESSFUL_RUNS = frozenset({"error", "timeout", "interrupted"})

STYLES = {
    "DEPLOYED": "bold green",
    "SKIPPED": "yellow",
    "INTERRUPTED": "yellow",
    **dict.fromkeys(REVISION_FAILURES, "bold red"),
}


def status_style(status: str) -> str:
    """Return the style of a revision's status."""
    return STYLES.get(status, "cyan")


RUN_STYLES = {
    "success": "green",
    "idle": "green",
    "interrupted": "yellow",
    "error": "bold red",
    "timeout": "bold red",
}


def run_style(status: str) -> str:
    """Return the style of a run's or a thread's status."""
    return RUN_STYLES.get(status, "cyan")


WAITS_FOR = {"answer": "waits for an answer", "resume": "waits to be resumed"}


def run_state(row: Mapping[str, Any]) -> str:
    """Return a run's status as text, with the reason if the run stopped at a question or at a breakpoint."""
    waits_for = row.get("waits_for")
    return f"{row['status']}, {WAITS_FOR.get(waits_for, waits_for)}" if waits_for else row["status"]


def run_state_style(row: Mapping[str, Any]) -> str:
    """Return the style of the text that `run_state` returns."""
    return RUN_STYLES["interrupted"] if row.get("waits_for") else run_style(row["status"])
