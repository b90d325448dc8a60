"""Node graph host fixtures: one host with all sample graphs for the session, and hosts for a single test."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest

from tests.support.hosts import Checkpointed, HostProcess
from tests.support.node_hosts import PROJECT, node_host, project

UNUSABLE = {"wrong", "text"}
GRAPHS = {
    name: f"./graphs.ts:{name}"
    for name in re.findall(r"(?m)^export const (\w+)", (PROJECT / "graphs.ts").read_text())
    if name not in UNUSABLE
}

Hosts = Callable[..., AbstractContextManager[HostProcess]]


@pytest.fixture(scope="session")
def node_project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return project(tmp_path_factory.mktemp("node"))


@pytest.fixture(scope="session")
def shared_node_host(node_project: Path) -> Iterator[HostProcess]:
    with node_host(node_project, {**GRAPHS, "wrong": "./graphs.ts:wrong"}) as host:
        assert "error" not in host.ready, host.ready
        yield host


@pytest.fixture
def host(shared_node_host: HostProcess) -> Iterator[HostProcess]:
    yield shared_node_host
    shared_node_host.answer = lambda run, kind, parts: None
    shared_node_host.logs.clear()


@pytest.fixture
def thread(host: HostProcess) -> Checkpointed:
    return Checkpointed(host)


@pytest.fixture
def own_host(node_project: Path) -> Hosts:
    """Start a separate host for a test that stops or disturbs it."""

    def start(*names: str, **config: Any) -> AbstractContextManager[HostProcess]:
        return node_host(node_project, {name: f"./graphs.ts:{name}" for name in names}, **config)

    return start
