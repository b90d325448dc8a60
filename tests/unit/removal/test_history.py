"""Removal of old revisions, runs and deployment log lines, on a real database."""

from __future__ import annotations

import dataclasses
import json
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest
from sqlalchemy import text

from shared.deployments import logs
from shared.deployments.deployments import DeploymentRef
from shared.deployments.logs import BUILD, DEPLOY, Line
from shared.infra.postgres import connection
from shared.models import RevisionStatus, RunStatus
from shared.removal import history
from shared.runs.read import least_id
from shared.settings import Settings
from tests.support import factories
from workers.upkeep import removals
from workers.upkeep.removals import Removals

pytestmark = pytest.mark.usefixtures("db")

NOW = datetime.now(UTC)


@pytest.fixture
def deployment() -> DeploymentRef:
    """A deployment that has served its first revision for an hour."""
    found = factories.deployment()
    settle()
    return found


def settle() -> None:
    """Date all revisions back by an hour, so that none counts as serving only since a moment ago."""
    with connection() as conn:
        conn.execute(text("UPDATE revision SET updated_at = now() - interval '1 hour'"))


def revisions(deployment: DeploymentRef, count: int, status: Any = RevisionStatus.DEPLOYED) -> list[UUID]:
    """Insert further revisions of a deployment. Returns their ids, oldest first."""
    with connection() as conn:
        last = conn.execute(text("SELECT max(number) FROM revision")).scalar_one()
    return [
        factories.revision(deployment.id, number=last + n, status=status, archive_digest="0" * 64)
        for n in range(1, count + 1)
    ]


def serve(deployment: DeploymentRef, revision_id: UUID) -> None:
    with connection() as conn:
        conn.execute(
            text("UPDATE deployment SET active_revision_id = :rid, latest_revision_id = :rid WHERE id = :id"),
            {"rid": revision_id, "id": deployment.id},
        )


def remove_old(kept: int) -> None:
    while True:
        with connection() as conn:
            if not history.remove_old_revisions(conn, kept=kept):
                return


def left(deployment: DeploymentRef) -> set[UUID]:
    with connection() as conn:
        query = text("SELECT id FROM revision WHERE deployment_id = :id")
        return set(conn.execute(query, {"id": deployment.id}).scalars())


def log(deployment: DeploymentRef, *ages: timedelta, kind: str = DEPLOY, of: UUID | None = None) -> None:
    """Append a log line of each age."""
    lines = [Line(deployment.id, of, kind, NOW - age, "INFO", str(age)) for age in ages]
    with connection() as conn:
        logs.append(conn, lines)


def said(deployment: DeploymentRef, kind: str = DEPLOY) -> list[str]:
    with connection() as conn:
        rows, _ = logs.lines(conn, deployment.id, kind, order="asc")
    return [row["message"] for row in rows]


def test_the_newest_stay_and_what_serves(deployment: DeploymentRef) -> None:
    neighbour = factories.deployment("neighbour")
    serving = deployment.active_revision_id
    _, *newest = revisions(deployment, 4)

    remove_old(kept=3)

    assert left(deployment) == {serving, *newest}
    assert len(left(neighbour)) == 1


def test_what_has_traffic_or_is_previewed_stays_and_previews_are_counted_by_themselves(
    deployment: DeploymentRef,
) -> None:
    sharing, *later = revisions(deployment, 4)
    previews = revisions(deployment, 6)
    with connection() as conn:
        conn.execute(text("UPDATE revision SET preview = 'pr-1' WHERE id = ANY(:ids)"), {"ids": previews})
        shown = [{"revision_id": str(sharing), "percent": 100}]
        query = text("UPDATE deployment SET traffic = CAST(:traffic AS jsonb)")
        conn.execute(query, {"traffic": json.dumps(shown)})
    factories.preview(deployment.id, previews[0])
    serving = deployment.active_revision_id

    remove_old(kept=3)
    assert left(deployment) == {serving, sharing, *later, previews[0], *previews[-3:]}

    with connection() as conn:
        conn.execute(text("UPDATE deployment SET traffic = NULL, traffic_at = now()"))
        conn.execute(text("DELETE FROM preview"))
    remove_old(kept=3)
    assert sharing in left(deployment), "a run may just be made for it"
    with connection() as conn:
        conn.execute(text("UPDATE deployment SET traffic_at = now() - interval '1 hour'"))
    remove_old(kept=3)
    assert left(deployment) == {serving, *later, *previews[-3:]}


