"""LangSmith tracing settings as a graph sees them. The tests send no traces."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.hosted import HOSTED
from tests.support.hosts import HostProcess, graph_host

GRAPHS = {"traced": "./traced.py:graph"}
EXAMPLE = "8b3f7a52-6a7e-4d8c-9a53-0f0f6a4f1c11"
VARIABLES = {
    "LANGSMITH_TRACING": "true",
    "LANGSMITH_API_KEY": "key",
    "LANGSMITH_ENDPOINT": "http://127.0.0.1:9",
    "LANGSMITH_PROJECT": "ours",
}


@pytest.fixture(scope="module")
def host() -> Iterator[HostProcess]:
    with graph_host(HOSTED, GRAPHS, variables=VARIABLES) as host:
        yield host


@pytest.mark.parametrize(
    ("tracer", "seen"),
    [
        (None, {"project": "ours", "example": None}),
        ({"project_name": "theirs"}, {"project": "theirs", "example": None}),
        ({"project_name": "theirs", "example_id": EXAMPLE}, {"project": "theirs", "example": EXAMPLE}),
        ({"example_id": EXAMPLE}, {"project": "ours", "example": EXAMPLE}),
    ],
)
def test_a_run_is_traced_to_where_its_caller_says(
    host: HostProcess, tracer: dict[str, str] | None, seen: dict[str, Any]
) -> None:
    run = host.run("traced", {}, langsmith_tracer=tracer)

    assert run.values == {**seen, "tracers": 1, "variable": "ours"}


def test_a_caller_does_not_decide_whether_there_are_traces() -> None:
    with graph_host(HOSTED, GRAPHS) as host:
        run = host.run("traced", {}, langsmith_tracer={"project_name": "theirs", "example_id": EXAMPLE})

    assert run.values["tracers"] == 0
