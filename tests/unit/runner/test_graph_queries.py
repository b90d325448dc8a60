"""A question about a thread in a graph host, seen from the runner: what the host asks back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast
from uuid import UUID

import pytest

from shared.graph_queries import Question
from workers.graph_host import frames
from workers.runner import graph_queries
from workers.runner.graph_queries import _Query
from workers.runner.host_pool import HostPool

QUESTION = Question(UUID(int=1), UUID(int=2), "default", UUID(int=3), {"op": "state"})


class AskingHost:
    """A pool with one host, which asks back as soon as it is asked, and never answers."""

    died = None

    def __init__(self, ask: bytes) -> None:
        self._ask = ask

    def acquire(self, revision_id: UUID) -> AskingHost:
        return self

    def enter(self, id: bytes, guest: Any, body: bytes, *, kind: int) -> None:
        receive: Callable[[int, bytes], None] = guest.received
        receive(frames.ASK, frames.pack([self._ask]))

    def leave(self, id: bytes) -> None:
        """Nothing to forget."""


def test_what_cannot_be_replied_to_ends_the_question_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graph_queries, "PATIENCE_SECONDS", 1)
    hosts = cast("HostPool", AskingHost(b'{"ask":1}'))
    with pytest.raises(KeyError, match="op"):
        _Query(hosts, UUID(int=4), QUESTION).answer()
