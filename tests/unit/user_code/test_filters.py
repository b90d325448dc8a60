"""Filters of authorization handlers, row by row, on metadata in PostgreSQL."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest
from sqlalchemy import Engine, text

import tests.support.factories as make
from shared import assistants
from shared.crons import records as crons
from shared.deployments.deployments import DeploymentRef
from shared.errors import Denied, NotFound
from shared.infra.postgres import connection, driver, dumps
from shared.threads import records
from shared.user_code import filters
from shared.user_code.filters import BadFilter

ROWS: dict[str, dict[str, Any]] = {
    "nothing": {},
    "text": {"k": "1"},
    "one": {"k": 1},
    "float": {"k": 1.0},
    "true": {"k": True},
    "null": {"k": None},
    "list": {"k": [1, 2]},
    "turned": {"k": [2, 1]},
    "longer": {"k": [1, 2, 3]},
    "nested": {"k": [[1], {"a": 1, "b": 2}]},
    "empty": {"k": []},
    "object": {"k": {"a": 1}},
    "wider": {"k": {"a": 1, "b": 2}},
    "dotted": {"a.b": 1},
    "deep": {"a": {"b": 1}},
    "both": {"k": 1, "l": "x"},
    "percent": {"100%": ":f0 ' \" \\ %s"},
}

MATCHES: list[tuple[dict[str, Any], set[str]]] = [
    # plain values
    ({"k": "1"}, {"text"}),
    ({"k": 1}, {"one", "float", "both"}),
    ({"k": 1.0}, {"one", "float", "both"}),
    ({"k": True}, {"true"}),
    ({"k": None}, {"null"}),
    ({"k": [1, 2]}, {"list"}),
    ({"k": []}, {"empty"}),
    ({"k": [1]}, set()),
    ({"a.b": 1}, {"dotted"}),
    ({"100%": ":f0 ' \" \\ %s"}, {"percent"}),
    ({"k": 1, "l": "x"}, {"both"}),
    ({}, set(ROWS)),
    # $eq
    ({"k": {"$eq": 1}}, {"one", "float", "both"}),
    ({"k": {"$eq": {"a": 1}}}, {"object"}),
    ({"k": {"$eq": [1, 2]}}, {"list"}),
    ({"k": {"$eq": None}}, {"null"}),
    # $contains
    ({"k": {"$contains": 1}}, {"list", "turned", "longer"}),
    ({"k": {"$contains": [1, 2]}}, {"list", "turned", "longer"}),
    ({"k": {"$contains": [2, 3]}}, {"longer"}),
    ({"k": {"$contains": "1"}}, set()),
    ({"k": {"$contains": {"a": 1}}}, set()),
    ({"k": {"$contains": {"a": 1, "b": 2}}}, {"nested"}),
    ({"k": {"$contains": [[1]]}}, {"nested"}),
    ({"k": {"$contains": [[]]}}, set()),
    ({"k": {"$contains": []}}, {"list", "turned", "longer", "nested", "empty"}),
    # several
    ({"k": {"$contains": 1, "$eq": [2, 1]}}, {"turned"}),
    ({"$or": [{"k": "1"}, {"l": "x"}]}, {"text", "both"}),
    ({"$or": [{"k": "1"}, {"l": "x"}], "k": 1}, {"both"}),
    ({"$and": [{"k": 1}, {"l": "x"}]}, {"both"}),
    ({"$or": [{"$and": [{"k": 1}, {"l": "x"}]}, {"k": None}]}, {"both", "null"}),
    ({"$or": [{"k": "1"}, {}]}, set(ROWS)),
]

UNSUPPORTED: list[Any] = [
    {"k": {"$ne": 1}},
    {"k": {"$in": [1]}},
    {"k": {"$gt": 1}},
    {"k": {"$eq": 1, "$ne": 2}},
    {"k": {"a": 1}},
    {"k": {}},
    {"$not": {"k": 1}},
    {"$or": [{"k": 1}]},
    {"$and": [{"k": 1}]},
    {"$or": {"k": 1}},
    {"$or": "k1"},
    {"$or": [1, {"k": 1}]},
    {"$and": []},
    {"k": "\0"},
    {"k\0": 1},
    {"k": "x" * 70_000},
    {str(n): n for n in range(101)},
    {"k": {"$contains": [{"n": n} for n in range(100)]}},
    {"$or": [{"k": {"$contains": [[], []]}}] * 40},
    ["k"],
    "k",
    1,
]


@pytest.fixture
def threads(deployment: DeploymentRef) -> dict[str, UUID]:
    return {name: make.thread(deployment.id, metadata=metadata) for name, metadata in ROWS.items()}


def test_a_filter_lets_through_and_says_the_same_of_one_record(
    deployment: DeploymentRef, threads: dict[str, UUID]
) -> None:
    names = {id: name for name, id in threads.items()}
    for filter, expected in MATCHES:
        sql, values = filters.condition(filter, "t.metadata")
        with connection() as conn:
            query = text(f"SELECT thread_id FROM thread AS t WHERE {sql}")
            found = conn.execute(query, values).scalars().all()
            visible = filters.clause(filter, "thread.metadata")
            searched, total = records.search(conn, deployment.id, limit=100, offset=0, visible=visible)
            counted = records.count(conn, deployment.id, visible=visible)
        assert {names[id] for id in found} == expected, filter
        assert {names[row["thread_id"]] for row in searched} == expected, filter
        assert counted == total == len(expected), filter
        with driver() as quick, connection() as conn:
            for name, id in threads.items():
                is_seen = filters.is_thread_visible(quick, deployment.id, id, filter)
                is_locked = filters.is_thread_visible(conn, deployment.id, id, filter, lock=True)
                assert (is_seen, is_locked) == (name in expected,) * 2, (filter, name)


@pytest.mark.parametrize("filter", UNSUPPORTED, ids=lambda filter: str(filter)[:60])
def test_what_a_filter_may_not_say_is_refused(filter: Any) -> None:
    for refuse in (filters.check, lambda filter: filters.condition(filter, "metadata")):
        with pytest.raises(BadFilter) as refused:
            refuse(filter)
        assert isinstance(refused.value, Denied)
        assert (refused.value.status, refused.value.detail) == (500, "Internal Server Error")
        assert refused.value.reason


def nested(depth: int) -> dict[str, Any]:
    return {"k": 1} if depth == 1 else {"$or": [nested(depth - 1), {"l": "x"}]}


def test_a_filter_has_at_most_so_many_levels_and_entries(db: Engine) -> None:
    filters.check(nested(8))
    filters.check({str(n): n for n in range(100)})
    with pytest.raises(BadFilter):
        filters.check(nested(9))


def test_what_the_operator_was_is_said_in_the_log() -> None:
    with pytest.raises(BadFilter) as refused:
        filters.check({"k": {"$ne": 1}})
    assert refused.value.reason == "filter uses an operator that is not supported: $ne"
    with pytest.raises(BadFilter) as refused:
        filters.check({"$or": [{}]})
    assert "$or" in refused.value.reason


def test_names_of_parameters_can_be_kept_apart_and_nothing_is_written_into_the_statement(
    deployment: DeploymentRef, threads: dict[str, UUID]
) -> None:
    first, values = filters.condition({"k": 1}, "metadata", prefix="a")
    second, others = filters.condition({"l": "x"}, "metadata", prefix="b")
    with connection() as conn:
        query = text(f"SELECT count(*) FROM thread WHERE {first} AND {second}")
        assert conn.execute(query, values | others).scalar_one() == 1

    sql, written = filters.condition({"k'--": {"$contains": ["x'--"]}}, "metadata")
    assert "--" not in sql
    assert "--" in dumps(list(written.values()))


def test_an_owner_is_found_by_the_index(deployment: DeploymentRef) -> None:
    sql, values = filters.condition({"owner": "ann"}, "metadata")
    with connection() as conn:
        conn.execute(text("SET LOCAL enable_seqscan = off"))
        plan = conn.execute(text(f"EXPLAIN SELECT 1 FROM thread WHERE {sql}"), values).scalars().all()
    assert any("ix_thread_metadata" in line for line in plan)


# Lookups of one record


def test_a_hidden_record_is_as_one_that_is_not_there(deployment: DeploymentRef) -> None:
    thread_id = make.thread(deployment.id, metadata={"owner": "ann"})
    assistant_id = make.assistant(deployment.id, metadata={"owner": "ann"})
    with connection() as conn:
        asked = {"assistant_id": "agent", "schedule": "0 0 * * *", "metadata": {"owner": "ann"}}
        cron_id = crons.create(conn, deployment, asked, thread_id=None)["cron_id"]
    own = (
        (filters.require_thread, thread_id, f"Thread with ID {thread_id} not found"),
        (filters.require_assistant, assistant_id, "Not Found"),
        (filters.require_cron, cron_id, "Not Found"),
    )
    for door in (connection, driver):
        with door() as conn:
            for require, id, message in own:
                for lock in (False, True):
                    require(conn, deployment.id, id, {"owner": "ann"}, lock=lock)
                    require(conn, deployment.id, id, None, lock=lock)
                    with pytest.raises(NotFound, match=message):
                        require(conn, deployment.id, id, {"owner": "bob"}, lock=lock)
                with pytest.raises(NotFound, match="elsewhere"):
                    require(conn, deployment.id, id, {"owner": "bob"}, error=NotFound("elsewhere"))


def test_of_an_assistant_the_active_version_counts(deployment: DeploymentRef) -> None:

    assistant_id = make.assistant(deployment.id, metadata={"owner": "ann"})
    with connection() as conn:
        assistants.change(conn, deployment, assistant_id, {"metadata": {"owner": "bob"}})
        filters.require_assistant(conn, deployment.id, assistant_id, {"owner": "bob"})
        with pytest.raises(NotFound):
            filters.require_assistant(conn, deployment.id, assistant_id, {"owner": "ann"})
        assistants.set_latest(conn, deployment.id, assistant_id, 1)
        filters.require_assistant(conn, deployment.id, assistant_id, {"owner": "ann"})
