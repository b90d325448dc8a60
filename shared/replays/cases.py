"""The cases of a replay: selecting the past runs, starting a run for each at the bench, and judging the ended ones.

Calls to graph hosts hold no database connection: `prepare` and `judge` make them, and the transactions of `start` and
`record` store their results. Both lock the replay. A case that another process has started or judged meanwhile is left
as it is.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

import orjson
from sqlalchemy import Connection
from uuid_utils.compat import uuid7

from shared.errors import HostDied, Refused, RunyardError, Unanswered, Unavailable
from shared.figures import usage
from shared.hosts import calls
from shared.hosts.pending_calls import HostCall
from shared.infra import trace_context
from shared.infra.arrays import texts, uuids
from shared.infra.json_text import without_nul
from shared.infra.postgres import Row, dumps
from shared.models import RunStatus, has_ended
from shared.removal import deletion
from shared.replays import records
from shared.replays.answered_calls import inside, seconds_of, usage_without
from shared.replays.comparison import INTERRUPTS, Outcome, Side, compare, writer_of
from shared.replays.records import RECORDED, Status
from shared.replays.summary import summarize
from shared.runs import configurable, feedback, limits
from shared.runs.backlog import NextRun
from shared.runs.cancel import Displaced
from shared.runs.read import REPLAY, least_id
from shared.sql import part, statement

QUEUED = 50  # runs of cases that wait, so that the end of one case lets another start at once
STARTED_AT_ONCE = 20
JUDGED_AT_ONCE = 20
MAX_STATES = 100  # of a history in which the node of a difference is looked for
MAX_STATE_BYTES = 200_000  # of final values; a history of larger ones would take much memory
JUDGED_BYTES = 4 * 1024 * 1024  # of final values that are judged together
MAX_REASON = 10_000  # characters

NOT_STORED = "the run is no longer stored"
NO_START = "the checkpoint that the run started from is no longer stored"
NO_INPUT = "the input of the run is no longer stored"
NO_VALUES = "the final values of the run are no longer stored"
ASKED_AGAIN = "a later question of the same task has replaced the question that the run asked"
CASE_GONE = "the run of the case was deleted"

_ORIGINAL = part("replays.original")
_DUE = statement("replays.due")
_OPEN = statement("replays.open")
_LOCK = statement("replays.lock")
_KEEP_REPORT = statement("replays.keep_report")
_SELECT = statement(
    "replays.select_cases",
    ended=has_ended(),
    has_feedback=part("feedback.matches"),
    is_of_no_call=part("runs.is_of_no_call"),
)
_BEGIN = statement("replays.begin")
_WAITING = statement("replays.waiting", original=_ORIGINAL)
_LIVE_CASES = statement("replays.live_cases")
_TAKE = statement("replays.take")
_CREATE_THREAD = statement("replays.create_thread")
_CREATE_RUN = statement("replays.create_run")
_COPY_CHECKPOINTS = statement("replays.copy_checkpoints")
_ENDED = statement("replays.ended", original=_ORIGINAL, feedback=part("feedback.of_case"))
_RECORD_OUTCOME = statement("replays.record_outcome")
_SKIP_OPEN = statement("replays.skip_open")
_RETIRE_BENCH = statement("replays.retire_bench")
_PROGRESS = statement("replays.progress")
_FIGURES = statement("replays.figures")


@dataclass(frozen=True, slots=True)
class Prepared:
    """A waiting case: the kwargs of its run, or why it is skipped."""

    row: Row
    kwargs: Mapping[str, Any] | None = None
    skipped: str | None = None


@dataclass(frozen=True, slots=True)
class Judged:
    """The outcome of a case."""

    position: int
    outcome: Outcome
    reason: str | None = None
    comparison: Mapping[str, Any] | None = None


def due(conn: Connection) -> list[UUID]:
    """Return the replays with work to do, oldest first."""
    return [row["id"] for row in _DUE.rows(conn)]


def find(conn: Connection, replay_id: UUID) -> Row | None:
    """Return a replay for its execution, or None if it is deleted."""
    return _OPEN.row(conn, id=replay_id)


def select(conn: Connection, replay: Row) -> bool:
    """Select the past runs of a new replay. Returns False if another process is at it."""
    if _LOCK.row(conn, id=replay["id"]) is None:
        return False
    if not _BEGIN.count(conn, id=replay["id"]):
        return True
    where = replay["criteria"]
    _SELECT.count(
        conn,
        id=replay["id"],
        deployment_id=replay["deployment_id"],
        seed=replay["seed"],
        sample=replay["sample"],
        since=_bound(where.get("since")),
        until=_bound(where.get("until")),
        assistant_id=where.get("assistant_id"),
        graph_id=where.get("graph_id"),
        statuses=texts(where["status"]) if "status" in where else None,
        metadata=dumps(where["metadata"]) if "metadata" in where else None,
        key_id=where.get("key_id"),
        **feedback.filter_values(where.get("feedback")),
        run_ids=uuids([UUID(id) for id in where["run_ids"]]) if "run_ids" in where else None,
    )
    return True


def _bound(at: str | None) -> UUID | None:
    return None if at is None else least_id(datetime.fromisoformat(at))


# Starting


def waiting(conn: Connection, replay: Row) -> Sequence[Row]:
    """Return the next cases to start, as many as keep the queue of the bench filled."""
    (live,) = _LIVE_CASES.rows(conn, id=replay["id"])
    room = replay["concurrency"] + QUEUED - live["n"]
    return _WAITING.rows(conn, id=replay["id"], limit=min(room, STARTED_AT_ONCE)) if room > 0 else ()


def prepare(replay: Row, row: Row) -> Prepared:
    """Return a case with the kwargs of its run, which include the recording of the past run. Raises Unavailable."""
    skipped = _why_skipped(row)
    if skipped is not None:
        return Prepared(row, skipped=skipped)
    try:
        recording = _recording(replay, row)
    except Unavailable:
        raise
    except RunyardError as error:
        return Prepared(row, skipped=f"the recording of the run cannot be read: {error.message}")
    spec = {
        "tools": replay["tools"],
        "live_tools": replay["live_tools"],
        "models": replay["models"],
        "recording": recording,
        "network": replay["network"],
        "max_cost": replay["max_cost"],
    }
    return Prepared(row, kwargs={**_kwargs(row["kwargs"]), REPLAY: spec})


def _why_skipped(row: Row) -> str | None:
    if not row["is_stored"]:
        return NOT_STORED
    if (row["start_id"] is not None and not row["has_start"]) or (
        row["start_id"] is None and row["is_later"]
    ):
        return NO_START
    if row["start_id"] is None and not row["has_input"] and not row["kwargs"].get("command"):
        return NO_INPUT
    if row["last_id"] is None and row["status"] == RunStatus.SUCCESS:
        return NO_VALUES
    return None


def _kwargs(past: Mapping[str, Any]) -> dict[str, Any]:
    """Return the kwargs of a past run for a case: without its webhook, and with the least events."""
    return {
        **past,
        "webhook": None,
        "feedback_keys": None,
        "stream_mode": ["values"],
        "subgraphs": False,
        "resumable": False,
        "temporary": False,
    }


def _recording(replay: Row, row: Row) -> Mapping[str, Any]:
    """Return the recorded tool and model calls of a past run. One that made no call needs no graph host."""
    if not _made_calls(replay, row):
        return {"tools": [], "models": []}
    document = {"op": "recording", "run_id": str(row["run_id"]), "checkpoint_id": row["start_id"]}
    return _ask(replay, row, document)


def _made_calls(replay: Row, row: Row) -> bool:
    kinds = ("tool",) if replay["models"] != RECORDED else ("tool", "model")
    if row["attempt"] != 1 or row["spans"] is None:
        return True  # calls of lost attempts have no spans
    return any(f'"{kind}"' in row["spans"] for kind in kinds)


def _of_case(replay: Row, row: Row) -> dict[str, Any]:
    """Return a row that names the thread of a case in place of the past run's."""
    place = {"deployment_id": replay["bench_id"], "thread_id": row["case_thread_id"]}
    return {**row, **place, "is_deployed": False}


