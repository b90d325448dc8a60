"""Daily budgets in tokens and dollars: exact counts under concurrency, refusals, and alerts."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal
from typing import Any
from uuid import UUID, uuid4

import pytest
from sqlalchemy import text

from shared.deployments import limits
from shared.deployments.deployments import DeploymentRef
from shared.errors import TooMany
from shared.figures import budgets, folding, usage
from shared.figures.budgets import Account, Budgets, Spent, Subject
from shared.infra import postgres
from shared.infra.postgres import connection, driver
from shared.runs import webhooks
from shared.runs.drafts import RunRequest
from tests.support import factories
from tests.support.creating import insert_run
from workers.upkeep import webhook_deliveries

pytestmark = pytest.mark.usefixtures("db")

THREAD = uuid4()
URL = "https://hooks.example/budget"


@pytest.fixture
def deployment() -> Iterator[DeploymentRef]:
    budgets.forget()
    usage.configure_prices((("large", 0.1, 0.2),))
    yield factories.deployment()
    usage.configure_prices(())


def subject(deployment: DeploymentRef, user: str | None = None, thread: UUID = THREAD) -> Subject:
    return Subject(deployment.id, "", thread, user)


def account(deployment: DeploymentRef) -> Account:
    return budgets.DEPLOYMENT, str(deployment.id)


def allow(deployment: DeploymentRef, **budget: Any) -> None:
    with connection() as conn:
        limits.change(conn, deployment.id, budget)


def spend(
    deployment: DeploymentRef,
    tokens: int,
    cost: str = "0",
    user: str | None = None,
    unpriced: tuple[str, ...] = (),
) -> dict[Account, Spent]:
    with driver() as conn:
        found = Budgets.read(conn).daily(subject(deployment, user))
        return budgets.spend(
            conn, found, tokens, Decimal(cost), deployment_id=deployment.id, unpriced=unpriced
        )


def used_before(deployment: DeploymentRef, tokens: int, model: str = "large") -> None:
    with connection() as conn:
        conn.execute(
            text(
                "INSERT INTO ended_run (deployment_id, key_id, status, created_at, attempts, usage) VALUES"
                " (:id, '', 'success', now(), 1, jsonb_build_object(CAST(:model AS text),"
                " jsonb_build_object('input_tokens', :n)))"
            ),
            {"id": deployment.id, "n": tokens, "model": model},
        )


def spent(deployment: DeploymentRef) -> tuple[int, Decimal]:
    with connection() as conn:
        own = Budgets.read(conn).own(account(deployment))
        found = budgets.spent_today(conn, own)[account(deployment)]
    return found.tokens, found.cost


def started(deployment: DeploymentRef, key_id: str = "", thread: UUID | None = None) -> None:
    with connection() as conn:
        insert_run(conn, deployment, RunRequest(assistant_id="agent"), thread_id=thread, key_id=key_id)


def rows(query: str) -> list[Any]:
    with connection() as conn:
        return [row[0] if len(row) == 1 else tuple(row) for row in conn.execute(text(query))]


def test_many_who_count_at_once_lose_nothing_and_days_that_are_over_are_removed(
    deployment: DeploymentRef,
) -> None:
    allow(deployment, max_tokens_per_day=1_000, max_user_cost_per_day=Decimal(1), budget_webhook=URL)
    with ThreadPoolExecutor(4) as pool:
        counts = list(pool.map(lambda _: spend(deployment, 20, "0.1", "ann"), range(40)))

    of_user = (budgets.USER, f"{deployment.id}:ann")
    assert sorted(one[account(deployment)].tokens for one in counts) == list(range(20, 801, 20))
    assert sorted(one[of_user].cost for one in counts) == [Decimal(n) / 10 for n in range(1, 41)]
    reached = (
        "SELECT values ->> 'name', CAST(values ->> 'percent' AS int) FROM webhook_delivery ORDER BY 1, 2"
    )
    assert rows(reached) == [
        ("max_tokens_per_day", 50),
        ("max_tokens_per_day", 80),
        *[("max_user_cost_per_day", percent) for percent in (50, 80, 100)],
    ]

    with connection() as conn:
        for table, table_rows in (("spent_tokens", 2), ("budget_alert", 5)):
            conn.execute(text(f"UPDATE {table} SET day = day - 1"))
            assert budgets.remove_old(conn) == 0
            conn.execute(text(f"UPDATE {table} SET day = day - 2"))
            assert budgets.remove_old(conn) == table_rows


def test_a_budget_that_is_set_counts_what_was_used_today_before(deployment: DeploymentRef) -> None:
    used_before(deployment, 100)
    with connection() as conn:
        folding.fold(conn)
    used_before(deployment, 11)
    used_before(deployment, 9, model="unknown")

    allow(deployment, max_tokens_per_day=200, max_cost_per_day=Decimal("0.00001"), budget_webhook=URL)

    assert spent(deployment) == (120, Decimal("0.0000111"))
    assert spend(deployment, 80)[account(deployment)].tokens == 200
    assert rows("SELECT DISTINCT status, values ->> 'name' FROM webhook_delivery ORDER BY 1, 2") == [
        ("budget.reached", "max_cost_per_day"),
        ("budget.reached", "max_tokens_per_day"),
        ("budget.unpriced", "unknown"),
    ]


def test_what_was_counted_is_not_forgotten_when_the_budget_is_set_again(deployment: DeploymentRef) -> None:
    allow(deployment, max_tokens_per_day=200)
    spend(deployment, 50, "0.5")
    allow(deployment, max_tokens_per_day=300)

    assert spent(deployment) == (50, Decimal("0.5"))

    allow(deployment, max_tokens_per_day=200, max_run_tokens=5)
    allow(deployment, max_tokens_per_day=0, max_run_tokens=0)

    with connection() as conn:
        assert Budgets.read(conn).daily(subject(deployment)) == []


def test_a_run_is_refused_until_the_day_is_over(deployment: DeploymentRef) -> None:
    other = factories.deployment()
    allow(deployment, max_tokens_per_day=10)
    started(deployment)
    spend(deployment, 12)

    with pytest.raises(TooMany, match=r"its budget of 10 tokens a day .* Used: 12 tokens\.") as refused:
        started(deployment)

    assert 0 < refused.value.retry_after_seconds <= 86_401
    started(other)
    allow(deployment, max_tokens_per_day=13)
    started(deployment)
    allow(deployment, max_tokens_per_day=0, max_cost_per_day=Decimal("0.3"))
    spend(deployment, 1, "0.1")
    started(deployment)
    spend(deployment, 1, "0.2")
    with pytest.raises(TooMany, match=r"its budget of \$0\.3 a day \(max_cost_per_day\).* Used: \$0\.3\."):
        started(deployment)
    with connection() as conn:
        conn.execute(text("UPDATE spent_tokens SET day = day - 1"))
    started(deployment)


def test_a_run_without_a_limit_costs_no_query(
    deployment: DeploymentRef, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(budgets, "KNOWN_SECONDS", 600)
    allow(factories.deployment(), max_tokens_per_day=1)
    with driver() as conn:
        budgets.require(conn, subject(deployment))
    no_connection: Any = None

    budgets.require(no_connection, subject(deployment, "ann"))


def test_a_refusal_needs_no_second_connection(
    deployment: DeploymentRef, monkeypatch: pytest.MonkeyPatch
) -> None:
    allow(deployment, max_tokens_per_day=1)
    spend(deployment, 1)
    with connection() as conn:
        monkeypatch.setattr(postgres, "_clock", None)
        monkeypatch.setattr(postgres, "_check_out", lambda _: pytest.fail("a second connection"))
        with pytest.raises(TooMany) as refused:
            budgets.require(conn, subject(deployment))
        monkeypatch.undo()
    assert 0 < (refused.value.retry_after_seconds or 0) <= 86_400


def test_each_user_and_each_thread_has_a_budget_of_its_own(deployment: DeploymentRef) -> None:
    allow(deployment, max_user_tokens_per_day=10, max_thread_tokens_per_day=100)
    spend(deployment, 10, user="ann")
    spend(deployment, 90, user="bob")

    def refused(user: str | None, thread: UUID) -> str:
        with driver() as conn:
            try:
                budgets.require(conn, subject(deployment, user, thread))
            except TooMany as error:
                return error.message.split(" has")[0]
        return ""

    assert refused("ann", uuid4()) == refused("bob", uuid4()) == "The user"
    assert refused("cleo", THREAD) == refused(None, THREAD) == "The thread"
    assert refused("cleo", uuid4()) == refused(None, uuid4()) == ""


def test_an_alert_reports_a_limit_once_a_day_and_a_new_limit_again(deployment: DeploymentRef) -> None:
    allow(deployment, max_tokens_per_day=100, max_cost_per_day=Decimal("1"), budget_webhook=URL)
    for _ in range(3):
        spend(deployment, 26, "0.0", unpriced=("small\n1",))
    allow(deployment, max_tokens_per_day=50)
    allow(deployment, max_tokens_per_day=1000)

    percents = (
        "SELECT CAST(values ->> 'limit' AS int), CAST(values ->> 'percent' AS int) FROM webhook_delivery"
    )
    assert sorted(rows(f"{percents} WHERE status = 'budget.reached'")) == [
        (50, 50),
        (50, 80),
        (50, 100),
        (100, 50),
    ]
    assert rows("SELECT values ->> 'name' FROM webhook_delivery WHERE status = 'budget.unpriced'") == [
        "small 1"
    ]
    assert rows("SELECT message FROM log_line WHERE message LIKE '%price%'") == [
        "The model small 1 has no price in RUNYARD_MODEL_PRICES: budgets in dollars count it as 0."
    ]
    assert "50 % of max_tokens_per_day of the deployment is used: 52 of 100" in rows(
        "SELECT message FROM log_line"
    )


def test_a_deployment_reports_a_bounded_number_of_models_without_a_price(
    deployment: DeploymentRef, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(budgets, "MOST_UNPRICED", 2)
    allow(deployment, max_cost_per_day=Decimal(1), budget_webhook=URL)
    for model in ("a", "b", "c"):
        spend(deployment, 1, unpriced=(model,))
    assert rows("SELECT values ->> 'name' FROM webhook_delivery ORDER BY 1") == ["a", "b"]
    assert rows("SELECT name FROM budget_alert ORDER BY 1") == ["a", "b"]


@pytest.mark.parametrize(
    ("unit", "number", "shown"),
    [
        (budgets.COST, "0.004500", "$0.0045"),
        (budgets.COST, "100.00", "$100"),
        (budgets.TOKENS, "100", "100 tokens"),
    ],
)
def test_an_amount_has_no_zeros_at_its_end(unit: str, number: str, shown: str) -> None:
    assert budgets.amount(unit, Decimal(number)) == shown


def test_an_alert_names_the_limit_and_whose_it_is(deployment: DeploymentRef) -> None:
    allow(deployment, max_user_cost_per_day=Decimal("2.5"), budget_webhook=URL)
    spend(deployment, 5, "1.3", user="a:b <é>")
    with connection() as conn:
        (delivery,) = webhooks.claim(conn, owner="me", limit=9)
    body = webhook_deliveries.orjson.loads(webhook_deliveries.budget_content(delivery))

    resets_at = body["budget"].pop("resets_at")
    assert resets_at.endswith("T00:00:00+00:00")
    assert resets_at > body.pop("day")
    assert body == {
        "type": "budget.reached",
        "deployment": deployment.name,
        "budget": {
            "name": "max_user_cost_per_day",
            "unit": "cost",
            "limit": 2.5,
            "used": 1.3,
            "percent": 50,
            "subject": {"kind": "user", "id": "a:b <é>"},
        },
        "text": f"{deployment.name}: 50 % of max_user_cost_per_day is used: $1.3 of $2.5.",
    }
    assert "Webhook-Id" in webhook_deliveries.headers(delivery, b"", webhook_deliveries.database_time())


def test_no_more_than_the_day_s_budget_is_used_by_a_burst_but_the_calls_in_progress(
    deployment: DeploymentRef,
) -> None:
    allow(deployment, max_tokens_per_day=1_000)

    def call(_: int) -> bool:
        with driver() as conn:
            try:
                budgets.require(conn, subject(deployment))
            except TooMany:
                return False
        spend(deployment, 10)
        return True

    with ThreadPoolExecutor(8) as pool:
        begun = sum(pool.map(call, range(200)))

    assert 100 <= begun < 108
    assert spent(deployment) == (begun * 10, 0)


@pytest.mark.parametrize(
    ("user", "name"),
    [
        (None, None),
        ({"identity": "langgraph-studio-user", "kind": "StudioUser"}, None),
        ({"identity": "ann@example.com"}, "ann@example.com"),
        ({"identity": "é" * 200}, "é" * 200),
        ({"identity": "x" * 1024}, "x" * 184 + "49abd65bbf7f7e40"),
    ],
)
def test_a_user_is_counted_by_identity(user: dict[str, str] | None, name: str | None) -> None:
    assert usage.user_name(user) == name
