"""Daily budgets: exact counts under concurrency, and refusal of requests once a budget is used up."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from sqlalchemy import text

from shared.deployments import limits
from shared.deployments.deployments import DeploymentRef
from shared.errors import TooMany
from shared.figures import budgets, folding
from shared.figures.budgets import Account
from shared.infra.postgres import connection, driver
from shared.runs.drafts import RunRequest
from tests.support import factories
from tests.support.creating import insert_run

pytestmark = pytest.mark.usefixtures("db")


@pytest.fixture
def deployment() -> DeploymentRef:
    budgets.forget()
    return factories.deployment()


def account(deployment: DeploymentRef) -> Account:
    return budgets.DEPLOYMENT, str(deployment.id)


def allow(deployment: DeploymentRef, **budget: int) -> None:
    with connection() as conn:
        limits.change(conn, deployment.id, budget)


def spend(deployment: DeploymentRef, tokens: int) -> int:
    with driver() as conn:
        return budgets.spend(conn, account(deployment), tokens)


def used_before(deployment: DeploymentRef, tokens: int) -> None:
    with connection() as conn:
        conn.execute(
            text(
                "INSERT INTO ended_run (deployment_id, key_id, status, created_at, attempts, usage) VALUES"
                " (:id, '', 'success', now(), 1, jsonb_build_object('m', jsonb_build_object('input_tokens', :n)))"
            ),
            {"id": deployment.id, "n": tokens},
        )


def listed(deployment: DeploymentRef) -> Any:
    with connection() as conn:
        return budgets.listed(conn).get(account(deployment))


def started(deployment: DeploymentRef, key_id: str = "") -> None:
    with connection() as conn:
        insert_run(conn, deployment, RunRequest(assistant_id="agent"), thread_id=None, key_id=key_id)


def test_many_who_count_at_once_lose_nothing_and_days_that_are_over_are_removed(
    deployment: DeploymentRef,
) -> None:
    with ThreadPoolExecutor(4) as pool:
        totals = list(pool.map(lambda _: spend(deployment, 5), range(40)))

    assert sorted(totals) == list(range(5, 205, 5))

    spend(deployment, 1)
    with connection() as conn:
        conn.execute(text("UPDATE spent_tokens SET day = day - 1"))
        assert budgets.remove_old(conn) == 0
        conn.execute(text("UPDATE spent_tokens SET day = day - 2"))
        assert budgets.remove_old(conn) == 1


def test_a_budget_that_is_set_counts_what_was_used_today_before(deployment: DeploymentRef) -> None:
    used_before(deployment, 100)
    with connection() as conn:
        folding.fold(conn)
    used_before(deployment, 11)

    allow(deployment, max_tokens_per_day=200)

    assert listed(deployment).spent == 111
    assert not listed(deployment).is_used_up
    assert spend(deployment, 89) == 200
    assert listed(deployment).is_used_up


def test_what_was_counted_is_not_forgotten_when_the_budget_is_set_again(deployment: DeploymentRef) -> None:
    allow(deployment, max_tokens_per_day=200)
    spend(deployment, 50)
    allow(deployment, max_tokens_per_day=300)

    assert listed(deployment).spent == 50

    allow(deployment, max_tokens_per_day=200, max_run_tokens=5)
    allow(deployment, max_tokens_per_day=0, max_run_tokens=0)

    assert listed(deployment) is None


def test_a_run_is_refused_until_the_day_is_over(deployment: DeploymentRef) -> None:
    other = factories.deployment()
    allow(deployment, max_tokens_per_day=10)
    started(deployment)
    spend(deployment, 10)
    budgets.forget()

    with pytest.raises(TooMany, match="has used its budget of 10 tokens a day") as refused:
        started(deployment)

    assert 0 < refused.value.retry_after_seconds <= 86_401
    started(other)
    allow(deployment, max_tokens_per_day=11)
    started(deployment)
