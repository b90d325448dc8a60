"""A host with all graphs of the sample project: one for a module, or a test's own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.hosted import ALL, HOSTED
from tests.support.hosts import HostProcess, graph_host


@pytest.fixture(scope="module")
def shared_host() -> Iterator[HostProcess]:
    with graph_host(HOSTED, ALL) as host:
        host.wait_ready()
        yield host


@pytest.fixture
def host(shared_host: HostProcess) -> Iterator[HostProcess]:
    yield shared_host
    shared_host.answer = lambda run, kind, parts: None


@pytest.fixture
def own_host() -> Iterator[HostProcess]:
    """For a test that ends or disturbs its host."""
    names = ("steps", "dies", "blocks", "sleeps", "floods", "swallows", "patches")
    with graph_host(HOSTED, {name: ALL[name] for name in names}) as host:
        host.wait_ready()
        yield host
