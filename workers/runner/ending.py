"""The end of an attempt, decided from its outcome and from a request to stop it.

`decide()` only decides; `workers/runner/execution.py` commits the decision.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import orjson

from shared.errors import Fenced, HostDied, HostError, RunyardError, Unavailable
from shared.infra.json_text import canonical, without_nul
from shared.infra.postgres import dumps
from shared.models import RunStatus, ThreadStatus
from shared.runs import end_event
from shared.runs.claims import Claimed
from shared.runs.end_event import ROLLBACK, cancel_error
from shared.runs.finish import Finish
from workers.runner import quarantine

BUDGET = "budget"  # the action of a stop because a token budget is used up
MAX_SPANS_BYTES = 256 << 10  # of the spans that a host sends; more are not stored
MAX_REPORT_BYTES = 256 << 10  # of a replay; a larger one is not stored
RETRY_SECONDS = (1.0, 5.0)  # delay after the first and the second death that counts


class Stop(NamedTuple):
    """A request to stop a run. `action` is interrupt or rollback, or the runner's own timeout, handover or budget."""

    action: str
    reason: str | None = None


def _seconds(value: Any) -> float | None:
    """Return a duration sent by a host; None if it is not a finite, non-negative float."""
    return value if isinstance(value, float) and 0 <= value < math.inf else None


def _stored(usage: Any) -> str | None:
    return without_nul(dumps(usage)) if usage else None


def _report(value: Any) -> str | None:
    """Return the JSON of a replay's report with its known fields; None if the host sent none, or more than is stored."""
    if not isinstance(value, dict):
        return None
    lists = {name: value.get(name) for name in ("unrecorded", "live", "network")}
    counts = {name: value.get(name) for name in ("models_recorded", "models_live")}
    document = {
        **{name: items if isinstance(items, list) else [] for name, items in lists.items()},
        **{name: count if isinstance(count, int) else 0 for name, count in counts.items()},
    }
    report = without_nul(dumps(document))
    return report if len(report) <= MAX_REPORT_BYTES else None


@dataclass(slots=True)
class AttemptTimes:
    """Times of an attempt on the runner's clock, in seconds of `time.monotonic`."""

    claimed_at: float
    host_requested_at: float | None = None  # the attempt begins to wait for a graph host

    def document(self, spans: Any) -> str | None:
        """Return the JSON that is stored with the run, in milliseconds from the claim; None if the host sent no spans."""
        if not isinstance(spans, dict):
            return None
        attempt_ms = (time.monotonic() - self.claimed_at) * 1000
        claimed_ms = ((self.host_requested_at or self.claimed_at) - self.claimed_at) * 1000
        times = {"attempt_ms": round(attempt_ms, 2), "claimed_ms": round(claimed_ms, 2)}
        document = without_nul(dumps({**spans, **times}))
        return document if len(document) <= MAX_SPANS_BYTES else None


@dataclass(frozen=True, slots=True)
class HostOutcome:
    """The content of a host's DONE frame. Without fields: the host has sent none."""

    status: str | None = None
    thread_status: ThreadStatus = ThreadStatus.IDLE
    error: dict[str, Any] | None = None
    keeps_thread: bool = False
    values: str | None = None
    state: str | None = None
    interrupts: str | None = None
    usage: str | None = None
    node_usage: str | None = None
    first_token_ago: float | None = None
    spans: str | None = None
    report: str | None = None  # of a replay
    answer: bytes | None = None
    answers_state: bool = False  # the answer is the thread's whole state

    @classmethod
    def read(cls, parts: list[bytes], times: AttemptTimes | None = None) -> HostOutcome:
        head = orjson.loads(parts[0])
        has_state = head.get("state") is not None
        return cls(
            status=head.get("status"),
            thread_status=ThreadStatus(head.get("thread_status") or ThreadStatus.IDLE),
            error=head.get("error"),
            keeps_thread=head.get("keeps_thread", False),
            values=canonical(parts[1]) if has_state else None,
            state=dumps(head["state"]) if has_state else None,
            interrupts=None if head.get("unchanged") else dumps(head.get("interrupts") or {}),
            usage=_stored(head.get("usage")),
            node_usage=_stored(head.get("node_usage")),
            first_token_ago=_seconds(head.get("first_token_ago")),
            spans=None if times is None else times.document(head.get("spans")),
            report=_report(head.get("replay")),
            answer=parts[2],
            answers_state=has_state and parts[1] == parts[2],
        )


@dataclass(frozen=True, slots=True)
class End:
    """End the run with this status of the run and of its thread."""

    status: RunStatus
    thread_status: ThreadStatus | None  # None: the thread stays as it was before the run
    error: dict[str, Any] | None = None
    outcome: HostOutcome = HostOutcome()
    is_announced: bool = False  # the runner writes the error as an event, since the host could not

    def finish(self, run: Claimed, *, end_seq: int) -> Finish:
        """Return this end as the database stores it. `end_seq` is the number of the last event in the run's log."""
        outcome = self.outcome
        return Finish(
            run,
            self.status,
            self.thread_status,
            self.error,
            outcome.values,
            outcome.state,
            outcome.interrupts,
            outcome.usage,
            outcome.node_usage,
            outcome.first_token_ago,
            outcome.spans,
            end_seq,
        )

    def last_event(self, run: Claimed) -> bytes:
        """Return the last event of the run's log.

        A client that waits for the run receives the answer or, if a failed run has none, its error.
        """
        outcome, answer = self.outcome, self.outcome.answer
        if answer is None:
            has_failed = self.error is not None and self.status is not RunStatus.INTERRUPTED
            answer = dumps({"__error__": self.error}).encode() if has_failed else b"null"
        is_interrupted = self.thread_status is ThreadStatus.INTERRUPTED
        return end_event.last_event(
            run, self.status, answer, interrupted=is_interrupted, is_state=outcome.answers_state
        )


