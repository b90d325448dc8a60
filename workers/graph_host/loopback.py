"""Calls of user code to its own deployment, and for whom they are made."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

current_user: ContextVar[Mapping[str, Any] | None] = ContextVar("current_user", default=None)


@contextmanager
def acting_for(user: Mapping[str, Any] | None) -> Iterator[None]:
    """Calls made inside the block are this user's."""
    token = current_user.set(user)
    try:
        yield
    finally:
        current_user.reset(token)
