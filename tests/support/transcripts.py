"""Complete streams of the sample graphs in `tests/projects/streamed`, as comparable text.

`python -m tests.support.transcripts` records the streams of the current graph host. The recorded streams were compared
with those of LangGraph's own server, so review every difference.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from tests.support.hosts import Checkpointed, HostProcess, Run, graph_host

STREAMED = Path(__file__).parents[1] / "projects" / "streamed"
RECORDED = Path(__file__).parents[1] / "unit" / "graph_host" / "streams"

HI = {"messages": [{"role": "user", "content": "hi"}]}
TEXT = {"text": "a"}
# Runs of each graph, in order on one thread: its input, or the value that resumes it. `answers` resumes interrupts by their
# values, and `before` continues from the checkpoint at which these nodes were next.
RUNS: dict[str, list[dict[str, Any]]] = {
    "agent": [{"input": HI}],
    "nested": [{"input": HI}],
    "asks": [{"input": TEXT}, {"command": {"resume": "yes"}}, {"command": {"resume": "so"}}],
    "both": [{"input": HI}],
    "writes": [{"input": TEXT}],
    "parallels": [
        {"input": TEXT},
        {"answers": {"right?": "r"}},
        {"answers": {"left?": "l"}},
        {"command": {"resume": 1}},
        {"command": {"resume": 2}},
    ],
    "steps": [
        {"input": {"input": "a"}, "interrupt_before": ["second"]},
        {"input": None},
        {"input": {"input": "b"}, "before": ["second"]},
        {"input": None, "before": ["first"]},
    ],
    "fails": [{"input": TEXT}],
}
GRAPHS = {name: f"./graphs.py:{name}" for name in RUNS}
MODES = [
    "values",
    "updates",
    "messages",
    "messages-tuple",
    "values updates messages-tuple",
    "events",
    "debug",
    "tasks checkpoints",
    "custom",
]

Events = Iterable[tuple[str, Any]]

IDS = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}|\b[0-9a-f]{32}\b")
LEFT_OUT = {"config", "parent_config", "parent_checkpoint", "timestamp"}  # fields that vary or are long


def transcript(runs: Iterable[Events]) -> list[str]:
    """Format one line per event. Ids are numbered in order of appearance; a line of dashes separates runs."""
    lines = [[_line(name, data) for name, data in events] for events in runs]
    text = "\n---\n".join("\n".join(of_run) or "(no event)" for of_run in lines)
    numbers: dict[str, str] = {}
    return IDS.sub(lambda found: numbers.setdefault(found[0], f"#{len(numbers) + 1}"), text).split("\n")


def _line(name: str, data: Any) -> str:
    if name.partition("|")[0] == "events":
        return f"{name} {data['event']} {data['name']} {' '.join(data['tags'])}".rstrip()
    return f"{name} {json.dumps(_short(data), sort_keys=True)}"


def _short(data: Any) -> Any:
    if isinstance(data, list):
        return [_short(item) for item in data]
    if not isinstance(data, dict):
        return data
    if "content" in data and "type" in data:
        calls = data.get("tool_call_chunks") or data.get("tool_calls") or ()
        called = "".join(f" {call['name'] or ''}({call['args']})" for call in calls)
        return f"{data['type']}: {data['content']}{called}"
    if "langgraph_node" in data:
        return f"at {data['langgraph_node']}"
    return {key: _short(value) for key, value in data.items() if not _is_left_out(key, value)}


def _is_left_out(key: str, value: Any) -> bool:
    """Return whether a field is omitted.

    Metadata is kept only for messages, where it shows their node. Checkpoint keys are long, so only those without a
    checkpoint id are kept: they name a subgraph.
    """
    if key == "metadata":
        return "langgraph_node" not in value or "source" in value
    return key in LEFT_OUT or (key == "checkpoint" and bool(value) and "checkpoint_id" in value)


def executed(thread: Checkpointed, graph_id: str, run: Mapping[str, Any], **more: Any) -> Run:
    """Execute one of a graph's runs on its thread."""
    spec = {**run, **more}
    if answers := spec.pop("answers", None):
        waiting = thread.query("state", graph_id)["interrupts"]
        spec["command"] = {
            "resume": {item["id"]: answers[item["value"]] for item in waiting if item["value"] in answers}
        }
    if nodes := spec.pop("before", None):
        history = thread.query("history", graph_id, limit=20, before=None, filter=None)
        place = next(state["checkpoint"] for state in history if state["next"] == nodes)
        spec["config"] = {"configurable": place}
    return thread.run(graph_id, **spec)


def streamed(host: HostProcess, graph_id: str, modes: str, *, subgraphs: bool) -> list[str]:
    """Run the graph on a host and return the transcript, without the events of protocol v2."""
    thread = Checkpointed(host)
    asked = {"stream_mode": modes.split(), "subgraphs": subgraphs}
    runs = [executed(thread, graph_id, run, **asked).events for run in RUNS[graph_id]]
    classic = [[event for event in events if not event[0].startswith("~")] for events in runs]
    return transcript(classic)


def title(modes: str, *, subgraphs: bool) -> str:
    return f"{modes}, subgraphs" if subgraphs else modes


def recorded(graph_id: str) -> dict[str, list[str]]:
    """Return the graph's recorded streams by title. One entry covers both titles if subgraphs make no difference."""
    parts = re.split(r"(?m)^== (.+)\n", (RECORDED / f"{graph_id}.txt").read_text())
    return {name: body.rstrip("\n").split("\n") for name, body in zip(parts[1::2], parts[2::2], strict=True)}


def _record(host: HostProcess, graph_id: str) -> str:
    out: list[str] = []
    for modes in MODES:
        alone, inside = (streamed(host, graph_id, modes, subgraphs=subgraphs) for subgraphs in (False, True))
        out += [f"== {title(modes, subgraphs=False)}", *alone, ""]
        if inside != alone:
            out += [f"== {title(modes, subgraphs=True)}", *inside, ""]
    return "\n".join(out)


if __name__ == "__main__":
    with graph_host(STREAMED, GRAPHS) as started:
        for name in GRAPHS:
            (RECORDED / f"{name}.txt").write_text(_record(started, name))