def _ask(replay: Row, row: Row | dict[str, Any], document: Mapping[str, Any]) -> Any:
    """Return the answer of a graph host about a past run's thread, by the run's revision if that is still deployed."""
    ids = {"thread_id": str(row["thread_id"]), "graph_id": row["graph_id"]}
    assistant_id = row["thread_metadata"].get("assistant_id")
    config = configurable.config_for_state(
        row["config"], configurable.user_of(row), **ids, assistant_id=assistant_id
    )
    return orjson.loads(
        calls.call(
            HostCall(
                deployment_id=row.get("deployment_id", replay["deployment_id"]),
                revision_id=row["revision_id"] if row["is_deployed"] else replay["revision_id"],
                pool=replay["pool"],
                thread_id=row["thread_id"],
                document={**document, **ids, "config": config, "metadata": {"assistant_id": assistant_id}},
            )
        )
    )


def start(conn: Connection, replay: Row, prepared: Sequence[Prepared], *, run_timeout_seconds: float) -> None:
    """Insert the threads and runs of cases, and record the skipped ones. Does nothing if another process is at it."""
    if _LOCK.row(conn, id=replay["id"]) is None:
        return
    for case in prepared:
        position = case.row["position"]
        if case.kwargs is None:
            _record(conn, replay["id"], Judged(position, Outcome.SKIPPED, case.skipped))
            continue
        ids = {"case_run_id": uuid7(), "case_thread_id": uuid7()}
        if _TAKE.count(conn, id=replay["id"], position=position, **ids):
            _insert(conn, replay, case, ids, run_timeout_seconds)