@dataclass(frozen=True, slots=True)
class RollBack:
    """Remove the run and its effects. A client that waits for the run still receives its last answer."""

    error: dict[str, Any]
    outcome: HostOutcome = HostOutcome()


@dataclass(frozen=True, slots=True)
class GiveBack:
    """Return the run to the queue. Another attempt continues from the last checkpoint, here or elsewhere."""

    why: str | None = None
    delay_seconds: float = 0.0
    death: str | None = None  # how the host died, to follow the words "the host"
    refund: bool = True  # the attempt does not count against the run's limit of deaths
    level: int | None = None  # the run's new quarantine level


@dataclass(frozen=True, slots=True)
class Drop:
    """Write nothing more of the run, since another attempt may own it."""

    reason: RunyardError


Ending = End | RollBack | GiveBack | Drop


def decide(
    run: Claimed,
    outcome: HostOutcome | RunyardError,
    stop: Stop | None,
    *,
    max_attempts: int,
    timeout_seconds: float,
) -> Ending:
    """Decide how an attempt with this outcome ends.

    A run that ended before it could be stopped keeps its end, unless it exceeded a token budget: that is always an error.
    """
    match outcome:
        case Fenced():
            return Drop(outcome)
        case HostOutcome() if stop and stop.action == BUDGET:
            return stopped(run, stop, outcome, timeout_seconds=timeout_seconds)
        case HostOutcome(status="success"):
            return End(RunStatus.SUCCESS, outcome.thread_status, outcome=outcome)
        case HostOutcome(status="error"):
            return _failed(outcome)
        case HostOutcome() if stop:
            return stopped(run, stop, outcome, timeout_seconds=timeout_seconds)
        case HostError() if stop:
            return stopped(run, stop, timeout_seconds=timeout_seconds)
        case HostOutcome():
            return _failed(outcome)
        case HostDied(together=together) if together > 1:
            level = quarantine.after(run.quarantine, together)
            return GiveBack(
                f"its host {outcome.message} with {together} on it", death=outcome.message, level=level
            )
        case HostError() if run.deaths + 1 >= max_attempts:
            return _abandoned(run, outcome)
        case HostError():
            delay = RETRY_SECONDS[min(run.deaths, len(RETRY_SECONDS) - 1)]
            level = quarantine.ALONE if isinstance(outcome, HostDied) else None
            return GiveBack(f"its host {outcome.message}", delay, outcome.message, refund=False, level=level)
        case Unavailable():
            return GiveBack(f"it cannot start here now: {outcome.message}", RETRY_SECONDS[0])
        case _:
            return unstorable(outcome)


def stopped(
    run: Claimed, stop: Stop, outcome: HostOutcome = HostOutcome(), *, timeout_seconds: float
) -> Ending:
    """Decide how a run ends on a request to stop it. `outcome` is empty if no DONE frame arrived."""
    match stop.action:
        case "handover":
            return GiveBack()
        case "rollback" if run.temporary:
            return End(RunStatus.INTERRUPTED, ThreadStatus.IDLE, outcome=outcome)
        case "rollback":
            return RollBack(cancel_error(ROLLBACK, stop.reason), outcome)
        case action if action == BUDGET:
            error = {"error": "BudgetExceeded", "message": stop.reason or ""}
            outcome = replace(outcome, answer=None)
            return End(RunStatus.ERROR, ThreadStatus.ERROR, error, outcome, is_announced=True)
        case "timeout":
            seconds = run.timeout_seconds or timeout_seconds
            error = {"error": "TimeoutError", "message": f"the run exceeded its limit of {seconds:.0f} s"}
            outcome = replace(outcome, answer=None)
            return End(RunStatus.TIMEOUT, ThreadStatus.ERROR, error, outcome, is_announced=True)
        case _:
            error = cancel_error("interrupt", stop.reason)
            return End(RunStatus.INTERRUPTED, ThreadStatus.INTERRUPTED, error, outcome)


def unstorable(refusal: RunyardError) -> End:
    """Return the end of a run whose checkpoint, or whose end, the database refuses."""
    return End(RunStatus.ERROR, ThreadStatus.ERROR, as_error(refusal), is_announced=True)


def as_error(error: RunyardError) -> dict[str, str]:
    """Return an error of ours in the form of a run's error."""
    return {"error": type(error).__name__, "message": error.message}


def _failed(outcome: HostOutcome) -> End:
    thread_status = None if outcome.keeps_thread else ThreadStatus.ERROR
    return End(RunStatus.ERROR, thread_status, outcome.error, outcome)


def _abandoned(run: Claimed, death: HostError) -> End:
    how = f"the graph host {death.message}" if isinstance(death, HostDied) else death.message
    error = {"error": "RunAbandoned", "message": f"{how} ({run.deaths + 1} times in a row)"}
    return End(RunStatus.ERROR, ThreadStatus.ERROR, error, is_announced=True)
