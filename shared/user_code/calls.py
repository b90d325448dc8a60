"""Calls of user code that answer once: web asks, a runner that has a host of the revision passes the question on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from uuid import UUID


def call(revision_id: UUID, pool: str, document: Mapping[str, Any], *, timeout_seconds: float) -> bytes:
    """The answer of the host's `op` to this QUERY document, as JSON.

    Raises Unanswered when it does not come in time, Unavailable when no host of the revision can be had,
    HostError when the host died twice or answered nonsense.
    """
    raise NotImplementedError
