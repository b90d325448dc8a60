"""The authenticated user as a project's graphs see it."""

from __future__ import annotations

import copy
import json
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.hosts import Checkpointed, HostProcess, graph_host
from workers.graph_host.project.users import User, user_of

ANN = {
    "identity": "ann",
    "is_authenticated": True,
    "display_name": "Ann",
    "permissions": ["read"],
    "token": "a-secret-of-anns",
}
AUTH = {
    "langgraph_auth_user": ANN,
    "langgraph_auth_user_id": "ann",
    "langgraph_auth_permissions": ["read"],
    "graph_id": "looks",
    "assistant_id": "a1",
}
PROJECT = """
from typing import TypedDict
from langchain_core.runnables import RunnableConfig
from langgraph.graph import StateGraph
from langgraph.runtime import Runtime
from langgraph_sdk import Auth
from langgraph_sdk.runtime import ServerRuntime

class S(TypedDict, total=False):
    seen: dict

async def look(state: S, config: RunnableConfig, runtime: Runtime):
    own, info = config["configurable"], runtime.server_info
    user = own["langgraph_auth_user"]
    seen = {"id": own["langgraph_auth_user_id"], "permissions": own["langgraph_auth_permissions"],
            "info": [info.assistant_id, info.graph_id, info.user and info.user.identity]}
    if user is not None:
        seen |= {"user": [user.identity, user["token"], user.get("none"), "token" in user, sorted(user), user.token],
                 "is_base": isinstance(user, Auth.types.BaseUser), "whole": user}
    return {"seen": seen}

def say(state: S, config: RunnableConfig):
    return {"seen": {"identity": config["configurable"]["langgraph_auth_user"].identity}}

quiet = StateGraph(S).add_node("say", say).set_entry_point("say").compile()
builder = StateGraph(S).add_node("look", look).set_entry_point("look")
looks = builder.compile()
opened = []

def make(runtime: ServerRuntime):
    is_run = runtime.execution_runtime is not None
    opened.append([runtime.access_context, is_run, runtime.user and runtime.user.identity, runtime.user and runtime.user["token"]])
    def answer(state: S):
        return {"seen": {"opened": list(opened), "sure": runtime.ensure_user().identity}}
    return StateGraph(S).add_node("answer", answer).set_entry_point("answer")
"""
GRAPHS = {"looks": "./users.py:looks", "made": "./users.py:make", "quiet": "./users.py:quiet"}


@pytest.fixture(scope="module")
def users(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HostProcess]:
    directory = tmp_path_factory.mktemp("users")
    Path(directory, "users.py").write_text(PROJECT)
    with graph_host(directory, GRAPHS) as host:
        yield host


def test_a_node_sees_the_user(users: HostProcess) -> None:
    seen = users.run("looks", {}, config={"configurable": AUTH}).values["seen"]

    assert seen == {
        "id": "ann",
        "permissions": ["read"],
        "info": ["a1", "looks", "ann"],
        "user": ["ann", "a-secret-of-anns", None, True, sorted(ANN), "a-secret-of-anns"],
        "is_base": True,
        "whole": ANN,
    }

    nobody = {"langgraph_auth_user": None, "langgraph_auth_user_id": "", "langgraph_auth_permissions": []}
    configurable = {**AUTH, **nobody}

    unseen = users.run("looks", {}, config={"configurable": configurable}).values["seen"]

    assert unseen == {"id": "", "permissions": [], "info": ["a1", "looks", None]}


def test_a_factory_sees_the_user_for_runs_states_and_updates(users: HostProcess) -> None:
    thread = Checkpointed(users)
    asked = {"config": {"configurable": AUTH}}

    thread.run("made", {}, **asked)
    thread.query("state", "made", **asked)
    thread.query("update", "made", supersteps=[[{"values": {}, "as_node": "answer"}]], **asked)
    seen = thread.run("made", {}, **asked).values["seen"]

    assert seen["sure"] == "ann"
    assert seen["opened"] == [
        [access, access == "threads.create_run", "ann", "a-secret-of-anns"]
        for access in ("threads.create_run", "threads.read", "threads.update", "threads.create_run")
    ]

    assert users.run("made", {}).answer["__error__"]["error"] == "PermissionError"


def test_no_checkpoint_and_no_event_has_what_the_user_keeps(users: HostProcess) -> None:
    thread = Checkpointed(users)
    run = thread.run(
        "quiet",
        {},
        config={"configurable": AUTH},
        stream_mode=["values", "updates", "checkpoints", "debug", "tasks", "events", "protocol"],
    )

    assert run.values == {"seen": {"identity": "ann"}}
    assert "checkpoints" in run.names
    assert "a-secret-of-anns" not in json.dumps(run.events)
    assert "a-secret-of-anns" not in json.dumps(run.outcome)
    assert not any(b"a-secret" in blob for _, _, blobs in thread.stored for blob in blobs)
    headers = json.dumps([header for _, header, _ in thread.stored])
    assert "a-secret" not in headers
    assert '"langgraph_auth_user_id": "ann"' in headers


def test_a_user_outlives_copies_and_is_never_shown_whole() -> None:
    user = user_of(ANN)

    for other in (copy.copy(user), copy.deepcopy(user), pickle.loads(pickle.dumps(user))):
        assert isinstance(other, User)
        assert dict(other) == ANN
    assert repr(user) == "User('ann')"
    assert user.dict() == user.model_dump(mode="json") == {**user} == ANN
    assert (user == ANN, {user: 1}[user]) == (True, 1)

    lacking: Any = user_of({"identity": "ann"})

    assert (lacking.display_name, lacking.is_authenticated, lacking.permissions) == ("ann", True, [])
    with pytest.raises(AttributeError):
        _ = lacking.token
    with pytest.raises(KeyError):
        _ = lacking["token"]


def test_what_is_in_a_mapping_of_a_user_is_an_attribute_too() -> None:
    team = {"name": "red", "lead": {"id": 7}}
    user: Any = user_of({"identity": "ann", "team": team})

    assert (user.team.name, user.team.lead.id, user["team"]["lead"]["id"]) == ("red", 7, 7)
    assert user.team == team
    for other in (
        copy.deepcopy(user.team),
        pickle.loads(pickle.dumps(user.team)),
        json.loads(json.dumps(user.team)),
    ):
        assert other == team
    with pytest.raises(AttributeError):
        _ = user.team.size
    user.team["name"] = "blue"
    assert user.team.name == "red"
