"""The part of a past run that happened inside of tool calls which its replay answers from the recording.

A tool may execute a subagent or call a model. A replay that answers the call executes neither, so the models and nodes
inside of it would count for the past run alone. They are left out of its figures. Tools that the replay executes count
on both sides.

Spans name the node around a call, and the call around another one. A node of a subgraph is inside of a tool if a tool of
the node around it ran meanwhile.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping
from typing import Any, TypeGuard

Span = Mapping[str, Any]


def is_span(span: Any) -> bool:
    """Whether a value is a span. A graph host runs the project's code, so it may report anything."""
    return (
        isinstance(span, Mapping)
        and all(isinstance(span.get(name), str) for name in ("id", "name", "kind"))
        and isinstance(span.get("within"), str | None)
        and is_number(span.get("from"))
    )


def is_number(value: Any) -> TypeGuard[int | float]:
    return isinstance(value, int | float) and not isinstance(value, bool)


def spans_of(document: Any) -> list[Span]:
    """Return the valid spans of a run's column `spans`."""
    found = document.get("spans") if isinstance(document, Mapping) else None
    return [span for span in found if is_span(span)] if isinstance(found, list) else []


def inside(document: Any, live: Collection[str]) -> list[Span]:
    """Return the nodes and models of a run inside of tools, except for the tools whose names are in `live`."""
    spans = {span["id"]: span for span in spans_of(document)}
    tools: dict[str, list[Span]] = {}
    for span in spans.values():
        if span["kind"] == "tool" and span.get("within"):
            tools.setdefault(span["within"], []).append(span)
    return [
        span
        for span in spans.values()
        if span["kind"] != "tool" and any(tool["name"] not in live for tool in _around(span, spans, tools))
    ]


def seconds_of(document: Any, live: Collection[str]) -> float:
    """Return the seconds in which a run executed tools that are not in `live`, and nothing beside them."""
    spans = {span["id"]: span for span in spans_of(document) if is_number(span.get("until"))}
    tools = [span for span in spans.values() if span["kind"] == "tool" and span["name"] not in live]
    left_out = {span["id"] for span in [*tools, *inside(document, live)]}
    for tool in tools:
        outer = spans.get(tool.get("within") or "")
        while outer is not None and outer["id"] not in left_out:
            left_out.add(outer["id"])  # a node is not beside its tools
            outer = spans.get(outer.get("within") or "")
    others = [span for span in spans.values() if span["id"] not in left_out]
    changes = [
        (at, is_tool, by)
        for is_tool, group in ((True, tools), (False, others))
        for each in group
        for at, by in ((each["from"], 1), (each["until"], -1))
    ]
    milliseconds, since, running = 0.0, 0.0, {True: 0, False: 0}
    for at, is_tool, by in sorted(changes):
        if running[True] and not running[False]:
            milliseconds += at - since
        running[is_tool] += by
        since = at
    return milliseconds / 1000


def _around(span: Span, spans: Mapping[str, Span], tools: Mapping[str, list[Span]]) -> Iterator[Span]:
    """Yield the tools around a span, from the innermost."""
    seen = set()
    while span["id"] not in seen and (outer := spans.get(span.get("within") or "")) is not None:
        seen.add(span["id"])
        if outer["kind"] == "tool":
            yield outer
        elif span["kind"] != "tool" and (tool := _during(span, tools.get(outer["id"], ()))) is not None:
            yield tool
        span = outer


def _during(span: Span, tools: Collection[Span]) -> Span | None:
    """Return the tool that ran all the time of a span."""
    return next(
        (tool for tool in tools if tool["from"] <= span["from"] and _until(span) <= _until(tool)), None
    )


def _until(span: Span) -> float:
    until = span.get("until")
    return until if is_number(until) else math.inf


def usage_without(usage: Any, spans: Collection[Span]) -> tuple[Any, float]:
    """Return the usage of a run without that of these spans, and their tokens that are not known by model."""
    rest = {model: dict(counts) for model, counts in usage.items()} if isinstance(usage, Mapping) else {}
    unknown = 0.0
    for span in spans:
        counted = span.get("usage")
        if not isinstance(counted, Mapping):
            unknown += span["tokens"] if is_number(span.get("tokens")) else 0
            continue
        for model, counts in counted.items():
            _subtract(rest.get(model, {}), counts if isinstance(counts, Mapping) else {})
    return rest, unknown


def _subtract(sums: dict[str, Any], counts: Mapping[str, Any]) -> None:
    for name, count in counts.items():
        if is_number(count) and is_number(sums.get(name)):
            sums[name] = max(sums[name] - count, 0)
