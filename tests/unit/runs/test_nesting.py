"""Nested runs: the maximum depth, and separate capacity for each depth."""

from __future__ import annotations

from typing import Any
from uuid import UUID, uuid4

import pytest
from sqlalchemy import text

from shared.access import api_keys
from shared.deployments import limits
from shared.deployments.deployments import DeploymentRef
from shared.errors import Conflict
from shared.infra.postgres import connection, driver
from shared.models import RunStatus
from shared.runs import claims, nesting
from shared.runs import limits as run_limits
from shared.runs.claims import Terms
from tests.support import factories

# Insert `number` copies of a run, each on a new thread.
MORE = """
WITH added AS (
    INSERT INTO thread (deployment_id, thread_id)
    SELECT deployment_id, gen_random_uuid() FROM run, generate_series(1, :number) WHERE run_id = :id
    RETURNING deployment_id, thread_id)
INSERT INTO run (run_id, deployment_id, thread_id, assistant_id, revision_id, graph_id, status, kwargs, pool,
    created_seq, depth)
SELECT gen_random_uuid(), deployment_id, a.thread_id, assistant_id, revision_id, graph_id, status, kwargs, pool,
    created_seq, depth
FROM run JOIN added a USING (deployment_id) WHERE run_id = :id
"""
TERMS = Terms("w", 30, 3600, "default")


def depth_below(run_id: UUID) -> int:
    with driver() as conn:
        return nesting.depth_below(conn, run_id)


def waiting() -> list[nesting.WaitingDepth]:
    with driver() as conn:
        return nesting.waiting(conn, "default")


def limit(deployment: DeploymentRef, number: int) -> None:
    with connection() as conn:
        limits.change(conn, deployment.id, {"max_concurrent_runs": number})


def limited_key(number: int) -> str:
    with connection() as conn:
        api_keys.ensure_default_organization(conn)
        made = api_keys.create(conn, api_keys.DEFAULT_ORGANIZATION_ID, name="k", max_concurrent_runs=number)
    return made.split("_")[1]


def test_a_run_is_one_deeper_than_the_run_that_calls_up_to_the_greatest_depth(
    deployment: DeploymentRef,
) -> None:
    root = factories.run(deployment, status=RunStatus.RUNNING)
    nested = factories.run(deployment, status=RunStatus.RUNNING, depth=3)

    assert (depth_below(root), depth_below(nested)) == (1, 4)

    last = factories.run(deployment, status=RunStatus.RUNNING, depth=nesting.MAX_DEPTH - 1)
    beyond = factories.run(deployment, status=RunStatus.RUNNING, depth=nesting.MAX_DEPTH)

    assert depth_below(last) == nesting.MAX_DEPTH
    with pytest.raises(Conflict, match=rf"{beyond} is nested 10 deep"):
        depth_below(beyond)


@pytest.mark.parametrize("status", [RunStatus.PENDING, RunStatus.SUCCESS, RunStatus.INTERRUPTED])
def test_a_caller_that_does_not_run_nests_nothing(deployment: DeploymentRef, status: str) -> None:
    assert depth_below(factories.run(deployment, status=status, depth=nesting.MAX_DEPTH)) == 0
    assert depth_below(uuid4()) == 0


def test_what_waits_is_listed_by_depth_and_limit(deployment: DeploymentRef) -> None:
    bounded = factories.deployment("bounded")
    limit(bounded, 1)
    key = limited_key(1)
    factories.run(deployment)
    factories.run(deployment, depth=2)
    factories.run(bounded, depth=2)
    factories.run(bounded, depth=1, key_id=key)
    factories.run(deployment, depth=1, key_id=key)
    factories.run(deployment, depth=1, pool="other")
    behind = factories.run(deployment, depth=5)
    with connection() as conn:
        conn.execute(
            text("UPDATE run SET not_before = now() + interval '1 hour' WHERE run_id = :id"), {"id": behind}
        )

    assert waiting() == [
        nesting.WaitingDepth(2, has_unlimited=True, deployments=[bounded.id], keys=[]),
        nesting.WaitingDepth(1, has_unlimited=False, deployments=[bounded.id], keys=[key]),
    ]


