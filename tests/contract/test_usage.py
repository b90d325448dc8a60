"""Tokens and costs over HTTP and on the command line: by day, key, deployment and model."""

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
from tests.contract.conftest import Api
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


def run_once(api: Api, usage: dict[str, Any] | None = None) -> dict[str, Any]:
    thread = api.post("/threads", {}).json
    run = api.post(f"/threads/{thread['thread_id']}/runs", {"assistant_id": "agent"}).json
    act(run["run_id"], {"a": 1}, usage=usage)
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
