"""Effects on a thread's runs when another run is requested or a run is cancelled: each case once.

The tables state the contract: strategies, cancels, and the resulting status of the thread.
"""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest
from werkzeug.test import TestResponse

import tests.support.factories as make
from shared.infra.postgres import connection, driver
from shared.models import RunStatus, ThreadStatus
from shared.runs import claims, finish
from shared.runs.claims import Terms
from shared.threads import checkpoint_reads
from tests.contract.conftest import Api, Notifications
from tests.support.acting import Actor

LATER = 3600
BEFORE, PARTIAL = "1-before", "2-partial"  # checkpoints of the ended run and of the running run
BUSY = "Thread is already running a task. Wait for it to finish or choose a different multitask strategy."


class Story:
    """A thread with one ended run, and the actions that follow on it."""

    def __init__(self, api: Api, *, waits: bool = False) -> None:
        """Create the thread. With `waits`, the ended run stopped at an interrupt."""
        self.api = api
        self.thread_id: str = api.post("/threads").json["thread_id"]
        self.actors: dict[str, Actor] = {}
        first = self.starts(self.wants().json["run_id"])
        make.stored(first.run, BEFORE)
        place = make.state(self.thread_id, BEFORE, next=["ask"] if waits else [])
        status = ThreadStatus.INTERRUPTED if waits else ThreadStatus.IDLE
        first.finish({"n": 1}, state=place, thread_status=status)

    def wants(self, **body: Any) -> TestResponse:
        return self.api.post(f"/threads/{self.thread_id}/runs", {"assistant_id": "agent", **body})

    def has(self, kind: str) -> str:
        """Create a run that is pending, delayed or running. Returns its id."""
        response = self.wants(**({"after_seconds": LATER} if kind == "delayed" else {}))
        assert response.status_code == 200, response.text
        run_id: str = response.json["run_id"]
        if kind == "running":
            make.stored(self.starts(run_id).run, PARTIAL)
        return run_id

    def starts(self, run_id: str) -> Actor:
        self.actors[run_id] = actor = Actor(run_id)
        return actor

    def may_start(self, run_id: str) -> bool:
        """Claim the run for an unrelated owner. Returns whether it was eligible."""
        with driver() as conn:
            return bool(claims.claim(conn, [UUID(run_id)], Terms("somebody", 30, 3600)))

    def obeys(self) -> None:
        """Let the owners of running runs renew their leases and carry out requested cancels, as a runner does."""
        for run_id, actor in self.actors.items():
            with connection() as conn:
                held = claims.renew(conn, [UUID(run_id)], owner=actor.run.owner, lease_seconds=30)
            for hold in held.values():
                self._stop(actor, hold.cancel_requested, hold.cancel_reason)

    def _stop(self, actor: Actor, action: str | None, reason: str | None) -> None:
        if action == "interrupt":
            error = {"error": "UserInterrupt", "message": reason or ""}
            place = make.state(self.thread_id, PARTIAL, next=["on"])
            end = {"status": RunStatus.INTERRUPTED, "thread_status": ThreadStatus.INTERRUPTED, "error": error}
            actor.finish({"n": 2}, state=place, **end)
        elif action == "rollback":
            with connection() as conn:
                finish.roll_back(conn, actor.run, error={"error": "UserRollback", "message": reason or ""})
            actor.end("rollback")

    def status(self, run_id: str) -> str | None:
        response = self.api.get(f"/threads/{self.thread_id}/runs/{run_id}")
        return None if response.status_code == 404 else response.json["status"]

    def cancel(self, run_id: str, **query: str) -> TestResponse:
        path = f"/threads/{self.thread_id}/runs/{run_id}/cancel"
        return self.api.call("POST", path, query_string=query)

    def stream(self, run_id: str) -> TestResponse:
        return self.api.get(f"/threads/{self.thread_id}/runs/{run_id}/stream", buffered=False)

    @property
    def thread(self) -> Any:
        return self.api.get(f"/threads/{self.thread_id}").json

    @property
    def newest(self) -> str:
        """Checkpoint from which the next run continues."""
        with connection() as conn:
            key = (self.api.deployment.id, UUID(self.thread_id))
            found = checkpoint_reads.newest(conn, [key])[key]
        return next(id for id in (BEFORE, PARTIAL) if f"data of {id}".encode() in b"".join(found))


@pytest.fixture
def story(api: Api) -> Story:
    return Story(api)


