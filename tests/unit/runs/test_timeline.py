"""Bands of a timeline, from a run's row, its spans and its checkpoints."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest

from shared.runs import timeline
from shared.runs.timeline import Band, Step

START = datetime(2026, 1, 31, 12, tzinfo=UTC)
RUN = UUID(int=1)


def at(seconds: float) -> datetime:
    return START + timedelta(seconds=seconds)


def row(**columns: Any) -> dict[str, Any]:
    """A run that was created at 0 s, claimed at 1 s and ended at 3 s."""
    return {
        "run_id": RUN, "status": "success", "created_at": at(0), "updated_at": at(3), "started_at": at(1),
        "ended_at": at(3), "attempt": 1, "attempts": None, "spans": None, "error": None, "cancel_reason": None,
        "previous_run_id": UUID(int=0), "previous_ended_at": None, "previous_answered_at": None, "previous_answered_by": None,
        "asked_kind": None, "asked_closed_at": None, "asked_answered_at": None, "asked_answered_by": None,
        "next_run_id": UUID(int=2), "next_created_at": None, **columns,
    }  # fmt: skip


def span(id: str, kind: str, name: str, begin: float, end: float | None, **more: Any) -> dict[str, Any]:
    return {"id": id, "kind": kind, "name": name, "from": begin, "until": end, "within": None, **more}


def spans(*each: Any, lasted_ms: float = 1_500, attempt_ms: float = 2_000) -> dict[str, Any]:
    return {"attempt_ms": attempt_ms, "claimed_ms": 100, "lasted_ms": lasted_ms, "spans": list(each)}


def short(bands: list[Band]) -> list[tuple[Any, ...]]:
    """Return `(kind, name, start, end, status)` with times in seconds."""
    return [
        (
            band.kind,
            band.name,
            (band.started_at - START).total_seconds(),
            None if band.ended_at is None else (band.ended_at - START).total_seconds(),
            band.status,
        )
        for band in bands
    ]


def test_a_run_waits_is_claimed_gets_a_host_and_executes_its_nodes() -> None:
    document = spans(
        span("a", "node", "agent", 0, 1_000, checkpoint="c1"),
        span("m", "model", "large", 200, 900, within="a", tokens=12),
        span("t", "tool", "look_up", 1_100, 1_200, error="ValueError"),
    )

    bands = timeline.bands_of(row(spans=document))

    assert short(bands) == [
        ("queue", "Waits in the queue", 0, 1, "success"),
        ("attempt", "Attempt 1", 1, 3, "success"),
        ("claim", "Claim", 1, 1.1, "success"),
        ("host_start", "Graph host", 1.1, 1.5, "success"),
        ("node", "agent", 1.5, 2.5, "success"),
        ("model", "large", 1.7, 2.4, "success"),
        ("tool", "look_up", 2.6, 2.7, "error"),
    ]
    assert bands[5].parent == bands[4].id
    assert bands[6].parent == bands[1].id
    assert [band.detail for band in bands[4:]] == [None, "12 tokens", "ValueError"]
    assert bands[4].checkpoint_id == "c1"


def test_a_node_that_did_not_end_lasts_until_the_end_of_the_attempt() -> None:
    document = spans(span("a", "node", "sleep", 0, None))

    bands = timeline.bands_of(row(status="timeout", spans=document))

    assert short(bands)[-1] == ("node", "sleep", 1.5, 3, "timeout")


def test_earlier_attempts_have_their_reason_and_a_wait_before_the_next_one() -> None:
    lost = {
        "attempt": 1,
        "worker": "w",
        "started_at": at(1).isoformat(),
        "ended_at": at(2).isoformat(),
        "reason": "drained",
    }

    bands = timeline.bands_of(
        row(attempt=2, attempts=[lost], ended_at=at(6), spans=spans(attempt_ms=2_000, lasted_ms=1_900))
    )

    assert short(bands)[:4] == [
        ("queue", "Waits in the queue", 0, 1, "success"),
        ("attempt", "Attempt 1", 1, 2, "lost"),
        ("queue", "Waits in the queue", 2, 4, "success"),
        ("attempt", "Attempt 2", 4, 6, "success"),
    ]
    assert bands[1].detail == "drained"


def test_a_pending_run_waits_for_a_reason() -> None:
    pending = row(status="pending", started_at=None, ended_at=None, attempt=0)

    bands = timeline.bands_of(pending, queue={"reason": "runners are full"})

    assert short(bands) == [("queue", "Waits in the queue", 0, None, "waiting")]
    assert bands[0].detail == "runners are full"


def test_a_run_that_was_cancelled_while_it_waited_has_no_attempt() -> None:
    cancelled = row(status="interrupted", started_at=None, attempt=0, cancel_reason="not needed")

    assert short(timeline.bands_of(cancelled)) == [("queue", "Waits in the queue", 0, 3, "interrupted")]


@pytest.mark.parametrize(
    ("columns", "ended_at", "status", "detail"),
    [
        ({}, None, "waiting", "not answered yet"),
        (
            {"next_created_at": at(9), "asked_answered_at": at(9), "asked_answered_by": "ann"},
            *(at(9), "success", "answered by ann"),
        ),
        ({"next_created_at": at(9), "asked_closed_at": at(9)}, at(9), "success", "closed without an answer"),
        (
            {"asked_closed_at": at(7), "asked_answered_by": "ann"},  # cancelled: no run follows
            *(at(7), "success", "closed without an answer by ann"),
        ),
    ],
    ids=["open", "answered", "ignored", "cancelled"],
)
def test_a_question_is_followed_by_a_persons_band(
    columns: dict[str, Any], ended_at: Any, status: str, detail: str
) -> None:
    person = timeline.bands_of(row(asked_kind="interrupt", **columns))[-1]

    assert (person.kind, person.started_at, person.ended_at) == ("person", at(3), ended_at)
    assert (person.status, person.detail) == (status, detail)


def test_a_run_that_answers_begins_with_the_persons_band() -> None:
    bands = timeline.bands_of(
        row(previous_ended_at=at(-60), previous_answered_at=at(0), previous_answered_by="ann")
    )

    assert short(bands)[0] == ("person", "Waits for a person", -60, 0, "success")


def checkpoint_id(seconds: float) -> str:
    """Return the UUID of version 6 for a time."""
    ticks = int((at(seconds) - timeline._GREGORIAN).total_seconds() * 10_000_000)
    return str(UUID(int=(ticks >> 12) << 80 | 6 << 76 | (ticks & 0xFFF) << 64 | 2 << 62))


def test_without_spans_nodes_last_from_one_checkpoint_to_the_next() -> None:
    first, second, third = (checkpoint_id(each) for each in (1.2, 1.5, 2.0))
    pull = "~__pregel_pull, "
    steps = [
        Step("", first, None, is_own=True, tasks=[("s", f"{pull}__start__", frozenset({"branch:to:plan"}))]),
        Step(
            "", second, first, is_own=True, tasks=[("p", f"{pull}plan", frozenset({"log", "branch:to:act"}))]
        ),
        Step(
            "plan:p", checkpoint_id(1.6), None, is_own=True, tasks=[("i", f"{pull}inner", frozenset({"log"}))]
        ),
        Step("", third, second, is_own=True),
    ]

    bands = timeline.bands_of(row(status="running", ended_at=None), steps=steps)

    assert [(band.kind, band.name, band.status, band.ended_at is None) for band in bands[2:]] == [
        ("node", "plan", "success", False),
        ("node", "inner", "success", True),
        ("node", "act", "running", True),
    ]
    assert bands[3].parent == bands[2].id
    assert abs((bands[2].started_at - at(1.5)).total_seconds()) < 0.001
    assert bands[2].ended_at is not None
    assert abs((bands[2].ended_at - at(2.0)).total_seconds()) < 0.001


@pytest.mark.parametrize(
    "document",
    [
        "text", [], {"spans": "no"}, {"spans": [None, 1, {"id": 1}, {"id": "a", "kind": "evil", "name": "x", "from": 1}]},
        {"spans": [span("a", "node", "x", float("inf"), 1), span("a", "node", "x", -1, 1)]},
        {"spans": [span("a", "node", "x", 1e9, 1e10, within="a", tokens="many", checkpoint=3, ns=[])]},
        {"spans": [{**span("a", "node", "x", 1, 1), "kind": []}, span("a", "node", "x", 1, 1, within={}, error=[])]},
        {"spans": [], "attempt_ms": "x", "lasted_ms": None, "claimed_ms": -5},
    ],
)  # fmt: skip
def test_a_host_that_sends_anything_cannot_break_the_timeline(document: Any) -> None:
    for band in timeline.bands_of(row(spans=document)):
        assert at(0) <= band.started_at <= at(3)
        assert band.ended_at is None or band.started_at <= band.ended_at <= at(3)
        band.show()