def _insert(
    conn: Connection, replay: Row, case: Prepared, ids: Mapping[str, UUID], run_timeout_seconds: float
) -> None:
    row, kwargs = case.row, dict(case.kwargs or {})
    of_case = {"bench_id": replay["bench_id"], "case_thread_id": ids["case_thread_id"]}
    past = {"deployment_id": replay["deployment_id"], "thread_id": row["thread_id"]}
    if not _CREATE_THREAD.count(conn, **of_case, **past):
        _record(conn, replay["id"], Judged(row["position"], Outcome.SKIPPED, NOT_STORED))
        return
    if row["start_id"] is not None:
        _COPY_CHECKPOINTS.count(
            conn, **of_case, **past, start_id=row["start_id"], created_seq=row["created_seq"]
        )
    config = kwargs["config"]
    # The trace of the past run's caller does not contain the case, which begins a trace of its own.
    past_entries = config.get("configurable", {})
    entries = {
        **{name: value for name, value in past_entries.items() if name not in trace_context.KEYS},
        "run_id": str(ids["case_run_id"]),
        "thread_id": str(ids["case_thread_id"]),
    }
    kwargs["config"] = {**config, "configurable": entries}
    _CREATE_RUN.count(
        conn,
        **of_case,
        case_run_id=ids["case_run_id"],
        revision_id=replay["revision_id"],
        run_id=row["run_id"],
        kwargs=dumps(kwargs),
        run_timeout_seconds=run_timeout_seconds,
    )


def mark_notified(conn: Connection, replay: Row) -> list[NextRun]:
    """Mark the runs of cases that may start now as notified, and return them."""
    return limits.mark_notified(conn, replay["bench_id"], limit=replay["concurrency"])


# Judging


def ended(conn: Connection, replay: Row) -> Sequence[Row]:
    """Return the next cases whose runs have ended and that have no outcome, with both runs."""
    return _ENDED.rows(conn, id=replay["id"], limit=JUDGED_AT_ONCE, bytes=JUDGED_BYTES)


def judge(replay: Row, row: Row) -> Judged:
    """Return the outcome of a case whose run has ended. Raises Unavailable."""
    position = row["position"]
    if not row["is_stored"]:
        return Judged(position, Outcome.SKIPPED, NOT_STORED)
    if not row["has_run"]:
        return Judged(position, Outcome.FAILED, CASE_GONE)
    try:
        reference = _reference(replay, row)
    except Unavailable:
        raise
    except RunyardError as error:
        return Judged(position, Outcome.SKIPPED, f"{NO_VALUES}: {error.message}")
    values = _final(row["case_values"], row["case_state"])
    scored = _scores(replay, row, reference, values)
    report = row["report"] or {}
    original = _side(row, "", reference, scored.original, report.get("live", ()))
    replayed = _side(row, "case_", values, scored.replay, None)
    outcome, comparison = compare(original, replayed, report)
    comparison = _with_node(replay, row, comparison, original, replayed)
    if scored.error is not None:
        return Judged(position, Outcome.FAILED, scored.error, comparison)
    error = row["case_error"]
    reason = None if error is None else f"{error.get('error')}: {error.get('message')}"
    return Judged(position, outcome, reason, comparison)


