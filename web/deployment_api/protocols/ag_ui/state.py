"""The state that clients see, and its changes as JSON Patch (RFC 6902)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from shared.infra.postgres import dumps
from shared.runs.end_event import INTERRUPTS
from web.deployment_api.protocols.conversation import MESSAGES

TOOL_KEYS = ("tools", "ag-ui", "copilotkit")  # keys of an input that hold a client's tools and context
HIDDEN = frozenset({MESSAGES, *TOOL_KEYS, INTERRUPTS})

Operation = dict[str, Any]


def shown(values: Any) -> Any:
    """Return a state as clients see it: without messages, tools and interrupts."""
    if values is None:
        return {}
    if not isinstance(values, dict):
        return values
    return {name: value for name, value in values.items() if name not in HIDDEN}


def change(before: Any, after: Any) -> dict[str, Any] | None:
    """Return the event for a changed state: a delta, or a snapshot where that is shorter. None if nothing changed."""
    operations = list(_operations(before, after, ""))
    if not operations:
        return None
    if len(dumps(operations)) < len(dumps(after)):
        return {"type": "STATE_DELTA", "delta": operations}
    return {"type": "STATE_SNAPSHOT", "snapshot": after}


def _operations(before: Any, after: Any, path: str) -> Iterator[Operation]:
    if isinstance(before, dict) and isinstance(after, dict):
        yield from _of_objects(before, after, path)
    elif isinstance(before, list) and isinstance(after, list) and _is_same(before, after[: len(before)]):
        for item in after[len(before) :]:
            yield {"op": "add", "path": f"{path}/-", "value": item}
    elif not _is_same(before, after):
        yield {"op": "replace", "path": path, "value": after}


def _is_same(before: Any, after: Any) -> bool:
    """Return whether two values are the same in JSON. Python also takes 0 and false for equal."""
    return before == after and dumps(before) == dumps(after)


def _of_objects(before: dict[str, Any], after: dict[str, Any], path: str) -> Iterator[Operation]:
    for name in before:
        if name not in after:
            yield {"op": "remove", "path": _below(path, name)}
    for name, value in after.items():
        if name not in before:
            yield {"op": "add", "path": _below(path, name), "value": value}
        else:
            yield from _operations(before[name], value, _below(path, name))


def _below(path: str, name: str) -> str:
    escaped = name.replace("~", "~0").replace("/", "~1")
    return f"{path}/{escaped}"
