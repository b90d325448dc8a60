"""Graph host fixtures: one host with all sample graphs for the session, and hosts for a single test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.hosted import ALL, CALLS, HOSTED, PRINTS, STOPS
from tests.support.hosts import Checkpointed, HostProcess, graph_host


@pytest.fixture(scope="session")
def shared_host() -> Iterator[HostProcess]:
    with graph_host(HOSTED, {**ALL, **CALLS, **STOPS, **PRINTS}, from_scratch=True) as host:
        yield host


@pytest.fixture
def host(shared_host: HostProcess) -> Iterator[HostProcess]:
    yield shared_host
    shared_host.answer = lambda run, kind, parts: None
    shared_host.logs.clear()


@pytest.fixture
def thread(host: HostProcess) -> Checkpointed:
    return Checkpointed(host)


@pytest.fixture
def own_host() -> Iterator[HostProcess]:
    """A separate host for a test that stops or disturbs it."""
    names = ("steps", "dies", "blocks", "sleeps", "floods", "swallows", "patches")
    with graph_host(HOSTED, {name: ALL[name] for name in names}) as host:
        yield host
