"""Whole streams, event by event: names, order and data of each set of modes, with and without subgraphs."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.hosts import HostProcess, graph_host
from tests.support.transcripts import GRAPHS, MODES, STREAMED, recorded, streamed, title


@pytest.fixture(scope="module")
def streaming_host() -> Iterator[HostProcess]:
    with graph_host(STREAMED, GRAPHS) as host:
        yield host


@pytest.mark.parametrize("graph_id", GRAPHS)
@pytest.mark.parametrize("modes", MODES)
@pytest.mark.parametrize("subgraphs", [False, True], ids=["root", "subgraphs"])
def test_a_stream_is_the_recorded_one(
    streaming_host: HostProcess, graph_id: str, modes: str, subgraphs: bool
) -> None:
    expected = recorded(graph_id)
    whole = expected.get(title(modes, subgraphs=subgraphs)) or expected[modes]

    assert streamed(streaming_host, graph_id, modes, subgraphs=subgraphs) == whole