def test_what_belongs_to_a_revision_goes_with_it(deployment: DeploymentRef) -> None:
    (old, new) = revisions(deployment, 2)
    serve(deployment, new)
    settle()
    with connection() as conn:
        conn.execute(text("INSERT INTO secret VALUES (:id, 'A', '')"), {"id": old})
    for revision_id in (old, new):
        log(deployment, timedelta(0), timedelta(1), kind=BUILD, of=revision_id)
        log(deployment, timedelta(0), kind=DEPLOY, of=revision_id)

    remove_old(kept=1)

    assert left(deployment) == {new}
    with connection() as conn:
        assert conn.execute(text("SELECT count(*) FROM secret")).scalar_one() == 0
        assert conn.execute(text("SELECT count(*) FROM graph")).scalar_one() == 1
        kinds = conn.execute(text("SELECT kind, revision_id FROM log_line")).all()
    assert sorted((kind, id == new) for kind, id in kinds) == [
        ("build", True),
        ("build", True),
        ("deploy", False),
        ("deploy", True),
    ]


def test_a_long_build_log_goes_in_chunks(deployment: DeploymentRef, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history, "LINES_AT_ONCE", 2)
    (old, new) = revisions(deployment, 2)
    serve(deployment, new)
    settle()
    log(deployment, *[timedelta(n) for n in range(5)], kind=BUILD, of=old)

    with connection() as conn:
        history.remove_old_revisions(conn, kept=1)
    assert old in left(deployment)
    assert len(said(deployment, BUILD)) == 3

    remove_old(kept=1)
    assert old not in left(deployment)
    assert said(deployment, BUILD) == []


@pytest.mark.parametrize("status", [RunStatus.PENDING, RunStatus.RUNNING])
def test_one_that_runs_were_created_for_stays_until_they_end(
    deployment: DeploymentRef, status: RunStatus
) -> None:
    run_id = factories.run(deployment, status=status)
    old = deployment.active_revision_id
    (new,) = revisions(deployment, 1)
    serve(deployment, new)
    settle()

    remove_old(kept=1)
    assert left(deployment) == {old, new}

    with connection() as conn:
        conn.execute(text("UPDATE run SET status = 'success' WHERE run_id = :id"), {"id": run_id})
    remove_old(kept=1)
    assert left(deployment) == {new}


def test_what_served_a_moment_ago_stays(deployment: DeploymentRef) -> None:
    """A run that is being created may already refer to the previous revision."""
    (new,) = revisions(deployment, 1)
    serve(deployment, new)

    remove_old(kept=1)
    assert len(left(deployment)) == 2

    settle()
    remove_old(kept=1)
    assert left(deployment) == {new}


def test_a_deployment_that_is_being_changed_is_left_for_later(deployment: DeploymentRef) -> None:
    revisions(deployment, 2)
    with connection() as conn:
        conn.execute(text("SELECT 1 FROM deployment FOR UPDATE"))
        remove_old(kept=1)
        assert len(left(deployment)) == 3

    remove_old(kept=1)
    assert len(left(deployment)) == 2


def test_old_lines_go_and_build_logs_stay(deployment: DeploymentRef) -> None:
    log(deployment, timedelta(days=15), timedelta(days=13), timedelta(0))
    log(deployment, timedelta(days=15), kind=BUILD, of=deployment.active_revision_id)

    with connection() as conn:
        removed = history.remove_old_lines(conn, deployment.id, days=14, most=100)

    assert removed == 1
    assert said(deployment) == [str(timedelta(days=13)), str(timedelta(0))]
    assert len(said(deployment, BUILD)) == 1


def test_of_too_many_lines_the_oldest_go(deployment: DeploymentRef) -> None:
    log(deployment, *[timedelta(seconds=n) for n in range(7)])

    with connection() as conn:
        removed = history.remove_old_lines(conn, deployment.id, days=14, most=3)

    assert removed == 4
    assert said(deployment) == [str(timedelta(seconds=n)) for n in (2, 1, 0)]


