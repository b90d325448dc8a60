"""The time to live that a thread has of its deployment's configuration."""

from __future__ import annotations

from typing import Any
from uuid import UUID, uuid4

import pytest
from sqlalchemy import text

import tests.support.factories as make
from shared import thread_copies
from shared.deployments.deployments import DeploymentRef
from shared.infra.postgres import connection, dumps
from shared.removal import expiry
from shared.runs import create
from shared.threads import records

DEFAULT = {"strategy": "keep_latest", "default_ttl": 90.0}


@pytest.fixture
def deployment(db: Any) -> DeploymentRef:
    return make.deployment()


def configure(ttl: dict[str, Any] | None) -> None:
    """As if the serving revision's langgraph.json said so."""
    with connection() as conn:
        manifest = dumps({} if ttl is None else {"checkpointer": {"ttl": ttl}})
        conn.execute(text("UPDATE revision SET manifest = CAST(:manifest AS json)"), {"manifest": manifest})


def made_by_run(deployment: DeploymentRef, **fields: Any) -> UUID:
    request = create.RunRequest(assistant_id="agent", if_not_exists="create", **fields)
    with connection() as conn:
        thread_id = None if fields else uuid4()
        return create.create_run(conn, deployment, request, thread_id=thread_id).thread_id


def lives(deployment: DeploymentRef, thread_id: UUID) -> tuple[str, float] | None:
    with connection() as conn:
        shown = expiry.ttl_of(conn, deployment.id, thread_id)
    return None if shown is None else (shown["strategy"], shown["ttl_minutes"])


def test_every_way_to_make_a_thread_gives_it_the_default(deployment: DeploymentRef) -> None:
    configure(DEFAULT)

    with connection() as conn:
        alone = records.create(conn, deployment.id).record["thread_id"]
        copied = thread_copies.copy(conn, deployment.id, alone)["thread_id"]
    by_run, kept = made_by_run(deployment), made_by_run(deployment, on_completion="keep")

    for thread_id in (alone, copied, by_run, kept):
        assert lives(deployment, thread_id) == ("keep_latest", 90.0)
    assert lives(deployment, made_by_run(deployment, on_completion="delete")) is None


@pytest.mark.parametrize("ttl", [None, {"strategy": "delete", "default_ttl": None}])
def test_without_a_default_a_thread_lives_for_ever(deployment: DeploymentRef, ttl: Any) -> None:
    configure(ttl)

    assert lives(deployment, made_by_run(deployment)) is None


def test_what_a_revision_says_changes_nothing_of_the_threads_there_are(deployment: DeploymentRef) -> None:
    before = made_by_run(deployment)
    configure(DEFAULT)
    within = made_by_run(deployment)
    configure({"strategy": "delete", "default_ttl": 1.0})

    assert lives(deployment, before) is None
    assert lives(deployment, within) == ("keep_latest", 90.0)
    assert lives(deployment, made_by_run(deployment)) == ("delete", 1.0)
