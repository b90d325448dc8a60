"""Checkpoints and ends of many runs in one commit: order, fencing, waiting, and isolation of bad data."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, cast
from uuid import UUID

import gevent
import psycopg
import pytest
from sqlalchemy import text

from shared.deployments.deployments import DeploymentRef
from shared.errors import Fenced, RunyardError, Unavailable
from shared.infra import postgres
from shared.infra.postgres import connection, driver, translated
from shared.models import RunStatus, ThreadStatus
from shared.runs import cancel, claims
from shared.runs.backlog import NextRun
from shared.runs.claims import Claimed, Requeue, Terms
from shared.runs.finish import Finish
from shared.threads.checkpoints import Write
from tests.support import factories
from tests.support.waiting import until
from workers.runner import committer as committing
from workers.runner.committer import Committer

pytestmark = pytest.mark.usefixtures("db")

KWARGS = {"config": {"configurable": {}}}


class Owner:
    """A run's execution, as the committer sees it."""

    def __init__(self, run: Claimed) -> None:
        self.run = run
        self.is_fenced = False
        self.answered: list[int] = []
        self.refusals: list[str] = []

    def fence(self, reason: str) -> None:
        self.is_fenced = True

    def stored(self, ask: int) -> None:
        self.answered.append(ask)

    def refuse(self, reason: str) -> None:
        self.refusals.append(reason)

    def checkpoint(self, id: str, **metadata: Any) -> Write:
        return factories.checkpoint(self.run, id, metadata=metadata)

    def end(self, **fields: Any) -> Finish:
        return Finish(self.run, RunStatus.SUCCESS, ThreadStatus.IDLE, **{"values": '{"a":1}', **fields})


@pytest.fixture
def committer() -> Iterator[Committer]:
    committer = Committer("me")
    yield committer
    committer._greenlet.kill()


def owner_of_a_run(deployment: DeploymentRef, thread_id: UUID | None = None, **columns: Any) -> Owner:
    run_id = factories.run(deployment, thread_id, kwargs=KWARGS, **columns)
    with driver() as conn:
        ((run, _),) = claims.claim(conn, [run_id], Terms("me", 30, 3600))
    return Owner(run)


def stored(owner: Owner) -> list[str]:
    with connection() as conn:
        found = conn.execute(
            text("SELECT checkpoint_id FROM checkpoint WHERE thread_id = :id ORDER BY 1"),
            {"id": owner.run.thread_id},
        )
        return list(found.scalars())


def status(owner: Owner) -> str | None:
    with connection() as conn:
        return conn.execute(
            text("SELECT status FROM run WHERE run_id = :id"), {"id": owner.run.run_id}
        ).scalar_one_or_none()


def take_away(owner: Owner) -> None:
    with connection() as conn:
        conn.execute(
            text("UPDATE run SET owner = 'b', attempt = attempt + 1 WHERE run_id = :id"),
            {"id": owner.run.run_id},
        )


def test_checkpoints_are_stored_soon_and_a_graph_that_waits_is_reported(
    committer: Committer, deployment: DeploymentRef
) -> None:
    owner = owner_of_a_run(deployment)
    committer.store(owner, owner.checkpoint("1"), 0)
    committer.store(owner, owner.checkpoint("2"), 7)

    until(lambda: owner.answered == [7])
    assert stored(owner) == ["1", "2"]


def test_an_end_comes_after_what_was_stored_names_the_next_run_and_removes_a_temporary_one(
    committer: Committer, deployment: DeploymentRef
) -> None:
    owner = owner_of_a_run(deployment)
    for id in "123":
        committer.store(owner, owner.checkpoint(id), 0)

    assert committer.finish(owner, owner.end()) is None
    assert stored(owner) == ["1", "2", "3"]
    assert status(owner) == "success"
    assert not owner.is_fenced

    first = owner_of_a_run(deployment)
    behind = factories.run(deployment, first.run.thread_id)

    assert committer.finish(first, first.end()) == NextRun(behind, "default")

    gone = owner_of_a_run(deployment, temporary=True)
    committer.finish(gone, gone.end())

    assert status(gone) is None


def test_many_runs_are_one_commit(
    committer: Committer, deployment: DeploymentRef, monkeypatch: pytest.MonkeyPatch
) -> None:
    owners = [owner_of_a_run(deployment) for _ in range(10)]
    with counting_commits(monkeypatch) as sizes:
        for owner in owners:
            committer.store(owner, owner.checkpoint("1"), 0)
        gevent.joinall([gevent.spawn(committer.finish, owner, owner.end()) for owner in owners])

    assert sum(sizes) == 20
    assert len(sizes) <= 2
    assert all(status(owner) == "success" for owner in owners)


