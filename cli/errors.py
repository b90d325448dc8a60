"""Errors of the command line, with messages for the user, and exit codes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

# Scripts rely on these exit codes. `runyard deploy --help` and docs/reference/cli.md document them.
FAILED, USAGE, TIMED_OUT, INTERRUPTED = 1, 2, 3, 130
RULE_FAILED, NOT_JUDGED, NOT_TESTED = 3, 4, 5  # of a replay


class CommandFailed(Exception):
    """The command failed. The message says why and what to do; `details` holds fields for `--json`."""

    exit_code = FAILED

    def __init__(self, message: str, details: Mapping[str, Any] | None = None) -> None:
        super().__init__(message)
        self.details = dict(details or {})


class Missing(CommandFailed):
    """The service has no such object or route: it answered 404."""


class BadUsage(CommandFailed):
    """The arguments of the command are missing, invalid or contradictory."""

    exit_code = USAGE


class TimedOut(CommandFailed):
    """A wait reached its timeout. The operation continues and may still succeed."""

    exit_code = TIMED_OUT


class NotTested(TimedOut):
    """A deploy reached its timeout before its replay could start. In the same command, 3 is a failed rule."""

    exit_code = NOT_TESTED


class CannotStart(CommandFailed):
    """The service or one of its servers cannot be started; the message says what to do."""
