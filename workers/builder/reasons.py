"""Reasons of failed steps: the output of a program becomes one sentence for the person who deployed."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Iterator, Sequence

FRAME = '  File "'  # the beginning of a traceback line that names a file
CAUSE = re.compile(r"(error|cause|caused by):\s*", re.IGNORECASE)
UNREACHABLE = re.compile(
    r"Failed to fetch|error sending request|Request failed after|dns error", re.IGNORECASE
)
NAMES_LIBRARY = re.compile(r"\blanggraph(-checkpoint)?\s*[=<>~!]")
NO_REF = re.compile(r"couldn't find remote ref|not our ref|unadvertised object")
NO_ACCESS = re.compile(r"could not read (Username|Password)|Authentication failed|returned error: 40[13]")
NO_REPOSITORY = re.compile(r"[Rr]epository .*not found|returned error: 404")
TOKEN = "GIT_TOKEN"  # the secret with a repository's credentials


def cause(last: Iterable[str]) -> str:
    """Return the reason of a failed command in one line: its last error and the causes below it."""
    lines = [line.strip() for line in last]
    starts = [n for n, line in enumerate(lines) if line.startswith("error:")]
    if not starts:
        return next((line for line in reversed(lines) if line), "")
    reasons: list[str] = []
    after = iter(lines[starts[-1] :])
    for line in after:
        if not line:
            break
        reasons.append(CAUSE.sub("", line, count=1))
    return ": ".join((*reasons, *_quoted(after)))


def _quoted(lines: Iterator[str]) -> list[str]:
    """Return the last line of another command's errors that the failed command quotes; empty if it quotes none."""
    if next(lines, None) != "[stderr]":
        return []
    return list(itertools.takewhile(bool, lines))[-1:]


def summary(message: str) -> str:
    """Return the first line of a message and the exception of its traceback. The log contains the whole message."""
    lines = [line for line in message.splitlines() if line.strip()]
    if len(lines) < 2:
        return lines[0].strip() if lines else "failed"
    return f"{lines[0].strip()}: {_raised(lines).strip()}"


def _raised(lines: list[str]) -> str:
    """Return the line of a traceback that names the exception.

    An exception's message may have several lines, so this is the first unindented line after the last frame.
    """
    frame = max((at for at, line in enumerate(lines) if line.startswith(FRAME)), default=len(lines))
    return next((line for line in lines[frame:] if not line[0].isspace()), lines[-1])


def of_resolver(reason: str, base_requirements: Sequence[str]) -> str:
    """Return the installer's reason, with additional information about this server."""
    if UNREACHABLE.search(reason):
        return f"the package index cannot be reached: {reason}"
    if NAMES_LIBRARY.search(reason):
        return f"{reason}: this server runs graphs with {' and '.join(base_requirements)}"
    return reason


def of_git(reason: str, ref: str | None, *, has_token: bool) -> str:
    """Return git's reason, with what the person who deployed can do about it."""
    if NO_REF.search(reason):
        return f"the repository has no {ref or 'default branch'!r}: {reason}"
    if NO_ACCESS.search(reason):
        if has_token:
            return f"the repository refuses the token in the secret {TOKEN}: {reason}"
        return f"the repository asks for credentials: put a token into the secret {TOKEN}"
    if NO_REPOSITORY.search(reason) and not has_token:
        return f"{reason}: if it is private, put a token into the secret {TOKEN}"
    return reason