def _with_node(
    replay: Row, row: Row, comparison: dict[str, Any], original: Side, replayed: Side
) -> dict[str, Any]:
    """Return a comparison whose first difference names the node that wrote it, as far as both histories tell."""
    first = comparison["first_difference"]
    if first is None or first["node"] is not None or not first["field"]:
        return comparison
    if max(len(dumps(side.values)) for side in (original, replayed)) > MAX_STATE_BYTES:
        return comparison
    document = {"op": "history", "limit": MAX_STATES, "before": None, "checkpoint_ns": ""}
    own = {**document, "filter": {"run_id": str(row["run_id"])}}
    try:
        states = _ask(replay, row, own)
        case_states = _ask(replay, _of_case(replay, row), {**document, "filter": {}})
    except Unavailable:
        raise
    except RunyardError:  # a history that is too large, or cannot be read: the node is not known
        return comparison
    if MAX_STATES in (len(states), len(case_states)):
        return comparison
    channel = first["field"].partition(".")[0]
    node = writer_of(channel, original, replayed, states[::-1], case_states[::-1])
    return {**comparison, "first_difference": {**first, "node": node}}


def _side(
    row: Row, prefix: str, values: Any, scores: Mapping[str, float], live: Collection[str] | None
) -> Side:
    """Return a side of the comparison.

    Of the past run, what happened inside of tools does not count, except for those whose names are in `live`. Its cost is
    not known then if the spans do not have their usage by model.
    """
    spans = row[f"{prefix}spans"]
    left_out = [] if live is None else inside(spans, live)
    models, unknown = usage_without(row[f"{prefix}usage"], left_out)
    return Side(
        row[f"{prefix}status"],
        values,
        spans=spans,
        tokens=max(usage.total_tokens(models) - unknown, 0),
        cost=None if unknown else usage.cost(models) if models else 0.0,
        started_at=row[f"{prefix}started_at"],
        ended_at=row[f"{prefix}ended_at"],
        scores=scores,
        left_out=frozenset(span["id"] for span in left_out),
        tool_seconds=0.0 if live is None else seconds_of(spans, live),
    )


def _reference(replay: Row, row: Row) -> Any:
    """Return the final values of the past run: those of its thread, or of its last checkpoint. Raises RunyardError."""
    if row["is_asked_again"]:
        raise Refused(ASKED_AGAIN)
    if row["is_current"]:
        return _final(row["values"], row["state"])
    if row["last_id"] is None:
        return {}
    checkpoint = {"checkpoint_id": row["last_id"]}
    document = {"op": "state", "checkpoint": checkpoint, "left_by": str(row["run_id"])}
    state = _ask(replay, row, document)
    return _final(state["values"], state)


def _final(values: Any, state: Mapping[str, Any] | None) -> Any:
    interrupts = (state or {}).get("interrupts")
    if not interrupts:
        return values or {}
    return {**(values or {}), INTERRUPTS: interrupts}


@dataclass(frozen=True, slots=True)
class _Scored:
    original: Mapping[str, float]
    replay: Mapping[str, float]
    error: str | None = None


def _scores(replay: Row, row: Row, reference: Any, output: Any) -> _Scored:
    """Return the scores of both runs by the project's scorer, or its error."""
    if not replay["has_scorer"] or row["case_status"] not in (RunStatus.SUCCESS, RunStatus.INTERRUPTED):
        return _Scored({}, {})
    both = []
    for status, values in ((row["status"], reference), (row["case_status"], output)):
        run = {"run_id": str(row["run_id"]), "thread_id": str(row["thread_id"]), "status": status}
        document = {
            "op": "score",
            "input": row["input"],
            "reference": reference,
            "output": values,
            "run": {**run, "graph_id": row["graph_id"], "feedback": row["feedback"] or []},
        }
        try:
            answer = _ask_scorer(replay, document)
        except Unavailable:
            raise
        except Unanswered as error:
            return _Scored({}, {}, f"the scorer failed: it blocked its process: {error.message}")
        except RunyardError as error:
            return _Scored({}, {}, f"the scorer failed: {error.message}")
        if "scores" not in answer:
            return _Scored({}, {}, f"the scorer failed: {answer.get('traceback') or answer['error']}")
        both.append(answer["scores"])
    return _Scored(*both)


