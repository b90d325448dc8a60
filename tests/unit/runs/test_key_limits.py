"""Round robin between API keys, and the limit of concurrent runs per key."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from uuid import UUID, uuid4

import pytest
from sqlalchemy import Engine, text

from shared.access import api_keys
from shared.access.api_keys import DEFAULT_ORGANIZATION_ID
from shared.deployments.deployments import DeploymentRef
from shared.infra.postgres import connection, driver
from shared.runs import backlog, claims, limits
from shared.runs.claims import Claimed, Terms
from shared.runs.drafts import RunRequest
from tests.support import factories
from tests.support.creating import insert_run

TERMS = Terms("w", 30, 3600, "default")


@pytest.fixture(autouse=True)
def _database(db: Engine) -> None:
    """Run every test on empty tables."""
    with connection() as conn:
        api_keys.ensure_default_organization(conn)


@pytest.fixture
def app() -> DeploymentRef:
    return factories.deployment()


def key(most: int | None = None) -> str:
    """Create an API key that may have `most` concurrent runs. Returns its id."""
    with connection() as conn:
        made = api_keys.create(conn, DEFAULT_ORGANIZATION_ID, name="k", max_concurrent_runs=most)
    return made.split("_")[1]


def waiting(ref: DeploymentRef, key_id: str, count: int = 1, *, thread: UUID | None = None) -> list[UUID]:
    """Create pending runs of a key, each on a new thread unless one is named."""
    request = RunRequest(assistant_id="agent", if_not_exists="create")
    with connection() as conn:
        return [
            insert_run(conn, ref, request, thread_id=thread or uuid4(), key_id=key_id).run_id
            for _ in range(count)
        ]


def limit(ref: DeploymentRef, most: int | None) -> None:
    with connection() as conn:
        conn.execute(
            text("UPDATE deployment SET max_concurrent_runs = :most WHERE id = :id"),
            {"most": most, "id": ref.id},
        )


def finish(*ended: Claimed | UUID) -> None:
    ids = [run.run_id if isinstance(run, Claimed) else run for run in ended]
    with connection() as conn:
        conn.execute(text("UPDATE run SET status = 'success' WHERE run_id = ANY(:ids)"), {"ids": ids})


def round_robin(count: int, served: list[str] | None = None) -> list[UUID]:
    with driver() as conn:
        taken = claims.claim_round_robin(conn, "default", TERMS, limit=count, served=served or [])
    return [run.run_id for run, _ in taken]


def of_key(key_id: str, *, most: int = 100) -> list[Claimed]:
    with driver() as conn:
        return [run for run, _ in limits.claim_of_key(conn, key_id, "default", TERMS, most=most)]


def of_deployment(ref: DeploymentRef, *, most: int = 100, served: list[str] | None = None) -> list[Claimed]:
    with driver() as conn:
        taken = limits.claim_of_deployment(conn, ref.id, "default", TERMS, most=most, served=served or [])
    return [run for run, _ in taken]


def test_keys_are_served_round_robin_whatever_they_have_waiting(app: DeploymentRef) -> None:
    other = factories.deployment("other")
    many, few, one = key(), key(), key()
    a = waiting(app, many, 30) + waiting(other, many, 30)
    b = waiting(other, few, 2)
    c = waiting(app, one)
    nobody = waiting(app, "")

    first = round_robin(4)
    assert set(first) == {a[0], b[0], c[0], nobody[0]}, "everybody's oldest"
    assert round_robin(1, [many, few]) == [a[1]]
    assert round_robin(1, [few, many]) == [b[1]]


def test_of_equals_goes_first_who_was_served_longest_ago(app: DeploymentRef) -> None:
    keys = [key() for _ in range(3)]
    runs_of = {id: waiting(app, id, 3) for id in keys}
    x, y, z = keys
    assert round_robin(1, [z, x, y]) == [runs_of[z][0]]
    assert round_robin(1, [y, z]) == [runs_of[x][0]], "who was never served goes before"
    assert set(round_robin(3, [x, z, y])) == {runs_of[x][1], runs_of[y][0], runs_of[z][1]}
    assert set(round_robin(9)) == {runs_of[x][2], *runs_of[y][1:], runs_of[z][2]}


def test_only_eligible_runs_are_claimed(app: DeploymentRef) -> None:
    mine, theirs = key(), key()
    thread = uuid4()
    first, _ = waiting(app, mine, 2, thread=thread)
    due = waiting(app, theirs, 3)
    with connection() as conn:
        conn.execute(
            text("UPDATE run SET not_before = now() + interval '1 hour' WHERE run_id = :id"), {"id": due[0]}
        )
        conn.execute(text("UPDATE run SET cancel_requested = 'interrupt' WHERE run_id = :id"), {"id": due[1]})
    assert set(round_robin(10)) == {first, due[2]}


def test_many_runners_share_the_round_robin(app: DeploymentRef) -> None:
    keys = [key() for _ in range(4)]
    made = {run for id in keys for run in waiting(app, id, 10)}
    with ThreadPoolExecutor(8) as pool:
        taken = [run for found in pool.map(lambda _: round_robin(2), range(20)) for run in found]
    assert len(taken) == len(set(taken))
    assert set(taken) <= made
    while found := round_robin(5):
        taken += found
    assert set(taken) == made


def test_a_keys_limit_is_exact_under_many_claimers_over_all_deployments(app: DeploymentRef) -> None:
    other = factories.deployment("other")
    limited = key(3)
    made = waiting(app, limited, 6) + waiting(other, limited, 6)
    free = waiting(app, key())
    with driver() as conn:
        assert claims.claim(conn, made[:2], TERMS) == [], "an ordinary claim leaves them alone"
        assert limits.with_capacity(conn, [*made, *free]) == [limited]
    assert round_robin(5) == free
    with ThreadPoolExecutor(8) as pool:
        claimed = [run for found in pool.map(lambda _: of_key(limited), range(16)) for run in found]

    assert sorted(run.run_id for run in claimed) == made[:3]
    assert all(run.key_limited and run.key_id == limited for run in claimed)
    with driver() as conn:
        assert limits.with_capacity(conn, made[3:]) == []
        assert limits.overlooked(conn, "default", waited_seconds=0) == []
    finish(claimed[0])
    assert [run.run_id for run in of_key(limited)] == [made[3]]


def test_deployments_and_their_keys_both_hold(app: DeploymentRef) -> None:
    limit(app, 4)
    narrow, wide = key(1), key()
    a, b = waiting(app, narrow, 5), waiting(app, wide, 5)
    assert of_key(narrow) == [], "a limited deployment's runs are claimed there"
    with driver() as conn:
        assert limits.with_capacity(conn, a) == [app.id]

    taken = of_deployment(app)
    assert {run.run_id for run in taken} == {a[0], *b[:3]}
    assert {run.run_id for run in taken if run.key_limited} == {a[0]}
    finish(b[0])
    assert [run.run_id for run in of_deployment(app)] == [b[3]]
    finish(a[0], b[1], b[2])
    assert [run.run_id for run in of_deployment(app, most=1, served=[narrow, wide])] == [a[1]]
    assert [run.run_id for run in of_deployment(app, most=1, served=[narrow, wide])] == [b[4]]


def test_as_many_are_notified_of_as_have_capacity(app: DeploymentRef) -> None:
    limited = key(2)
    made = waiting(app, limited, 6)
    with connection() as conn:
        conn.execute(text("UPDATE run SET notified_at = NULL"))
    with connection() as conn:
        assert backlog.mark_notified(conn) == []
        assert {run.run_id for run in limits.mark_notified(conn)} == set(made[:2])
        assert limits.mark_notified(conn) == [], "they were just notified of"
        assert {run.run_id for run in limits.mark_notified(conn, limited)} == set(made[:2])
    of_key(limited, most=1)
    with connection() as conn:
        assert [run.run_id for run in limits.mark_notified(conn, limited)] == [made[1]]


def test_where_no_key_is_limited_nobody_looks_at_keys(app: DeploymentRef) -> None:
    blind = Terms("w", 30, 3600, "default", some_key_is_limited=False)
    limited = key(1)
    made = waiting(app, limited, 2)
    with connection() as conn:
        assert limits.any_key_is_limited(conn)
    with driver() as conn:
        assert {run.run_id for run, _ in claims.claim(conn, made, blind)} == set(made), "it was told so"
    with connection() as conn:
        caller = api_keys.Caller(DEFAULT_ORGANIZATION_ID, "default", "other", "admin")
        api_keys.change(conn, caller, limited, {"max_concurrent_runs": 0})
        assert not limits.any_key_is_limited(conn)
