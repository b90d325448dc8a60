"""The stream modes accepted in requests equal those whose events the graph host writes and a stream passes on.

The two lists cannot be one, because the graph host imports none of our packages and web imports nothing of it.
"""

from __future__ import annotations

from typing import Any, cast

import pytest
from langchain_core.messages import AIMessageChunk

from web.deployment_api.runs import stream_filter
from web.deployment_api.runs.run_request import STREAM_MODES
from workers.graph_host.events import EventWriter, StreamRequest

MESSAGE = (AIMessageChunk("a", id="1"), {})

# Requested mode → what LangGraph yields for it: (namespace, LangGraph's mode, payload).
CHUNKS: dict[str, tuple[tuple[str, ...], str, Any]] = {
    "values": ((), "values", {}),
    "updates": ((), "updates", {"node": None}),
    "messages": ((), "messages", MESSAGE),
    "messages-tuple": ((), "messages", MESSAGE),
    "tasks": ((), "tasks", {"id": "1"}),
    "checkpoints": ((), "checkpoints", {}),
    "debug": ((), "debug", {"type": "task", "payload": {}}),
    "custom": ((), "custom", 1),
    "tools": ((), "tools", {"event": "tool-started", "tool_call_id": "1", "tool_name": "search"}),
    "lifecycle": (("child:1",), "values", {}),
}


class Recorder(EventWriter):
    """An event writer that records the names of its events instead of sending them."""

    def __init__(self, *modes: str) -> None:
        super().__init__(cast("Any", None), b"", StreamRequest(frozenset(modes), subgraphs=True), max_bytes=1)
        self.names: list[str] = []

    def emit(self, name: str, ns: tuple[str, ...], data: bytes) -> None:
        self.names.append("|".join((name, *ns)))


def names_of(mode: str) -> list[str]:
    """Return the names of the events written when only this mode was requested."""
    writer = Recorder(mode)
    if mode == "events":  # comes from LangGraph's `astream_events`, which has no stream modes
        writer.on_library_event({})
    else:
        namespace, library_mode, payload = CHUNKS[mode]
        assert library_mode in writer.graph_modes
        writer.write(namespace, library_mode, payload)
    return writer.names


@pytest.mark.parametrize("mode", STREAM_MODES)
def test_a_mode_that_a_request_may_name_has_a_handler_and_reaches_its_client(mode: str) -> None:
    keep = stream_filter.creator_filter({"stream_mode": [mode], "subgraphs": True}, None)
    assert [name for name in names_of(mode) if keep(name)]


def test_no_other_mode_has_a_sample_here() -> None:
    assert {*CHUNKS, "events"} == set(STREAM_MODES)


def test_events_of_protocol_v2_reach_no_client_of_the_classic_streams() -> None:
    names = [
        '~["values",[],"",null]',
        '~["lifecycle",["a:1"],"lc|a:1|started",null]',
        '~["error",[],"",null]',
    ]
    for modes in ([*STREAM_MODES, "metadata"], ["values", "protocol"]):
        keep = stream_filter.creator_filter({"stream_mode": modes, "subgraphs": True}, None)
        assert not any(keep(name) for name in names)