def test_one_round_after_another_nothing_too_old_is_left(
    deployment: DeploymentRef, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(history, "LINES_AT_ONCE", 2)
    monkeypatch.setattr(history, "DEPLOYMENTS_AT_ONCE", 1)
    crowd = [deployment, *(factories.deployment(f"app-{n}") for n in range(3))]
    for each in crowd:
        log(each, *[timedelta(seconds=n) for n in range(5)])
    round = Removals(dataclasses.replace(settings, max_log_lines=1))

    for step in round.steps():
        step()

    assert round.is_done
    assert [said(each) for each in crowd] == [[str(timedelta(0))]] * 4


def test_a_round_without_time_goes_on_later_where_it_was(
    deployment: DeploymentRef, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    log(deployment, timedelta(days=15), timedelta(0))
    round = Removals(settings)
    monkeypatch.setattr(removals, "STEP_SECONDS", 0)
    for step in round.steps():
        step()
    assert not round.is_done
    assert len(said(deployment)) == 2

    monkeypatch.undo()
    for step in round.steps():
        step()

    assert round.is_done
    assert len(said(deployment)) == 1


def ended(
    deployment: DeploymentRef, thread_id: UUID, *, days_ago: float, status: RunStatus = RunStatus.SUCCESS
) -> UUID:
    """Insert a run that was created and ended this many days ago."""
    at = NOW - timedelta(days=days_ago)
    columns = {"run_id": least_id(at), "created_at": at, "ended_at": at, "attempt": 1}
    return factories.run(deployment, thread_id, status=status, **columns)


def remove_runs(deployment: DeploymentRef) -> int:
    with connection() as conn:
        return history.remove_old_runs(conn, deployment.id, days=30)


def runs_left() -> set[UUID]:
    with connection() as conn:
        return set(conn.execute(text("SELECT run_id FROM run")).scalars())


def test_runs_that_ended_long_ago_go_and_their_threads_stay(deployment: DeploymentRef) -> None:
    thread_id = factories.thread(deployment.id, values={"text": "x"})
    old = [ended(deployment, thread_id, days_ago=31), ended(deployment, thread_id, days_ago=40)]
    young = ended(deployment, thread_id, days_ago=29)
    at = NOW - timedelta(days=50)
    waits = factories.run(deployment, run_id=least_id(at), created_at=at)
    other = factories.deployment("other")
    elsewhere = ended(other, factories.thread(other.id), days_ago=60)

    assert remove_runs(deployment) == len(old)

    assert runs_left() == {young, waits, elsewhere}
    with connection() as conn:
        kept = conn.execute(text("SELECT values FROM thread WHERE thread_id = :id"), {"id": thread_id})
        assert kept.scalar_one() == {"text": "x"}


def test_a_run_that_was_created_long_ago_and_has_just_ended_stays(deployment: DeploymentRef) -> None:
    at = NOW - timedelta(days=50)
    late = factories.run(deployment, run_id=least_id(at), status=RunStatus.SUCCESS, ended_at=NOW)

    assert remove_runs(deployment) == 0
    assert runs_left() == {late}


def test_the_run_that_asked_what_its_thread_waits_for_stays(deployment: DeploymentRef) -> None:
    thread_id = factories.thread(deployment.id, status="interrupted", rest_status="interrupted")
    ended(deployment, thread_id, days_ago=50)
    asked = ended(deployment, thread_id, days_ago=40, status=RunStatus.INTERRUPTED)
    with connection() as conn:
        never_began = ended(deployment, thread_id, days_ago=35, status=RunStatus.INTERRUPTED)
        conn.execute(text("UPDATE run SET attempt = 0 WHERE run_id = :id"), {"id": never_began})

    assert remove_runs(deployment) == 2
    assert runs_left() == {asked}

    with connection() as conn:
        conn.execute(text("UPDATE thread SET rest_status = 'idle'"))
    assert remove_runs(deployment) == 1


def test_a_run_that_somebody_holds_is_left_for_the_next_time(deployment: DeploymentRef) -> None:
    held, free = (ended(deployment, factories.thread(deployment.id), days_ago=days) for days in (50, 40))
    with connection() as conn:
        conn.execute(text("SELECT FROM run WHERE run_id = :id FOR UPDATE"), {"id": held})
        assert remove_runs(deployment) == 1
    assert runs_left() == {held}
    assert free not in runs_left()


@pytest.mark.parametrize(("days", "left"), [(30.0, 0), (0.0, 5)])
def test_a_round_removes_old_runs_in_small_transactions_unless_they_are_kept(
    deployment: DeploymentRef, settings: Settings, monkeypatch: pytest.MonkeyPatch, days: float, left: int
) -> None:
    monkeypatch.setattr(history, "RUNS_AT_ONCE", 2)
    thread_id = factories.thread(deployment.id)
    for n in range(5):
        ended(deployment, thread_id, days_ago=40 + n)

    Removals(dataclasses.replace(settings, run_retention_days=days)).old_runs()

    assert len(runs_left()) == left