@contextmanager
def counting_commits(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    sizes: list[int] = []
    commit = Committer._commit_together

    def counted(self: Committer, batch: Any) -> None:
        sizes.append(len(batch))
        commit(self, batch)

    monkeypatch.setattr(Committer, "_commit_together", counted)
    yield sizes


def test_a_zombie_among_others_is_fenced_alone(committer: Committer, deployment: DeploymentRef) -> None:
    zombie, other = owner_of_a_run(deployment), owner_of_a_run(deployment)
    take_away(zombie)
    committer.store(zombie, zombie.checkpoint("1"), 1)
    committer.store(other, other.checkpoint("1"), 2)

    until(lambda: zombie.is_fenced and other.answered == [2])
    assert stored(zombie) == []
    assert zombie.answered == []
    with pytest.raises(Fenced):
        committer.finish(zombie, zombie.end())
    committer.finish(other, other.end())


def test_data_the_database_refuses_ends_its_own_run_only(
    committer: Committer, deployment: DeploymentRef
) -> None:
    bad, good = owner_of_a_run(deployment), owner_of_a_run(deployment)
    committer.store(good, good.checkpoint("1"), 1)
    committer.store(bad, bad.checkpoint("1", text="\x00"), 2)
    committer.store(bad, bad.checkpoint("2"), 3)

    until(lambda: bad.refusals and good.answered == [1])
    assert stored(good) == ["1"]
    assert stored(bad) == []
    assert bad.answered == []

    alone = owner_of_a_run(deployment)
    committer.store(alone, alone.checkpoint("1", text="\x00"), 1)

    until(lambda: alone.refusals)
    assert not alone.is_fenced
    committer.finish(alone, alone.end())
    assert status(alone) == "success"


def test_runs_whose_checkpoints_a_defect_dropped_are_fenced(
    committer: Committer, deployment: DeploymentRef
) -> None:
    broken, other = owner_of_a_run(deployment), owner_of_a_run(deployment)

    committer.store(broken, cast("Write", object()), 0)
    until(lambda: broken.is_fenced)
    committer.store(other, other.checkpoint("1"), 1)
    until(lambda: other.answered)

    assert not other.is_fenced


def test_an_end_the_database_refuses_says_why(committer: Committer, deployment: DeploymentRef) -> None:
    owner = owner_of_a_run(deployment)
    with pytest.raises(RunyardError, match="json"):
        committer.finish(owner, owner.end(values="no JSON"))

    assert status(owner) == "running"
    committer.finish(owner, owner.end(values=None))


def test_who_settles_knows_that_all_is_stored(committer: Committer, deployment: DeploymentRef) -> None:
    owner = owner_of_a_run(deployment)
    committer.store(owner, owner.checkpoint("1"), 0)
    committer.settle(owner)

    assert stored(owner) == ["1"]


def test_commits_wait_for_a_database_that_is_away(
    committer: Committer, deployment: DeploymentRef, monkeypatch: pytest.MonkeyPatch
) -> None:
    owner = owner_of_a_run(deployment)
    tries: list[None] = []

    @contextmanager
    def away() -> Iterator[postgres.Driver]:
        tries.append(None)
        if len(tries) < 3:
            raise Unavailable
        with driver() as conn:
            yield conn

    monkeypatch.setattr(committing, "driver", away)
    committer.store(owner, owner.checkpoint("1"), 1)
    committer.finish(owner, owner.end())

    assert stored(owner) == ["1"]
    assert owner.answered == [1]
    assert len(tries) >= 3


def test_a_commit_whose_answer_was_lost_is_not_a_fence(
    committer: Committer, deployment: DeploymentRef, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept, gone = owner_of_a_run(deployment), owner_of_a_run(deployment, temporary=True)
    tries: list[None] = []

    @contextmanager
    def deaf() -> Iterator[postgres.Driver]:
        with driver() as conn:
            yield conn
        tries.append(None)
        if len(tries) == 1:
            raise Unavailable("the connection was lost during the commit")

    monkeypatch.setattr(committing, "driver", deaf)
    committer.store(kept, kept.checkpoint("1"), 0)
    ends = [gevent.spawn(committer.finish, owner, owner.end()) for owner in (kept, gone)]
    gevent.joinall(ends, raise_error=True)

    assert status(kept) == "success"
    assert status(gone) is None
    assert len(tries) >= 2


def test_a_deadlock_is_tried_again(
    committer: Committer, deployment: DeploymentRef, monkeypatch: pytest.MonkeyPatch
) -> None:
    owner = owner_of_a_run(deployment)
    commit = Committer._commit_together
    tries: list[None] = []

    def unlucky(self: Committer, batch: Any) -> None:
        tries.append(None)
        if len(tries) == 1:
            with translated():
                raise psycopg.errors.DeadlockDetected
        commit(self, batch)

    monkeypatch.setattr(Committer, "_commit_together", unlucky)
    committer.store(owner, owner.checkpoint("1"), 1)
    committer.finish(owner, owner.end())

    assert stored(owner) == ["1"]
    assert not owner.refusals


def test_a_run_whose_commit_is_too_slow_fails_alone(
    committer: Committer, deployment: DeploymentRef, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow, other = owner_of_a_run(deployment), owner_of_a_run(deployment)
    slow_commits = commits_time_out(monkeypatch, slow)

    slow_end, other_end = (gevent.spawn(committer.finish, owner, owner.end()) for owner in (slow, other))
    gevent.joinall([slow_end, other_end])

    assert other_end.successful()
    assert status(other) == "success"
    assert "statement_timeout" in str(slow_end.exception)
    assert slow_commits == [2, 1, 1, 1]  # runs in each commit
    committer.finish(slow, slow.end(values=None))
    assert status(slow) == "success"


def test_a_run_whose_commit_is_slow_for_a_while_succeeds(
    committer: Committer, deployment: DeploymentRef, monkeypatch: pytest.MonkeyPatch
) -> None:
    owner = owner_of_a_run(deployment)
    commits_time_out(monkeypatch, owner, times=2)

    committer.store(owner, owner.checkpoint("1"), 1)
    committer.finish(owner, owner.end())

    assert stored(owner) == ["1"]
    assert status(owner) == "success"
    assert not owner.refusals


def test_an_end_with_values_is_refused_after_a_refused_checkpoint(
    committer: Committer, deployment: DeploymentRef, monkeypatch: pytest.MonkeyPatch
) -> None:
    owner = owner_of_a_run(deployment)
    ends: list[gevent.Greenlet] = []
    commit = Committer._commit_together

    def committing_slowly(self: Committer, batch: Any) -> None:
        if not ends:
            ends.append(gevent.spawn(committer.finish, owner, owner.end()))
            gevent.sleep(0)
        commit(self, batch)

    monkeypatch.setattr(Committer, "_commit_together", committing_slowly)
    committer.store(owner, owner.checkpoint("1", text="\x00"), 1)
    until(lambda: owner.refusals)
    (end,) = ends
    end.join()

    assert isinstance(end.exception, RunyardError)
    assert status(owner) == "running"


def commits_time_out(monkeypatch: pytest.MonkeyPatch, slow: Owner, times: int = 100) -> list[int]:
    """Let commits of a run's values and checkpoints exceed the timeout. Returns the numbers of their runs."""
    commit = Committer._commit_together
    sizes: list[int] = []

    def timed(self: Committer, batch: Any) -> None:
        if any(entry.owner is slow and entry.has_state for entry in batch) and len(sizes) < times:
            sizes.append(len({id(entry.owner) for entry in batch}))
            with driver() as conn:
                conn.execute("SET statement_timeout = 20")
                try:
                    conn.execute("SELECT pg_sleep(30)")
                finally:
                    conn.execute("RESET statement_timeout")
        commit(self, batch)

    monkeypatch.setattr(Committer, "_commit_together", timed)
    return sizes


def test_runs_go_back_together_but_those_to_be_stopped(
    committer: Committer, deployment: DeploymentRef
) -> None:
    owners = [owner_of_a_run(deployment) for _ in range(4)]
    *free, stopped, zombie = owners
    with connection() as conn:
        cancel.cancel_run(conn, deployment.id, stopped.run.thread_id, stopped.run.run_id)
    take_away(zombie)

    def give_back(owner: Owner) -> tuple[object, bool]:
        return committer.settle(owner), committer.give_back(owner, Requeue(owner.run, refund=True))

    asked = [gevent.spawn(give_back, owner) for owner in owners]
    answers = [one.get(timeout=20) for one in asked]

    assert answers[:2] == [(None, True)] * len(free)
    assert answers[2] == (("interrupt", None), False)
    assert answers[3] == (None, False)
    assert [status(owner) for owner in owners] == ["pending", "pending", "running", "running"]
