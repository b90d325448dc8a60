"""Why a command fails, as a sentence for its user, and the exit codes it ends with."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

# What a script can rely on; `runyard deploy --help` and docs/cli.md say the same.
FAILED, USAGE, TIMED_OUT, INTERRUPTED = 1, 2, 3, 130


class CommandFailed(Exception):
    """The command cannot do what it was asked; the message says why and what to do, `details` more to scripts."""

    exit_code = FAILED

    def __init__(self, message: str, details: Mapping[str, Any] | None = None) -> None:
        super().__init__(message)
        self.details = dict(details or {})


class BadUsage(CommandFailed):
    """The command was called in a way that cannot be meant."""

    exit_code = USAGE


class TimedOut(CommandFailed):
    """What was waited for did not come in time; it may still come."""

    exit_code = TIMED_OUT
