"""Requests for a project's app: parts that go to and fro between the web process and a host until either ends it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from typing import Any
from uuid import UUID


class Lost(Exception):
    """The exchange has ended before its end: the host died, or nothing of it was heard for too long."""


class Exchange:
    """One request or WebSocket in the app of a host."""

    def send(self, kind: bytes, data: bytes = b"") -> None:
        """A part for the app (`workers/graph_host/frames.py` has the kinds); waits until it takes more. Raises Lost."""
        raise NotImplementedError

    def parts(self, *, timeout_seconds: float | None = None) -> Iterator[tuple[bytes, bytes]]:
        """The app's parts as they come, kind and data, credits left out. Raises Lost, and TimeoutError."""
        raise NotImplementedError


def open_exchange(
    revision_id: UUID, pool: str, head: Mapping[str, Any], *, start_seconds: float
) -> AbstractContextManager[Exchange]:
    """A request to the revision's app. Left before its end it is a client that has gone.

    Raises Unavailable when no host of the revision can be had in time.
    """
    raise NotImplementedError