KINDS = ("pending", "delayed", "running")
STRATEGIES = [
    # strategy, earlier runs, their statuses afterwards, the checkpoint from which the new run continues
    *(("reject", (kind,), (kind,), None) for kind in KINDS),
    ("reject", ("running", "pending"), ("running", "pending"), None),
    *(("enqueue", (kind,), (kind,), None) for kind in KINDS),
    ("enqueue", ("running", "pending"), ("running", "pending"), None),
    ("interrupt", (), (), BEFORE),
    ("interrupt", ("pending",), ("interrupted",), BEFORE),
    ("interrupt", ("delayed",), ("interrupted",), BEFORE),
    ("interrupt", ("running",), ("interrupted",), PARTIAL),
    ("interrupt", ("running", "pending", "delayed"), ("interrupted",) * 3, PARTIAL),
    ("rollback", (), (), BEFORE),
    ("rollback", ("pending",), (None,), BEFORE),
    ("rollback", ("delayed",), (None,), BEFORE),
    ("rollback", ("running",), (None,), BEFORE),
    ("rollback", ("running", "pending", "delayed"), (None,) * 3, BEFORE),
    ("reject", (), (), BEFORE),
    ("enqueue", (), (), BEFORE),
]


@pytest.mark.parametrize(("strategy", "ahead", "left", "goes_on_from"), STRATEGIES)
def test_a_strategy_does_what_it_says(
    story: Story,
    strategy: str,
    ahead: tuple[str, ...],
    left: tuple[str | None, ...],
    goes_on_from: str | None,
) -> None:
    old = [story.has(kind) for kind in ahead]
    streams = [story.stream(run_id) for run_id in old]

    answer = story.wants(multitask_strategy=strategy)

    if strategy == "reject" and ahead:
        assert (answer.status_code, answer.json) == (409, {"detail": BUSY})
        assert len(story.api.get(f"/threads/{story.thread_id}/runs").json) == 1 + len(old)
    else:
        assert answer.json["status"] == "pending"
    assert story.thread["status"] == ("busy" if ahead or answer.status_code == 200 else "idle")
    if "running" in ahead and answer.status_code == 200:
        assert not story.may_start(answer.json["run_id"])  # a thread never has two running runs
    story.obeys()
    live = {"delayed": "pending"}
    assert [story.status(run_id) for run_id in old] == [live.get(str(kind), kind) for kind in left]
    if goes_on_from is None:
        return
    for stream in streams:
        assert "event: error" not in stream.text  # each stream has ended
    run_id = answer.json["run_id"]
    thread = story.thread
    message = f"superseded by run {run_id} (multitask_strategy={strategy})"
    error = {"interrupt": "UserInterrupt", "rollback": "UserRollback"}.get(strategy)
    expected = {"error": error, "message": message} if "running" in ahead else None
    assert (thread["status"], thread["error"]) == ("busy", expected)
    assert thread["values"] == {"n": 2 if goes_on_from == PARTIAL else 1}
    assert story.newest == goes_on_from
    story.starts(run_id).finish({"n": 3})
    assert (story.thread["status"], story.thread["error"]) == ("idle", None)


@pytest.mark.parametrize("ahead", KINDS)
def test_an_enqueued_run_streams_from_its_first_event(story: Story, ahead: str) -> None:
    old = story.has(ahead)
    path = f"/threads/{story.thread_id}/runs/stream"
    stream = story.api.post(path, {"assistant_id": "agent", "stream_mode": "values"}, buffered=False)
    run_id = story.api.get(f"/threads/{story.thread_id}/runs").json[0]["run_id"]

    assert not story.may_start(run_id)
    if ahead != "running":
        assert story.cancel(old).status_code == 202
    else:
        story.actors[old].finish({})
    actor = story.starts(run_id)
    actor.emit("values", {"n": 5})
    actor.finish({"n": 5})

    names = [line.partition(": ")[2] for line in stream.text.split("\r\n") if line.startswith("event")]
    assert names == ["metadata", "values"]


CANCELS = [
    # kind of run, action, the run's status afterwards, the thread's status, its error
    ("running", "interrupt", "interrupted", "interrupted", "UserInterrupt"),
    ("running", "rollback", None, "idle", "UserRollback"),
    ("pending", "interrupt", "interrupted", "idle", None),
    ("pending", "rollback", None, "idle", None),
    ("delayed", "interrupt", "interrupted", "idle", None),
    ("delayed", "rollback", None, "idle", None),
]


