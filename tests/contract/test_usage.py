"""Tokens and costs over HTTP and on the command line: by day, key, deployment, model, user and node."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pytest
from rich.console import Console
from sqlalchemy import text

from cli.operating import usage as command
from shared.figures import folding, usage
from shared.infra.postgres import connection
from shared.removal import deletion
from tests.contract.conftest import Api, Users
from tests.contract.statements import execute
from tests.support.acting import act

USED = {
    "large": {"input_tokens": 100_000, "output_tokens": 50_000, "total_tokens": 150_000},
    "small-1": {"input_tokens": 10, "output_tokens": 1, "total_tokens": 11},
}


@pytest.fixture(autouse=True)
def priced() -> Iterator[None]:
    usage.configure_prices((("large", 3.0, 10.0),))
    yield
    usage.configure_prices(())


def run_once(
    api: Api, usage: dict[str, Any] | None = None, nodes: dict[str, Any] | None = None
) -> dict[str, Any]:
    thread = api.post("/threads", {}).json
    run = api.post(f"/threads/{thread['thread_id']}/runs", {"assistant_id": "agent"}).json
    act(run["run_id"], {"a": 1}, usage=usage, node_usage=nodes)
    return api.get(f"/threads/{thread['thread_id']}/runs/{run['run_id']}").json


def asked(api: Api, query: str) -> list[dict[str, Any]]:
    answer = api.client.get(f"/v2/usage?{query}")
    assert answer.status_code == 200, answer.text
    return answer.json["usage"]


def test_a_run_says_what_it_cost(api: Api) -> None:
    assert run_once(api, {"large": USED["large"]})["cost"] == 0.8
    assert run_once(api, USED)["cost"] is None
    assert run_once(api)["cost"] is None


def test_usage_by_what_is_asked_for_folded_or_not(api: Api, neighbour: Api) -> None:
    run_once(api, USED)
    with connection() as conn:
        folding.fold(conn)
    run_once(api, {"large": USED["large"]})
    run_once(api)
    today = datetime.now(UTC).date().isoformat()
    tokens = {"input_tokens": 200_000, "output_tokens": 100_000, "total_tokens": 300_000}

    assert asked(api, "by=model") == [
        {"model": "large", "runs": 2, **tokens, "cost": 1.6},
        {
            "model": "small-1",
            "runs": 1,
            "input_tokens": 10,
            "output_tokens": 1,
            "total_tokens": 11,
            "cost": None,
        },
    ]
    assert asked(api, "by=key,day") == [
        {"day": today, "key_id": "bootstrap", "key": None, "runs": 3, "input_tokens": 200_010,
         "output_tokens": 100_001, "total_tokens": 300_011, "cost": None},
    ]  # fmt: skip
    (of_deployment, _) = asked(api, "")
    assert of_deployment["deployment_id"] == str(api.deployment.id)
    assert (of_deployment["deployment"], of_deployment["model"]) == ("chat", "large")
    assert asked(neighbour, "by=day") == []


def counts(rows: list[dict[str, Any]], *columns: str) -> list[tuple[Any, ...]]:
    return [tuple(row[name] for name in (*columns, "runs", "total_tokens")) for row in rows]


def test_usage_by_user_and_by_node_folded_or_not(users: Users) -> None:
    run_once(users.ann, USED, {"plan": {"large": USED["large"]}, "": {"small-1": USED["small-1"]}})
    with connection() as conn:
        folding.fold(conn)
    run_once(users.ann, {"large": USED["large"]}, {"plan": {"large": USED["large"]}})
    run_once(users.bob, {"large": USED["large"]})
    api = users.owner
    execute(
        "INSERT INTO ended_run (deployment_id, key_id, status, created_at, attempts, usage)"
        """ VALUES (:id, '', 'success', now(), 1, '{"small-1": {"total_tokens": 9}}')""",
        id=api.deployment.id,
    )

    assert counts(asked(api, "by=user"), "user", "is_rest") == [
        (None, False, 1, 9), ("ann", False, 2, 300_011), ("bob", False, 1, 150_000)
    ]  # fmt: skip
    assert [row["cost"] for row in asked(api, "by=user,day,deployment")] == [None, None, 0.8]
    assert counts(asked(api, "by=node,model"), "node", "model") == [
        (None, "small-1", 1, 11), ("plan", "large", 2, 300_000)
    ]  # fmt: skip
    head, *_ = csv.reader(io.StringIO(api.client.get("/v2/usage?by=user&format=csv").text))
    assert head[:3] == ["user", "is_rest", "runs"]


def test_users_beyond_the_most_are_one_row(users: Users, monkeypatch: pytest.MonkeyPatch) -> None:
    api = users.owner
    monkeypatch.setattr(folding, "MOST_NAMES", 3)
    monkeypatch.setattr(usage, "MOST_NAMES", 2)
    for number in range(1, 6):
        execute(
            "INSERT INTO ended_run (deployment_id, key_id, status, created_at, attempts, usage, user_name)"
            " VALUES (:id, '', 'success', now(), 1, jsonb_build_object('large',"
            " jsonb_build_object('total_tokens', CAST(:n AS int))), :name)",
            id=api.deployment.id,
            n=number,
            name=f"user {number}",
        )
    top = [("user 4", False, 1, 4), ("user 5", False, 1, 5), (None, True, 3, 6)]
    assert counts(asked(api, "by=user"), "user", "is_rest") == top
    with connection() as conn:
        folding.fold(conn)

    stored = (
        "SELECT name, is_rest, total_tokens FROM daily_detail WHERE model = 'large' ORDER BY total_tokens"
    )
    assert [tuple(row) for row in execute(stored)] == [
        ("user 1", False, 1), ("user 2", False, 2), ("user 3", False, 3), ("", True, 9)
    ]  # fmt: skip
    assert counts(asked(api, "by=user"), "user", "is_rest") == [
        ("user 2", False, 1, 2), ("user 3", False, 1, 3), (None, True, 3, 10)
    ]  # fmt: skip


def test_the_usage_of_users_is_removed_with_their_deployment(users: Users) -> None:
    run_once(users.ann, USED)
    with connection() as conn:
        folding.fold(conn)
    api = users.owner
    assert api.client.delete(f"/v2/deployments/{api.deployment.id}").status_code < 300
    execute("UPDATE deployment SET deleted_at = now() - interval '1 h'")
    with connection() as conn:
        while deletion.purge(conn):
            pass

    assert execute("SELECT FROM daily_detail") == []
    assert counts(asked(api, "by=deployment"), "deployment") == [(None, 1, 150_011)]


def test_a_day_is_counted_from_its_beginning_to_its_end(api: Api) -> None:
    run_once(api, USED)
    execute("UPDATE ended_run SET ended_at = '2026-03-04T23:59:59.9Z'")

    assert len(asked(api, "from=2026-03-04&until=2026-03-04&by=day")) == 1
    assert asked(api, "from=2026-03-05&until=2026-03-05&by=day") == []


def test_as_a_table_for_a_spreadsheet(api: Api) -> None:
    with connection() as conn:
        conn.execute(text("UPDATE deployment SET name = '=chat' WHERE id = :id"), {"id": api.deployment.id})
        conn.execute(
            text(
                "INSERT INTO ended_run (deployment_id, key_id, status, created_at, attempts, usage)"
                """ VALUES (:id, '', 'success', now(), 1, '{"@large, \\"the\\" one": {"input_tokens": 3}}')"""
            ),
            {"id": api.deployment.id},
        )

    answer = api.client.get("/v2/usage?format=csv")

    assert answer.content_type == "text/csv; charset=utf-8"
    head, row = csv.reader(io.StringIO(answer.text))
    assert head == [
        "deployment_id", "deployment", "model", "runs", "input_tokens", "output_tokens", "total_tokens", "cost"
    ]  # fmt: skip
    assert row == [str(api.deployment.id), "'=chat", '\'@large, "the" one', "1", "3", "0", "0", ""]


def test_there_is_nothing_at_either_end_of_time(api: Api) -> None:
    for span in ("until=0001-01-01", "from=9999-12-01&until=9999-12-31"):
        assert asked(api, span) == [], span


def test_what_is_asked_wrongly_is_named(api: Api, subtests: pytest.Subtests) -> None:
    rows: list[Any] = [
        ("from=yesterday", "from"),
        ("until=2026-13-01", "until"),
        ("by=hour", "by"),
        ("by=user,node", "by"),
        ("by=user,key", "by"),
        ("by=source,node", "by"),
        ("from=2026-03-05&until=2026-03-04", "from"),
        ("from=2020-01-01&until=2026-03-04", "from"),
    ]
    for query, field in rows:
        with subtests.test(query=query, field=field):
            answer = api.client.get(f"/v2/usage?{query}")

            assert answer.status_code == 422
            assert answer.json["detail"][0]["loc"][:2] == ["query", field]


def test_the_terminal_shows_names_and_a_sum(api: Api) -> None:
    run_once(api, USED)
    rows = asked(api, "by=key,deployment")
    screen = Console(file=io.StringIO(), width=120)

    screen.print(
        command.usage_table([*rows, {**rows[0], "deployment": None, "cost": 2.5}], ["key", "deployment"])
    )

    lines = screen.file.getvalue().splitlines()  # type: ignore[attr-defined]
    assert lines[0].split() == ["Key", "Deployment", "runs", "input", "output", "total", "cost"]
    assert lines[1].split() == ["bootstrap", "chat", "1", "100,010", "50,001", "150,011", "-"]
    assert lines[2].split()[1] == str(api.deployment.id)
    assert lines[3].split() == ["Total", "2", "200,020", "100,002", "300,022", "2.50"]


def test_the_terminal_names_users_and_the_others(users: Users) -> None:
    run_once(users.ann, USED)
    rows = asked(users.owner, "by=user")
    screen = Console(file=io.StringIO(), width=120)

    screen.print(command.usage_table([*rows, {**rows[0], "user": None, "is_rest": True}], ["user"]))

    lines = screen.file.getvalue().splitlines()  # type: ignore[attr-defined]
    assert [line.split()[0] for line in lines] == ["User", "ann", "(others)", "Total"]
