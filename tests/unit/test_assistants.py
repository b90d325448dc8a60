"""Assistants: concurrent updates create separate versions, and no version is lost."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import tests.support.factories as make
from shared import assistants
from shared.deployments.deployments import DeploymentRef
from shared.errors import Conflict, Invalid, NotFound
from shared.infra.postgres import connection, driver

CONTEXTS = st.dictionaries(st.sampled_from("abc"), st.integers(0, 3), max_size=3)


@pytest.fixture
def deployment(db: Any) -> DeploymentRef:
    return make.deployment(graphs=("agent", "other"))


def create(deployment: DeploymentRef, **content: Any) -> Any:
    with connection() as conn:
        return assistants.create(conn, deployment, graph_id="agent", **content)


def change(deployment: DeploymentRef, row: Any, **changes: Any) -> Any:
    with connection() as conn:
        return assistants.change(conn, deployment, row["assistant_id"], changes)


@settings(max_examples=10, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(contexts=st.lists(CONTEXTS.filter(bool), min_size=1, max_size=5), back=st.integers(1, 5))
def test_a_version_is_exactly_what_was_sent(
    deployment: DeploymentRef, contexts: list[dict[str, int]], back: int
) -> None:
    row = create(deployment, context=contexts[0])
    for number, context in enumerate(contexts[1:], start=2):
        row = change(deployment, row, context=context)
        assert (row["version"], row["context"]) == (number, context)
        assert row["config"] == {"configurable": context}

    back = min(back, len(contexts))
    with connection() as conn:
        row = assistants.set_latest(conn, deployment.id, row["assistant_id"], back)

    assert (row["version"], row["context"]) == (back, contexts[back - 1])
    assert change(deployment, row)["version"] == len(contexts) + 1


def test_changes_at_the_same_time_are_each_a_version(deployment: DeploymentRef) -> None:
    row = create(deployment)
    with ThreadPoolExecutor(4) as pool:
        done = list(pool.map(lambda n: change(deployment, row, context={"n": n})["version"], range(8)))
    assert sorted(done) == list(range(2, 10))


def test_creations_of_one_id_at_the_same_time_make_one(deployment: DeploymentRef) -> None:
    key = assistants.default_id("mine")

    def attempt(number: int) -> str:
        return create(deployment, assistant_id=key, name=str(number), if_exists="do_nothing")["name"]

    with ThreadPoolExecutor(4) as pool:
        names = set(pool.map(attempt, range(8)))
    assert len(names) == 1
    with pytest.raises(Conflict):
        create(deployment, assistant_id=key)


def test_a_run_resolves_the_active_version(deployment: DeploymentRef) -> None:
    row = create(deployment, context={"v": 1}, metadata={"m": 1})
    change(deployment, row, context={"v": 2}, graph_id="other")
    with driver() as conn:
        newest = assistants.resolve(conn, deployment, str(row["assistant_id"]))
    with connection() as conn:
        assistants.set_latest(conn, deployment.id, row["assistant_id"], 1)
        first = assistants.resolve(conn, deployment, str(row["assistant_id"]))
    assert (newest.graph_id, newest.context, newest.metadata) == ("other", {"v": 2}, {"m": 1})
    assert (first.graph_id, first.context, first.revision_id) == (
        "agent",
        {"v": 1},
        deployment.active_revision_id,
    )


def test_a_graph_id_means_the_default_assistant(deployment: DeploymentRef) -> None:
    with driver() as conn:
        assert assistants.resolve(conn, deployment, "other").assistant_id == assistants.default_id("other")
        with pytest.raises(Invalid, match="registered graphs: agent, other"):
            assistants.resolve(conn, deployment, "nope")
        with pytest.raises(NotFound):
            assistants.resolve(conn, deployment, str(assistants.default_id("nope")))

    new = make.deployment(serving=False)
    with driver() as conn, pytest.raises(Conflict):
        assistants.resolve(conn, new, "agent")


def test_delete_says_what_is_left_to_do(deployment: DeploymentRef) -> None:
    key = assistants.default_id("agent")
    thread_id = make.thread(deployment.id, metadata={"assistant_id": str(key)})
    run_id = make.run(deployment, thread_id)
    with connection() as conn:
        live, threads = assistants.delete(conn, deployment.id, key, delete_threads=True)
        assert (live, threads) == ([(thread_id, run_id)], [thread_id])
        with pytest.raises(NotFound):
            assistants.versions(conn, deployment.id, key, metadata=None, limit=1, offset=0)
