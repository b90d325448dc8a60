"""What the command line tells its user when it cannot go on."""

from __future__ import annotations


class CommandFailed(Exception):
    """The command cannot do what it was asked; the message says why and what to do."""
