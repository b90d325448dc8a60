"""What the status words of revisions and runs mean: the one table of the command line.

The service's own is in `shared/models/statuses.py`, which brings SQLAlchemy along: a command would take twice as
long to start. A test holds the two together.
"""

from __future__ import annotations

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
    """The style of a revision's status on a terminal."""
    return STYLES.get(status, "cyan")


RUN_STYLES = {
    "success": "green",
    "idle": "green",
    "interrupted": "yellow",
    "error": "bold red",
    "timeout": "bold red",
}


def run_style(status: str) -> str:
    """The style of a run's or a thread's status on a terminal."""
    return RUN_STYLES.get(status, "cyan")
