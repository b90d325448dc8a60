"""Precedence of `configurable`: the values that a run receives and those that its thread keeps."""

from __future__ import annotations

from typing import Any

import pytest

from shared import assistants
from tests.contract.conftest import Api
from tests.contract.run_calls import start
from tests.contract.test_states import Runner, runner
from tests.support.acting import act

__all__ = ["runner"]

AGENT = str(assistants.default_id("agent"))
IDS = ("run_id", "thread_id", "graph_id", "assistant_id", "langgraph_request_id")
AUTH = ("langgraph_auth_user", "langgraph_auth_user_id", "langgraph_auth_permissions", "langgraph_auth_scope")


def assistant(api: Api, **body: Any) -> str:
    response = api.post("/assistants", {"graph_id": "agent", **body})
    assert response.status_code == 200, response.text
    return str(response.json["assistant_id"])


def configurable(run: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = run["kwargs"]["config"]["configurable"]
    return found


def test_whom_a_run_acts_for_is_set_by_its_caller(api: Api, thread_id: str) -> None:
    own = assistant(api, context={"user_id": "everybody"})
    for sent in ({"context": {"user_id": "ann"}}, {"config": {"configurable": {"user_id": "ann"}}}):
        assert configurable(start(api, thread_id, assistant_id=own, **sent))["user_id"] == "ann", sent
    assert configurable(start(api, thread_id, assistant_id=own))["user_id"] == "everybody"
    assert configurable(start(api, thread_id))["user_id"] == ""
    forged = {"assistant_id": "forged"}
    run = start(api, thread_id, metadata=forged, config={"metadata": forged})
    assert run["metadata"]["assistant_id"] == AGENT, "it is its assistant's whatever its metadata says"


@pytest.mark.parametrize("where", ["context", "config", "assistant"])
def test_what_the_service_and_the_graph_library_say_no_caller_says(
    api: Api, thread_id: str, where: str
) -> None:
    forged = {**dict.fromkeys((*IDS, *AUTH), "forged"), "cron_id": "own"}
    entries = {**forged, "__pregel_checkpointer": None, "__pregel_resuming": True, "__own": 1}
    body: dict[str, Any] = (
        {"config": {"configurable": entries}} if where == "config" else {"context": entries}
    )
    if where == "assistant":
        body = {"assistant_id": assistant(api, **body)}

    run = start(api, thread_id, **body)

    found = configurable(run)
    assert "forged" not in found.values()
    assert (found["run_id"], found["thread_id"]) == (run["run_id"], thread_id)
    assert (found["langgraph_auth_user"], found["langgraph_auth_user_id"]) == (None, "")
    assert "langgraph_auth_scope" not in found
    assert found["cron_id"] == "own"
    assert [name for name in found if name.startswith("__")] == ["__own"]
    assert run["kwargs"]["context"] == {**dict.fromkeys(IDS, "forged"), "cron_id": "own", "__own": 1}


def test_a_thread_keeps_its_assistants_part_of_the_config(api: Api, thread_id: str) -> None:
    config = {"tags": ["a"], "recursion_limit": 5, "configurable": {"node": "special", AUTH[0]: "forged"}}
    own = assistant(api, config=config)
    body = {"context": {"node": "mine", "word": "own"}, "config": {"tags": ["b"], "own": 1}}
    kept = {"tags": ["b"], "recursion_limit": 5, "own": 1, "configurable": {"node": "special"}}

    run = start(api, thread_id, assistant_id=own, **body)
    while_it_runs = api.get(f"/threads/{thread_id}").json["config"]
    act(run["run_id"], {})

    assert while_it_runs == api.get(f"/threads/{thread_id}").json["config"] == kept
    act(start(api, thread_id)["run_id"], {})
    assert api.get(f"/threads/{thread_id}").json["config"] == {"configurable": {}}


def test_a_thread_gets_the_config_of_the_run_that_makes_it_and_keeps_its_metadata_but_no_ids(
    api: Api, thread_id: str
) -> None:
    own = assistant(api, context={"node": "special"})
    made = "00000000-0000-0000-0000-000000000001"
    start(api, made, assistant_id=own, if_not_exists="create")
    assert api.get(f"/threads/{made}").json["config"] == {"configurable": {"node": "special"}}

    start(api, thread_id, config={"metadata": {"topic": "a", "run_id": "x", "thread_id": "x"}})
    assert api.get(f"/threads/{thread_id}").json["config"] == {
        "configurable": {},
        "metadata": {"topic": "a"},
    }


def test_a_rollback_gives_the_config_back(api: Api) -> None:
    for action in ("rollback", "interrupt"):
        thread_id = api.post("/threads").json["thread_id"]
        act(start(api, thread_id, config={"tags": ["first"]})["run_id"], {})
        run = start(api, thread_id, assistant_id=assistant(api, context={"node": "x\0y"}))

        api.post(f"/threads/{thread_id}/runs/{run['run_id']}/cancel?action={action}")

        is_back = api.get(f"/threads/{thread_id}").json["config"] == {"tags": ["first"], "configurable": {}}
        assert (action, is_back) == (action, action == "rollback")


def test_the_graph_of_a_threads_state_is_made_as_for_its_runs(
    api: Api, thread_id: str, runner: Runner
) -> None:
    own = assistant(api, context={"node": "special", "user_id": "ann"})
    act(start(api, thread_id, assistant_id=own)["run_id"], {})

    api.post(f"/threads/{thread_id}/history", {})

    ids = {"thread_id": thread_id, "graph_id": "agent", "assistant_id": own}
    nobody = {"langgraph_auth_user": None, "langgraph_auth_user_id": "", "langgraph_auth_permissions": []}
    assert runner.asked[0].document["config"] == {
        "configurable": {"node": "special", "user_id": "ann", **ids, **nobody}
    }