def _ask_scorer(replay: Row, document: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the answer of the project's scorer.

    Cases are scored together in one host. A call that another one may have disturbed, because the host died or was
    blocked, or whose runner was lost, is sent again, to a host of its own. Raises the error of that call.
    """

    def ask(*, is_alone: bool) -> Mapping[str, Any]:
        call = HostCall(
            deployment_id=replay["deployment_id"],
            revision_id=replay["revision_id"],
            pool=replay["pool"],
            document={**document, "is_alone": is_alone},
            is_repeatable=is_alone,
        )
        return orjson.loads(calls.call(call))

    try:
        return ask(is_alone=False)
    except (HostDied, Unanswered):
        return ask(is_alone=True)


def record(conn: Connection, replay: Row, judged: Sequence[Judged]) -> None:
    """Record the outcomes of cases. Does nothing if another process is at it."""
    if _LOCK.row(conn, id=replay["id"]) is None:
        return
    for case in judged:
        _record(conn, replay["id"], case)


def _record(conn: Connection, replay_id: UUID, case: Judged) -> None:
    reason = None if case.reason is None else case.reason.replace("\0", "")[:MAX_REASON]
    comparison = None if case.comparison is None else without_nul(dumps(case.comparison))
    _RECORD_OUTCOME.count(
        conn,
        id=replay_id,
        position=case.position,
        outcome=case.outcome,
        reason=reason,
        comparison=comparison,
    )


# Ending


def end_if_over(conn: Connection, replay: Row) -> list[Displaced]:
    """End a replay whose cases all have outcomes, or that has reached a bound. Returns the runs that it stopped."""
    (progress,) = _PROGRESS.rows(conn, id=replay["id"])
    if not progress["open"]:
        return end(conn, replay, Status.DONE)
    reached = next((name for name in ("tokens", "cost") if _is_reached(replay, name, progress[name])), None)
    if reached is None and _is_reached(replay, "minutes", replay["minutes"]):
        reached = "minutes"
    if reached is None:
        return []
    bound = f"max_{reached}"
    return end(conn, replay, Status.STOPPED, f"the bound {bound} ({replay[bound]:,}) is reached")


def _is_reached(replay: Row, name: str, used: float) -> bool:
    bound = replay[f"max_{name}"]
    return bound is not None and float(used) >= bound


def end(conn: Connection, replay: Row, status: Status, reason: str | None = None) -> list[Displaced]:
    """End a replay: skip its open cases, summarize it, and stop its runs. Returns the stopped runs.

    Does nothing if it has ended, or if another process is at a step of it.
    """
    if _LOCK.row(conn, id=replay["id"]) is None:
        return []
    is_complete = status == Status.DONE
    if not is_complete:
        _SKIP_OPEN.count(conn, id=replay["id"], reason=reason or f"the replay was {status} before")
    summary, verdict = summarize(
        _FIGURES.rows(conn, id=replay["id"]), replay["rule"], is_complete=is_complete
    )
    records.finish(conn, replay["id"], status, reason=reason, verdict=verdict, summary=summary)
    return stop_runs(conn, replay)


def stop_runs(conn: Connection, replay: Row) -> list[Displaced]:
    """Stop the live runs of an ended replay. Returns an empty list when no more can be stopped."""
    return deletion.stop_runs(conn, replay["bench_id"], reason="the replay has ended")


def retire_bench(conn: Connection, replay: Row) -> None:
    """Exclude the bench of an ended replay from those that may have live runs, once it has none."""
    _RETIRE_BENCH.count(conn, bench_id=replay["bench_id"])


def keep_report(conn: Connection, case_run_id: UUID, report: str) -> None:
    """Store the graph host's report about the run of a case, as JSON. Does nothing for a run that belongs to no case."""
    _KEEP_REPORT.count(conn, case_run_id=case_run_id, report=report)