@pytest.mark.parametrize(("kind", "action", "left", "status", "error"), CANCELS)
def test_a_cancel_does_what_it_says(
    story: Story, kind: str, action: str, left: str | None, status: str, error: str | None
) -> None:
    run_id = story.has(kind)
    stream = story.stream(run_id)

    assert story.cancel(run_id, action=action).status_code == 202
    story.obeys()

    assert "event: error" not in stream.text
    thread = story.thread
    assert (story.status(run_id), thread["status"]) == (left, status)
    message = f"{action} requested via POST /threads/{story.thread_id}/runs/{run_id}/cancel"
    assert thread["error"] == ({"error": error, "message": message} if error else None)
    stopped_midway = error == "UserInterrupt"
    assert thread["values"] == {"n": 2 if stopped_midway else 1}
    assert thread["interrupts"] == {}
    assert story.newest == (PARTIAL if stopped_midway else BEFORE)
    assert story.cancel(run_id).status_code == 404


@pytest.mark.parametrize("action", ["interrupt", "rollback"])
@pytest.mark.parametrize("kind", KINDS)
def test_the_run_after_a_cancelled_one_is_next(
    story: Story, notifications: Notifications, kind: str, action: str
) -> None:
    first, second = story.has(kind), story.has("pending")
    notifications.heard.clear()
    story.cancel(first, action=action)
    story.obeys()
    assert story.thread["status"] == "busy"
    if kind != "running":  # otherwise its owner sends the notification
        assert notifications.heard == [("runs.default", second)]
    story.starts(second).finish({"n": 3})
    assert (story.thread["status"], story.thread["error"]) == ("idle", None)


def test_an_open_question_survives_a_run_that_was_rolled_back(api: Api) -> None:
    for kind in KINDS:
        story = Story(api, waits=True)
        assert story.thread["status"] == "interrupted"
        run_id = story.has(kind)
        story.cancel(run_id, action="rollback")
        story.obeys()
        assert (kind, story.thread["status"], story.newest) == (kind, "interrupted", BEFORE)


WISHES = [
    # requested actions in order, the run's status afterwards, index of the action that its owner receives
    (("interrupt", "interrupt"), "interrupted", 0),
    (("interrupt", "rollback"), None, 1),
    (("rollback", "interrupt"), None, 0),
    (("rollback", "rollback"), None, 0),
]


def test_of_two_wishes_the_stronger_holds_and_of_equals_the_first(
    api: Api, subtests: pytest.Subtests
) -> None:
    for actions, left, told in WISHES:
        with subtests.test(actions=actions):
            story = Story(api)
            old = story.has("running")
            new = [story.wants(multitask_strategy=action).json["run_id"] for action in actions]
            reason = f"superseded by run {new[told]} (multitask_strategy={actions[told]})"
            with connection() as conn:
                held = claims.renew(conn, [UUID(old)], owner="actor", lease_seconds=30)[UUID(old)]
            assert (held.cancel_requested, held.cancel_reason) == (actions[told], reason)

            story.obeys()

            superseded = {"interrupt": "interrupted", "rollback": None}[actions[1]]
            assert [story.status(run_id) for run_id in (old, *new)] == [left, superseded, "pending"]
            assert story.newest == (PARTIAL if left else BEFORE)
            story.starts(new[1]).finish({})


STATUSES = [
    # status of the last run, status that it leaves on the thread, its next nodes, the thread's status as shown
    (RunStatus.SUCCESS, ThreadStatus.IDLE, [], "idle"),
    (RunStatus.SUCCESS, ThreadStatus.INTERRUPTED, ["ask"], "interrupted"),
    (RunStatus.INTERRUPTED, ThreadStatus.INTERRUPTED, ["on"], "interrupted"),
    (RunStatus.ERROR, ThreadStatus.ERROR, ["on"], "error"),
    (RunStatus.TIMEOUT, ThreadStatus.ERROR, ["on"], "error"),
]


@pytest.mark.parametrize(("status", "thread_status", "next_nodes", "shown"), STATUSES)
def test_a_threads_status_follows_from_its_runs(
    story: Story, status: RunStatus, thread_status: ThreadStatus, next_nodes: list[str], shown: str
) -> None:
    error = {"error": "ValueError", "message": "boom"} if shown == "error" else None
    run_id = story.has("running")
    place = make.state(story.thread_id, PARTIAL, next=next_nodes)
    story.actors[run_id].finish(
        {"n": 2}, status=status, thread_status=thread_status, error=error, state=place
    )
    assert (story.thread["status"], story.thread["error"]) == (shown, error)

    delayed = story.has("delayed")
    assert (story.thread["status"], story.thread["error"]) == ("busy", None)  # the next run clears the error

    story.cancel(delayed)
    assert story.thread["status"] != "busy"
