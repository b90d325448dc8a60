"""Comparison of graphs in TypeScript with their twins in Python: streams, events of protocol v2, states and histories."""

from __future__ import annotations

import json
import re
from typing import Any

from tests.support.hosts import Checkpointed, HostProcess
from tests.support.transcripts import RUNS, executed

Runs = list[dict[str, Any]]
# LangChain for Python and for JavaScript prefix the ids of streamed messages differently.
MESSAGE_ID = re.compile(r'"(?:lc_run--|run-)?(#\d+)(?:-tool-call-1)?": \{"metadata')
VARYING = re.compile(r'"ls_integration": "langgraph", |"langgraph_version": "[\d.]+", |"timestamp": \d+,? ?')
IDS = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}|\b[0-9a-f]{32}\b")
PREFIXES = re.compile(r'"(?:lc_run--|run-)?(#\d+)(?:-0|-tool-call-1)?"')


def without_prefixes(lines: list[str]) -> list[str]:
    return [MESSAGE_ID.sub(r'"\1": {"metadata', line) for line in lines]


def masked(text: str, varying: re.Pattern[str] = VARYING) -> list[str]:
    """Return the lines of a text with ids numbered in order of appearance, without what varies."""
    numbers: dict[str, str] = {}
    text = IDS.sub(lambda found: numbers.setdefault(found[0], f"#{len(numbers) + 1}"), varying.sub("", text))
    text = PREFIXES.sub(r'"\1"', text).replace('"Speaker"', '"speaker"').replace('"Thinker"', '"thinker"')
    return text.replace("BrokenError('it broke')", "BrokenError: it broke").split("\n")


def protocol_events(
    host: HostProcess, graph_id: str, varying: re.Pattern[str] = VARYING, runs: Runs | None = None
) -> list[str]:
    """Execute the graph's runs and return one line per event of protocol v2, with ids numbered in order of appearance.

    Text that matches `varying` is left out.
    """
    thread = Checkpointed(host)
    lines: list[str] = []
    for run in runs or RUNS[graph_id]:
        for name, params in executed(thread, graph_id, run, stream_mode=["protocol"]).events:
            if not name.startswith("~"):
                continue  # the error of a failed run
            method, _, tail, channel = json.loads(name.removeprefix("~"))
            if method == "tools" and "output" in params["data"]:
                params["data"]["output"].pop("id", None)  # JavaScript gives it before the node returns
            lines.append(json.dumps([method, tail, channel, params], sort_keys=True))
    return masked("\n".join(lines), varying)


# JavaScript gives the id after the node has returned.
OF_TOOL = re.compile(r'"sunny in Rome", "id": (?:null|"#\d+")')
TIMES = re.compile(r"\d{4}-\d\d-\d\dT[\d:.]+(?:Z|\+00:00)")


def states(host: HostProcess, graph_id: str) -> list[str]:
    """Return the outcomes of a graph's runs, and the thread's states and histories after each, as comparable text."""
    thread = Checkpointed(host)
    lines: list[str] = []
    for run in RUNS[graph_id]:
        outcome = executed(thread, graph_id, run)
        places = [task["checkpoint"] for task in outcome.outcome["state"]["tasks"] if task["checkpoint"]]
        found = [
            {name: outcome.outcome[name] for name in ("status", "thread_status", "state")},
            list(outcome.outcome["interrupts"].items()),  # sorting by their random keys would mix them
            outcome.values,
            outcome.answer,
            thread.query("state", graph_id),
            thread.query("state", graph_id, subgraphs=True),
            *(thread.query("state", graph_id, checkpoint=place) for place in places),
            thread.query("state", graph_id, checkpoint={"checkpoint_ns": "nobody:1"}),
            thread.query("history", graph_id, limit=20, before=None, filter=None),
            *(
                thread.query("history", graph_id, limit=20, before=None, filter=None, checkpoint_ns=ns)
                for ns in [place["checkpoint_ns"] for place in places]
            ),
        ]
        lines += [json.dumps(each, sort_keys=True, indent=1) for each in found]
    text = TIMES.sub("time", re.sub(r",\n *", ", ", "\n".join(lines)))
    return [OF_TOOL.sub('"sunny in Rome", "id": null', line) for line in masked(text)]
