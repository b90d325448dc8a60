"""Comparing a replayed run with its original: outcome, differences of the final values, steps and figures.

Both sides are compared as JSON. Some values differ in every run and are not differences:

- Ids of messages, tool calls and interrupts, and UUIDs and ids of model providers within any text. The first pair at the
  same place is taken as the same id, and must then appear on both sides at the same places.
- Times. Two values are equal if each is a time during its own run: an ISO 8601 text with a time of day, or seconds or
  milliseconds since 1970.
- `usage_metadata` and `response_metadata` of messages. They describe the model call, and its tokens are compared apart.

Items of two lists are paired so that most are alike: an item that one list has more is one difference. A path has the
index in the replay's list, or in the original's for an item that the replay does not have.

The cost is bounded. Lists of equal length, and lists whose items make more than MAX_CELLS pairs, are paired by index.
Equal parts are compared as text, at most MAX_VALUES others are visited, and a part deeper than MAX_DEPTH is compared as
a whole. Ids are not looked for in texts above MAX_TEXT characters.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from difflib import SequenceMatcher
from enum import StrEnum
from itertools import zip_longest
from typing import Any

import orjson

from shared.replays.answered_calls import Span, is_number, spans_of

MAX_DIFFERENCES = 100  # that are returned
MAX_VALUES = 20_000
MAX_DEPTH = 40
MAX_TEXT = 100_000  # characters in which ids are searched
MAX_SHOWN = 2_000  # characters of a value's JSON
MAX_STEPS = 500
MAX_CELLS = 40_000  # pairs of items of lists that are looked at to pair those that are alike
MARGIN_SECONDS = 60.0  # the clocks of the host and of the database may differ

FAILED = ("error", "timeout")  # statuses of runs
MESSAGE_TYPES = frozenset({"human", "ai", "system", "tool", "function", "chat", "remove", "AIMessageChunk"})
OF_THE_CALL = frozenset({"usage_metadata", "response_metadata"})
ID_KEYS = frozenset({"id", "tool_call_id", "tool_use_id", "call_id"})
DATA_KEYS = frozenset({"args", "input", "artifact", "value"})  # their ids are data of the project
INTERRUPTS = "__interrupt__"
MISSING = object()

Path = tuple[str, ...]
State = Mapping[str, Any]  # of a thread's history, as the API returns it
Lifetime = tuple[float, float]
Children = Iterator[tuple[str, Any, Any, bool]]  # key, both values, and whether they are part of a message

_ID = re.compile(
    r"(?<![0-9A-Za-z])([0-9a-f]{8}-?[0-9a-f]{4}-?[0-9a-f]{4}-?[0-9a-f]{4}-?[0-9a-f]{12}"
    r"|(?:call|chatcmpl|fc|msg|req|resp|rs|toolu|tooluse)[_-][0-9A-Za-z_-]{16,})(?![0-9A-Za-z])",
    re.IGNORECASE,
)
_TIME = re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d(:\d\d(\.\d{1,9})?)?(Z|[+-]\d\d:?\d\d)?")


class Outcome(StrEnum):
    """The result of the comparison of a replayed run with its original."""

    SAME = "same"  # the final status and values are equal
    CHANGED = "changed"
    DIVERGED = "diverged"  # it called a tool with arguments that the recording does not have
    FAILED = "failed"  # it ended with an error, or could not be scored
    SKIPPED = "skipped"  # it was not executed


@dataclass(frozen=True, slots=True)
class Side:
    """One of the two runs. `values` are its final values, with its interrupts under `__interrupt__`.

    `tokens` and `cost` are 0 for a run without model calls. `cost` is None if a model has no price.
    """

    status: str
    values: Any
    spans: Any = None  # the column of the run
    tokens: float | None = 0
    cost: float | None = 0.0
    started_at: datetime | None = None
    ended_at: datetime | None = None
    scores: Mapping[str, float] = field(default_factory=dict)
    # What the past run did inside of tools that the replay answers: ids of spans that are no steps, and the time of the tools
    left_out: frozenset[str] = frozenset()
    tool_seconds: float = 0.0

    @property
    def duration_seconds(self) -> float | None:
        """Seconds from the first claim to the end, which include the start of a graph host, without `tool_seconds`."""
        if self.started_at is None or self.ended_at is None:
            return None
        return max((self.ended_at - self.started_at).total_seconds() - self.tool_seconds, 0.0)

    @property
    def graph_seconds(self) -> float | None:
        """Seconds that the graph ran without `tool_seconds`, by its host. None if the run kept no spans."""
        lasted_ms = self.spans.get("lasted_ms") if isinstance(self.spans, Mapping) else None
        if not is_number(lasted_ms) or not 0 <= lasted_ms < math.inf:
            return None
        return max(lasted_ms / 1000 - self.tool_seconds, 0.0)


def compare(
    original: Side, replay: Side, report: Mapping[str, Any] | None = None
) -> tuple[Outcome, dict[str, Any]]:
    """Return the outcome of a case, and its comparison as the API returns it.

    A difference without `original` or `replay` is a value that this side does not have. A different sequence of nodes
    alone does not change the outcome.
    """
    report = report or {}
    walk = _Walk(_lifetime(original), _lifetime(replay))
    walk.compare(original.values, replay.values, ())
    steps = {"original": steps_of(original), "replay": steps_of(replay)}
    comparison = {
        "status": {"original": original.status, "replay": replay.status},
        "values": walk.differences,
        "differences": walk.total,
        "steps": steps,
        "tokens": {"original": original.tokens, "replay": replay.tokens},
        "cost": {"original": original.cost, "replay": replay.cost},
        "duration_seconds": _durations(original, replay),
        "scores": {"original": dict(original.scores), "replay": dict(replay.scores)},
        "first_difference": _first_difference(
            **steps, differences=walk.differences, has_failed=replay.status in FAILED
        ),
        "report": report,
    }
    if replay.status in FAILED:
        return Outcome.FAILED, comparison
    if report.get("unrecorded"):
        return Outcome.DIVERGED, comparison
    is_same = original.status == replay.status and not walk.total
    return Outcome.SAME if is_same else Outcome.CHANGED, comparison


def _durations(original: Side, replay: Side) -> dict[str, float | None]:
    """Return the durations of both sides, without the start of a graph host if both are known without it."""
    durations = {"original": original.graph_seconds, "replay": replay.graph_seconds}
    if None not in durations.values():
        return durations
    return {"original": original.duration_seconds, "replay": replay.duration_seconds}


class _Walk:
    """Walks through two JSON values at once and collects their differences."""

    def __init__(self, original: Lifetime, replay: Lifetime) -> None:
        self.differences: list[dict[str, Any]] = []
        self.total = 0
        self._lifetimes = (original, replay)
        self._visited = 0
        self._cells = MAX_CELLS
        self._is_complete = True
        self._replays: dict[str, str] = {}  # the replay's id by the original's
        self._originals: dict[str, str] = {}

    def compare(self, original: Any, replay: Any, path: Path, *, is_message: bool = False) -> None:
        """Add the differences of two values. `is_message`: they are part of a message."""
        is_message = is_message or (_is_message(original) and _is_message(replay))
        children = self._children(original, replay, is_message=is_message)
        if children is None:
            if not self._is_equal(original, replay):
                self._add(original, replay, path)
            return
        text = _text(original)
        if text is not None and text == _text(replay):
            return
        if len(path) >= MAX_DEPTH:
            self._add(original, replay, path)
            return
        for key, first, second, is_inner_message in children:
            self._visited += 1
            if self._visited > MAX_VALUES:
                self._stop(original, replay, path)
                return
            if first is MISSING or second is MISSING:
                self._add(first, second, (*path, key))
            elif is_message and key in ID_KEYS and _is_id(first) and _is_id(second):
                if not self._is_same_id(first, second):
                    self._add(first, second, (*path, key))
            else:
                self.compare(first, second, (*path, key), is_message=is_inner_message)

    def _children(self, original: Any, replay: Any, *, is_message: bool) -> Children | None:
        """Return an iterator over the pairs of parts with their keys. None unless both are objects or both are lists."""
        if isinstance(original, Mapping) and isinstance(replay, Mapping):
            return self._of_objects(original, replay, is_message=is_message)
        if isinstance(original, list) and isinstance(replay, list):
            return ((key, first, second, is_message) for key, first, second in self._pairs(original, replay))
        return None

    def _pairs(self, original: list[Any], replay: list[Any]) -> Iterator[tuple[str, Any, Any]]:
        """Yield the items of two lists in pairs, with the index of each pair.

        Alike items that follow each other are paired first, then those between them in their order.
        """
        cells = len(original) * len(replay)
        blocks = [(0, len(original), 0, len(replay))]
        if len(original) != len(replay) and cells <= self._cells:
            self._cells -= cells
            likeness = [*map(_likeness, original)], [*map(_likeness, replay)]
            blocks = [block for _, *block in SequenceMatcher(None, *likeness, autojunk=False).get_opcodes()]
        for start, end, other_start, other_end in blocks:
            between = zip_longest(original[start:end], replay[other_start:other_end], fillvalue=MISSING)
            for offset, (first, second) in enumerate(between):
                yield str((start if second is MISSING else other_start) + offset), first, second

    def _of_objects(
        self, original: Mapping[str, Any], replay: Mapping[str, Any], *, is_message: bool
    ) -> Children:
        """Yield the pairs of values. Keys that only one side has are paired in their order if they differ in ids only."""
        is_record = _is_message(original) and _is_message(replay)
        added = [key for key in replay if key not in original]
        for key, value in original.items():
            if is_record and key in OF_THE_CALL:
                continue
            other = replay.get(key, MISSING)
            if other is MISSING and added and _ID.search(key) and self._is_equal(key, added[0]):
                other = replay[added.pop(0)]
            yield key, value, other, key == INTERRUPTS or (is_message and key not in DATA_KEYS)
        for key in added:
            if not (is_record and key in OF_THE_CALL):
                yield key, MISSING, replay[key], False

    def _is_equal(self, original: Any, replay: Any) -> bool:
        if isinstance(original, str) and isinstance(replay, str):
            return (
                original == replay or self._is_renamed(original, replay) or self._are_times(original, replay)
            )
        if is_number(original) and is_number(replay):
            return original == replay or self._are_times(original, replay)
        return type(original) is type(replay) and original == replay

    def _is_renamed(self, original: str, replay: str) -> bool:
        """Whether two texts differ only in ids that stand for the same ids."""
        if max(len(original), len(replay)) > MAX_TEXT:
            return False
        first, second = _ID.split(original), _ID.split(replay)
        return (
            len(first) > 1
            and first[::2] == second[::2]
            and all(self._is_same_id(*ids) for ids in zip(first[1::2], second[1::2], strict=True))
        )

    def _is_same_id(self, original: str | None, replay: str | None) -> bool:
        """Whether two ids stand for the same. An id that was in no pair yet stands for the other one."""
        if original is None or replay is None:
            return True
        return (
            self._replays.setdefault(original, replay) == replay
            and self._originals.setdefault(replay, original) == original
        )

    def _are_times(self, original: Any, replay: Any) -> bool:
        return all(
            _is_time_during(value, *lifetime)
            for value, lifetime in zip((original, replay), self._lifetimes, strict=True)
        )

    def _stop(self, original: Any, replay: Any, path: Path) -> None:
        """Add what remains as one difference, so that two sides are never called equal without a full comparison."""
        if self._is_complete:
            self._is_complete = False
            self._add(original, replay, path)

    def _add(self, original: Any, replay: Any, path: Path) -> None:
        self.total += 1
        if len(self.differences) < MAX_DIFFERENCES:
            sides = {"original": original, "replay": replay}
            values = {name: _shown(value) for name, value in sides.items() if value is not MISSING}
            self.differences.append({"path": ".".join(path)[:MAX_SHOWN], **values})


def _likeness(item: Any) -> Any:
    """Return what two alike items share: of a message, what does not differ between equal runs."""
    if not _is_message(item):
        return _ID.sub("", str(item)[:MAX_SHOWN])
    calls = item.get("tool_calls")
    names = (
        [call.get("name") for call in calls if isinstance(call, Mapping)] if isinstance(calls, list) else ()
    )
    return item["type"], _ID.sub("", str(item["content"])[:MAX_SHOWN]), str(item.get("name")), str(names)


def _text(value: Any) -> bytes | None:
    """Return the JSON of a value. None if it is nested too deeply to be written."""
    try:
        return orjson.dumps(value, option=orjson.OPT_NON_STR_KEYS)
    except orjson.JSONEncodeError:
        return None


def _shown(value: Any) -> Any:
    """Return a small value as it is, and another one as the beginning of its JSON."""
    encoded = _text(value)
    if encoded is None:
        return "(nested too deeply)"
    text = encoded.decode()
    if len(text) > MAX_SHOWN:
        return f"{text[:MAX_SHOWN]}…"
    return value if text.count("[") + text.count("{") <= MAX_DEPTH else text


def _is_message(value: Any) -> bool:
    return isinstance(value, Mapping) and value.get("type") in MESSAGE_TYPES and "content" in value


def _is_id(value: Any) -> bool:
    return value is None or isinstance(value, str)


def _lifetime(side: Side) -> Lifetime:
    """Return the first and last time of a run, in seconds since 1970. An empty period if it did not run."""
    if side.started_at is None or side.ended_at is None:
        return math.inf, -math.inf
    return side.started_at.timestamp() - MARGIN_SECONDS, side.ended_at.timestamp() + MARGIN_SECONDS


def _is_time_during(value: Any, since: float, until: float) -> bool:
    if not isinstance(value, str):
        return since <= value <= until or since <= value / 1000 <= until
    if not _TIME.fullmatch(value):
        return False
    try:
        time = datetime.fromisoformat(value)
    except ValueError:
        return False
    return since <= (time if time.tzinfo else time.replace(tzinfo=UTC)).timestamp() <= until


def steps_of(side: Side) -> list[str]:
    """Return the nodes of a run in the order of their start, those of subgraphs as `outer/inner`, at most MAX_STEPS.

    Nodes that start together are in the order of their names.
    """
    spans = [span for span in spans_of(side.spans) if span["id"] not in side.left_out]
    ids = {span["id"] for span in spans}
    inner: dict[str | None, list[Span]] = {}
    for span in sorted(spans, key=lambda span: (span["from"], span["name"])):
        within = span.get("within")
        inner.setdefault(within if within in ids else None, []).append(span)
    steps: list[str] = []
    waiting = [(span, "") for span in reversed(inner.pop(None, []))]
    while waiting and len(steps) < MAX_STEPS:
        span, prefix = waiting.pop()
        if span["kind"] == "node":
            steps.append(f"{prefix}{span['name']}"[:MAX_SHOWN])
            prefix = f"{prefix}{span['name']}/"
        waiting += [(each, prefix) for each in reversed(inner.pop(span["id"], []))]
    return steps


def _first_difference(
    original: Sequence[str],
    replay: Sequence[str],
    differences: Sequence[Mapping[str, Any]],
    *,
    has_failed: bool,
) -> dict[str, str | None] | None:
    """Return the node at which the sequences part, or at which the replay failed, and the first field that differs.

    If the sequences are equal, this names the node only if the run has no other. `writer_of` finds it otherwise.
    """
    pairs = zip_longest(original, replay)
    parting = next((second or first for first, second in pairs if first != second), None)
    if has_failed and replay and list(original[: len(replay)]) == list(replay):
        parting = replay[-1]
    if parting is None and not differences:
        return None
    nodes = set(replay)
    node = parting if parting is not None else nodes.pop() if len(nodes) == 1 else None
    return {"node": node, "field": differences[0]["path"] if differences else None}


def writer_of(
    channel: str, original: Side, replay: Side, states: Sequence[State], case_states: Sequence[State]
) -> str | None:
    """Return the node after which a channel of the two runs first had different values. None if it is not known.

    `states` are those of the root graph that the past run stored, in order. `case_states` also have the states that the
    replay began from, in front.
    """
    begun = max(len(case_states) - len(states), 0)
    differing = next(
        (
            position
            for position, (state, other) in enumerate(zip(states, case_states[begun:], strict=False))
            if _differ(state, other, channel, original, replay)
        ),
        min(len(states), len(case_states) - begun),
    )
    sides = (states[:differing], case_states[: begun + differing])
    names = {task["name"] for side in sides for state in side[-1:] for task in _writers(state, channel)}
    return names.pop() if len(names) == 1 else None


def _differ(state: State, other: State, channel: str, original: Side, replay: Side) -> bool:
    walk = _Walk(_lifetime(original), _lifetime(replay))
    walk.compare(_value_of(state, channel), _value_of(other, channel), ())
    return bool(walk.total)


def _value_of(state: State, channel: str) -> Any:
    values = state["values"]
    return values.get(channel, MISSING) if isinstance(values, Mapping) else values


def _writers(state: State, channel: str) -> list[Mapping[str, Any]]:
    """Return the tasks on a state that wrote a channel, or that asked a question."""
    if channel == INTERRUPTS:
        return [task for task in state["tasks"] if task["interrupts"]]
    return [
        task for task in state["tasks"] if isinstance(task["result"], Mapping) and channel in task["result"]
    ]