def claimed(found: list[tuple[claims.Claimed, Any]]) -> list[UUID]:
    return [run.run_id for run, _ in found]


def test_a_claim_says_how_deep_a_run_is_and_takes_a_backlog_a_depth_at_a_time(
    deployment: DeploymentRef,
) -> None:
    root, nested = factories.run(deployment), factories.run(deployment, depth=2)

    with driver() as conn:
        at_two = claims.claim_round_robin(conn, "default", TERMS, limit=9, served=[], depth=2)
        at_zero = claims.claim_round_robin(conn, "default", TERMS, limit=9, served=[])
    assert (claimed(at_two), claimed(at_zero)) == ([nested], [root])
    assert [run.depth for run, _ in at_two] == [2]

    nested = factories.run(deployment, depth=4)

    with driver() as conn:
        assert [run.depth for run, _ in claims.claim(conn, [nested], TERMS)] == [4]


def test_the_limit_of_a_deployment_counts_runs_of_the_same_depth(deployment: DeploymentRef) -> None:
    limit(deployment, 1)
    factories.run(deployment, status=RunStatus.RUNNING)
    root = factories.run(deployment)
    nested, later = factories.run(deployment, depth=1), factories.run(deployment, depth=1)

    with driver() as conn:
        assert run_limits.with_capacity(conn, [root]) == []
        assert claimed(run_limits.claim_of_deployment(conn, deployment.id, "default", TERMS, most=9)) == []
        for expected in ([nested], []):
            found = run_limits.claim_of_deployment(conn, deployment.id, "default", TERMS, most=9, depth=1)
            assert claimed(found) == expected
        conn.execute("UPDATE run SET status = 'success' WHERE run_id = %s", [nested])
        found = run_limits.claim_of_deployment(conn, deployment.id, "default", TERMS, most=9, depth=1)
        assert claimed(found) == [later]


def test_nested_runs_leave_the_limit_to_runs_that_no_run_called(deployment: DeploymentRef) -> None:
    limit(deployment, 1)
    factories.run(deployment, status=RunStatus.RUNNING, depth=1)
    root = factories.run(deployment)

    with driver() as conn:
        assert run_limits.with_capacity(conn, [root]) == [deployment.id]
        assert claimed(run_limits.claim_of_deployment(conn, deployment.id, "default", TERMS, most=9)) == [
            root
        ]


def test_the_limit_of_a_key_counts_runs_of_the_same_depth(deployment: DeploymentRef) -> None:
    key = limited_key(1)
    factories.run(deployment, status=RunStatus.RUNNING, key_id=key)
    root, nested = factories.run(deployment, key_id=key), factories.run(deployment, depth=1, key_id=key)

    with driver() as conn:
        assert run_limits.with_capacity(conn, [root, nested]) == []
        assert claimed(run_limits.claim_of_key(conn, key, "default", TERMS, most=9)) == []
        for expected in ([nested], []):
            assert claimed(run_limits.claim_of_key(conn, key, "default", TERMS, most=9, depth=1)) == expected

    limit(deployment, 5)
    key = limited_key(1)
    factories.run(deployment, status=RunStatus.RUNNING, key_id=key)
    nested = [factories.run(deployment, depth=1, key_id=key) for _ in range(2)]

    with driver() as conn:
        found = run_limits.claim_of_deployment(conn, deployment.id, "default", TERMS, most=9, depth=1)
    assert claimed(found) == nested[:1]


def test_runs_that_wait_for_a_limit_hide_none_of_another_deployment(deployment: DeploymentRef) -> None:
    bounded = factories.deployment("bounded")
    limit(bounded, 1)
    first = factories.run(bounded, depth=2)
    with connection() as conn:
        conn.execute(text(MORE), {"id": first, "number": 1_000})
    factories.run(deployment, depth=1)

    assert waiting() == [
        nesting.WaitingDepth(2, has_unlimited=False, deployments=[bounded.id], keys=[]),
        nesting.WaitingDepth(1, has_unlimited=True, deployments=[], keys=[]),
    ]
