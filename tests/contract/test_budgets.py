"""Budgets over HTTP: set on deployments and keys, and enforced with 429."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest
from flask import Flask
from flask.testing import FlaskClient
from sqlalchemy import text
from werkzeug.test import TestResponse

from shared.figures import budgets
from shared.infra.postgres import connection, driver
from tests.contract import rpc
from tests.contract.conftest import Api, Users, caller
from tests.contract.statements import execute, scalar
from tests.support import factories
from tests.support.creating import fire_due_crons

BUDGETS = {"max_tokens_per_day": 100, "max_run_tokens": 10}


def use_up(kind: str, id: object) -> None:
    execute(
        "INSERT INTO spent_tokens (kind, id, day, tokens) VALUES (:kind, :id, utc_date(now()), 100)"
        " ON CONFLICT (kind, id, day) DO UPDATE SET tokens = 100",
        kind=kind,
        id=str(id),
    )


@pytest.fixture
def spent(api: Api) -> Api:
    """Deployment that has used its budget of the day."""
    api.client.patch(f"/v2/deployments/{api.deployment.id}", json={"limits": BUDGETS})
    use_up(budgets.DEPLOYMENT, api.deployment.id)
    return api


def is_refused(answer: TestResponse, limit: str = "max_tokens_per_day") -> None:
    assert answer.status_code == 429, answer.text
    assert f"has used its budget of 100 tokens a day ({limit}): it may run again from 2" in answer.text
    assert 0 < int(answer.headers["Retry-After"]) <= 86_401


def test_a_deployment_and_a_key_have_budgets_until_they_are_taken_away(api: Api, client: FlaskClient) -> None:
    path = f"/v2/deployments/{api.deployment.id}"

    assert api.client.patch(path, json={"limits": BUDGETS}).json["limits"] == {
        "max_concurrent_runs": None, "hosts_per_runner": None, "run_timeout_seconds": None, "memory_mb": None,
        **dict.fromkeys(budgets.NAMES), **BUDGETS,
    }  # fmt: skip
    assert api.client.get(path).json["limits"]["max_run_tokens"] == 10
    gone = api.client.patch(path, json={"limits": {"max_run_tokens": 0}}).json["limits"]
    assert (gone["max_run_tokens"], gone["max_tokens_per_day"]) == (None, 100)

    made = client.post("/v2/keys", json={"name": "k", "role": "run", **BUDGETS}).json
    path = f"/v2/keys/{made['id']}"

    assert {name: made[name] for name in BUDGETS} == BUDGETS
    assert client.patch(path, json={"max_tokens_per_day": 0}).json["max_tokens_per_day"] is None
    assert client.get(path).json["max_run_tokens"] == 10


def test_no_run_is_made_however_it_is_asked_for(spent: Api) -> None:
    thread_id = spent.post("/threads", {}).json["thread_id"]
    factories.takes(spent.deployment, "agent", rpc.CHAT)
    run = {"assistant_id": "agent"}

    for path in ("/runs", "/runs/wait", "/runs/stream", f"/threads/{thread_id}/runs"):
        is_refused(spent.post(path, run))
    is_refused(spent.post("/runs/batch", [run]))
    is_refused(rpc.post(spent, "/mcp", "tools/call", {"name": "agent", "arguments": {"messages": "hi"}}))
    is_refused(rpc.post(spent, "/a2a/agent", "SendMessage", {"message": rpc.text_message()}))
    command = {"id": 1, "method": "run.start", "params": {"assistant_id": "agent", "input": {}}}
    answer = spent.post(f"/threads/{thread_id}/commands", command).json
    assert (answer["type"], answer["error"]) == ("error", "unknown_error")
    assert answer["message"].startswith("429: The deployment has used its budget of 100 tokens a day")
    assert scalar("SELECT count(*) FROM run") == 0


def test_a_cron_passes_over_its_time(spent: Api) -> None:
    factories.cron(spent.deployment)
    execute("UPDATE cron SET next_run_date = now() - interval '1 s'")

    assert fire_due_crons() == []
    with connection() as conn:
        is_ahead = conn.execute(text("SELECT next_run_date > now() AND enabled FROM cron"))
        assert is_ahead.scalar_one()


def test_a_key_that_has_used_its_budget_is_refused_and_others_are_not(app: Flask, api: Api) -> None:
    made = api.client.post("/v2/keys", json={"name": "k", "role": "run", **BUDGETS}).json
    use_up(budgets.KEY, made["id"])
    theirs = Api(caller(app, made["key"]), api.deployment)

    is_refused(theirs.post("/runs", {"assistant_id": "agent"}))
    assert api.post("/runs", {"assistant_id": "agent"}).status_code == 200


@pytest.mark.usefixtures("own_key")
def test_a_user_who_has_used_a_budget_is_refused_however_a_run_is_created(users: Users) -> None:
    path = f"/v2/deployments/{users.deployment.id}"
    users.owner.client.patch(path, json={"limits": {"max_user_tokens_per_day": 100}})
    run = {"assistant_id": "agent"}
    assert users.ann.post("/runs", run).status_code == 200
    use_up(budgets.USER, f"{users.deployment.id}:ann")

    is_refused(users.ann.post("/runs", run), "max_user_tokens_per_day")
    assert users.bob.post("/runs", run).status_code == 200
    assert users.ann.post("/runs/crons", {**run, "schedule": "* * * * *"}).status_code == 200
    execute("UPDATE cron SET next_run_date = now() - interval '1 s'")
    assert fire_due_crons() == []
    assert scalar("SELECT count(*) FROM run WHERE user_name = 'ann'") == 1


def test_a_budget_that_cannot_be_kept_is_refused_by_its_field(
    api: Api, client: FlaskClient, subtests: pytest.Subtests
) -> None:
    key = client.post("/v2/keys", json={"name": "k", "role": "run"}).json
    rows: list[tuple[str, Any, str]] = [
        ("max_cost_per_day", -1, "greater_than_equal"),
        ("max_cost_per_day", 10**9, "less_than_equal"),
        ("max_run_cost", 0.0000001, "decimal_max_places"),
        ("max_run_cost", "1", "float_type"),
        ("max_run_cost", True, "float_type"),
        ("max_tokens_per_day", 1.5, "int_type"),
        ("budget_webhook", "https://10.0.0.1/", "value_error"),
        ("budget_webhook", "mailto:me@example.com", "value_error"),
        ("budget_webhook", "a b", "string_pattern_mismatch"),
        ("budget_webhook", "https://1.1.1.1/x?token=…", "value_error"),
    ]
    for field, value, kind in rows:
        for path, body, loc in (
            (f"/v2/keys/{key['id']}", {field: value}, ["body", field]),
            (f"/v2/deployments/{api.deployment.id}", {"limits": {field: value}}, ["body", "limits", field]),
        ):
            with subtests.test(path=path, field=field, value=value):
                answer = api.client.patch(path, json=body)

                assert answer.status_code == 422, answer.text
                assert [(one["loc"], one["type"]) for one in answer.json["detail"]] == [(loc, kind)]
    for value in (b"NaN", b"Infinity", b"1e999"):
        with subtests.test(value=value):
            answer = api.client.patch(
                f"/v2/keys/{key['id']}",
                data=b'{"max_cost_per_day": %s}' % value,
                content_type="application/json",
            )
            assert answer.status_code in (400, 422), answer.text


def test_a_deployment_shows_what_it_has_used_today_and_models_without_a_price(api: Api) -> None:
    path = f"/v2/deployments/{api.deployment.id}"
    webhook = {"budget_webhook": "https://1.1.1.1/x"}
    assert api.client.patch(path, json={"limits": {"max_cost_per_day": 0.4, **webhook}}).status_code == 200
    with driver() as conn:
        limits = budgets.Budgets.read(conn).own((budgets.DEPLOYMENT, str(api.deployment.id)))
        budgets.spend(
            conn, limits, 7, Decimal("0.25"), deployment_id=api.deployment.id, unpriced=["new-model"]
        )

    assert api.client.get(path).json["used_today"] == {
        "tokens": 7, "cost": 0.25, "unpriced_models": ["new-model"]
    }  # fmt: skip
    deliveries = api.post("/webhooks/search", {}).json
    fields = ("type", "run_id", "thread_id", "url")
    assert sorted([row[name] for name in fields] for row in deliveries) == [
        [event, None, None, "https://1.1.1.1/x"] for event in ("budget.reached", "budget.unpriced")
    ]
    assert api.post(f"/webhooks/{deliveries[0]['delivery_id']}/retry").status_code == 202


def test_budgets_in_dollars_are_shown_as_they_were_set(api: Api, client: FlaskClient) -> None:
    dollars = {
        "max_cost_per_day": 99_999_999.123456,
        "max_run_cost": 0.1,
        "budget_webhook": "https://1.1.1.1/x",
    }
    users = {"max_user_cost_per_day": 1, "max_thread_cost_per_day": 0.000001, "max_user_tokens_per_day": 5}
    made = client.post("/v2/keys", json={"name": "k", "role": "run", **dollars}).json
    path = f"/v2/deployments/{api.deployment.id}"
    limits = api.client.patch(path, json={"limits": {**dollars, **users}}).json["limits"]

    assert {name: made[name] for name in dollars} == dollars
    assert {name: limits[name] for name in (*dollars, *users)} == {**dollars, **users}
    secret = {"budget_webhook": "https://1.1.1.1/x?token=s3cret"}
    for answer in (
        api.client.patch(path, json={"limits": secret}).json["limits"],
        api.client.get(path).json["limits"],
        client.patch(f"/v2/keys/{made['id']}", json=secret).json,
    ):
        assert answer["budget_webhook"] == "https://1.1.1.1/x?token=…"
    gone = api.client.patch(path, json={"limits": {"budget_webhook": "", "max_cost_per_day": 0}}).json[
        "limits"
    ]
    assert (gone["budget_webhook"], gone["max_cost_per_day"], gone["max_run_cost"]) == (None, None, 0.1)
