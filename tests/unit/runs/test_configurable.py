"""The caller's identity in the `configurable` of runs and of thread state requests."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import Engine

import tests.support.factories as make
from shared.infra.postgres import connection
from shared.runs import configurable
from shared.runs.drafts import RunRequest
from tests.support.creating import insert_run

ANN = {"identity": "ann", "permissions": ["read"], "is_authenticated": True, "team": "blue"}


def frozen(**asked: Any) -> dict[str, Any]:
    """Create a run with these request fields and return its `configurable`."""
    user = asked.pop("user", None)
    with connection() as conn:
        created = insert_run(
            conn, make.deployment(), RunRequest(assistant_id="agent", **asked), thread_id=None, user=user
        )
    found: dict[str, Any] = created.row["kwargs"]["config"]["configurable"]
    return found


def test_a_run_knows_the_user_who_asked_for_it(db: Engine) -> None:
    found = frozen(user=ANN)
    assert found["langgraph_auth_user"] == ANN
    assert found["langgraph_auth_user_id"] == found["user_id"] == "ann"
    assert found["langgraph_auth_permissions"] == ["read"]

    nobody = frozen()
    assert (nobody["langgraph_auth_user"], nobody["langgraph_auth_user_id"], nobody["user_id"]) == (
        None,
        "",
        "",
    )
    assert nobody["langgraph_auth_permissions"] == []


@pytest.mark.parametrize("where", ["context", "config"])
def test_nobody_names_another_user_but_whom_it_acts_for(db: Engine, where: str) -> None:
    sent = {
        "langgraph_auth_user": {"identity": "bob"},
        "langgraph_auth_user_id": "bob",
        "langgraph_auth_permissions": ["all"],
        "user_id": "bob",
    }
    found = frozen(user=ANN, **{where: sent if where == "context" else {"configurable": sent}})
    assert found["langgraph_auth_user"] == ANN
    assert (found["langgraph_auth_user_id"], found["langgraph_auth_permissions"]) == ("ann", ["read"])
    assert found["user_id"] == "bob"


def test_a_question_about_a_threads_state_knows_its_user() -> None:
    config = {"configurable": {"own": 1, "langgraph_auth_user": "forged"}}
    found = configurable.config_for_state(config, ANN, thread_id="t")["configurable"]
    assert found == {
        "own": 1,
        "thread_id": "t",
        "user_id": "ann",
        "langgraph_auth_user": ANN,
        "langgraph_auth_user_id": "ann",
        "langgraph_auth_permissions": ["read"],
    }
    assert configurable.config_for_state({})["configurable"]["user_id"] == ""
