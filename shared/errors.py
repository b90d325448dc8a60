"""The tree of domain errors. `web/http/errors.py` maps each class to a status.

RunyardError
├── Refused                  the request cannot be carried out
│   ├── Invalid              a value breaks a rule: names the field
│   ├── NotFound
│   ├── Gone                 something existed and is not valid any more
│   ├── Conflict
│   │   └── InProgress       a request with the same idempotency key is in progress
│   ├── Unauthenticated
│   ├── Forbidden
│   ├── TooLarge
│   └── TooMany              a limit is reached: try again later
├── Denied                   a deployment's authorization refuses the request, with its status and detail
├── Unavailable              PostgreSQL, Redis or another server of the service does not answer
│   └── OutcomeUnknown       the connection was lost before the answer
├── Unanswered               no graph host answered a call in time
├── OutsideFailed            a server outside the service gives an invalid answer, or none
│   └── AddressRefused       the service may not call the address
├── BuildFailed              a step of a build failed: names the step
├── Fenced                   another attempt owns the run or revision
└── HostError                a graph host failed
    ├── HostDied
    ├── NotBegun
    └── HostUnusable
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from http import HTTPStatus
from typing import Any


def suggestion(name: str, known: Iterable[str], prefix: str = "") -> str:
    """Return the end of an error text, which names the known name most similar to an unknown one. Empty if none is."""
    similar = get_close_matches(name, sorted(known), n=1)
    return f" Did you mean {prefix}{similar[0]}?" if similar else ""


def misspelt(known: str, names: Iterable[str]) -> str | None:
    """Return the first of the names that is similar to the known name, but not equal to it."""
    return next((name for name in names if name != known and suggestion(name, [known])), None)


class RunyardError(Exception):
    """Something went wrong."""

    def __init__(self, message: str | None = None) -> None:
        super().__init__(message or type(self).__doc__ or "")

    @property
    def message(self) -> str:
        return str(self.args[0])


class Refused(RunyardError):
    """The request cannot be carried out."""


class Invalid(Refused):
    """A value breaks a rule.

    `loc` is the path of the offending value (`("body", "limit")`), `kind` the machine word of the rule.
    `status` is 422 unless the contract wants 400 for this rule.
    """

    def __init__(
        self,
        message: str,
        *,
        loc: tuple[str | int, ...] = ("body",),
        kind: str = "value_error",
        status: int = 422,
    ) -> None:
        super().__init__(message)
        self.loc = loc
        self.kind = kind
        self.status = status


class NotFound(Refused):
    """Not Found"""


class Gone(Refused):
    """This is not valid any more."""


class Denied(RunyardError):
    """A deployment's own authorization refuses a request: it chooses status, detail and headers."""

    def __init__(self, status: int, detail: Any = None, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(HTTPStatus(status).phrase if detail is None else str(detail))
        self.status = status
        self.detail = self.message if detail is None else detail
        self.headers = headers or {}


class Conflict(Refused):
    """The request conflicts with the current state."""


class InProgress(Conflict):
    """A request with the same Idempotency-Key is in progress. Try again in a moment."""

    retry_after_seconds = 1


class Unauthenticated(Refused):
    """Missing or unknown API key."""


class Forbidden(Refused):
    """This API key may not do that."""


class TooLarge(Refused):
    """The request is too large."""


class TooMany(Refused):
    """A limit is reached. Try again later."""

    def __init__(self, message: str | None = None, *, retry_after_seconds: int = 1) -> None:
        super().__init__(message)
        self.retry_after_seconds = retry_after_seconds


class Unavailable(RunyardError):
    """A server this service needs does not answer."""


class OutcomeUnknown(Unavailable):
    """A server was lost before it answered: the request may have been carried out."""


class Unanswered(RunyardError):
    """No graph host answered in time."""


class OutsideFailed(RunyardError):
    """A server outside this service gave an invalid answer, or none."""


class AddressRefused(OutsideFailed):
    """This service may not call that address."""


class BuildFailed(RunyardError):
    """A step of a build failed; the message is meant for the person who deployed.

    `status` is the revision status the failure leads to.
    """

    def __init__(self, step: str, message: str, *, status: str = "BUILD_FAILED") -> None:
        super().__init__(message)
        self.step = step
        self.status = status


class Fenced(RunyardError):
    """Another attempt owns this now: the write of this attempt is discarded."""


class HostError(RunyardError):
    """A graph host could not do its work."""


class HostDied(HostError):
    """A graph host ended while it had work; the message names the signal or exit code."""

    def __init__(self, message: str, *, together: int = 1) -> None:
        super().__init__(message)
        self.together = together  # number of runs and calls that the host had


class NotBegun(HostError):
    """A graph host that answers pings does not execute a run that was sent to it."""


class HostUnusable(HostError):
    """A graph host could not be started."""
