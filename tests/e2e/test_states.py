"""State, history and updates with the unmodified Python client against the whole platform."""

from __future__ import annotations

import pytest
from langgraph_sdk.client import SyncLangGraphClient
from langgraph_sdk.errors import BadRequestError, ConflictError

from tests.support.waiting import wait_until


def test_history_state_and_fork(sdk: SyncLangGraphClient) -> None:
    thread_id = sdk.threads.create()["thread_id"]
    sdk.runs.wait(thread_id, "asks", input={"text": "a"})

    history = sdk.threads.get_history(thread_id)
    assert [state["next"] for state in history] == [["ask"], ["before"], ["__start__"]]
    assert history[0] == sdk.threads.get_state(thread_id), "the stored state is what the graph says"
    second = history[1]["checkpoint"]
    assert sdk.threads.get_history(thread_id, before=second["checkpoint_id"]) == history[2:]
    assert sdk.threads.get_state(thread_id, checkpoint=second) == history[1]
    assert sdk.threads.get_state(thread_id, checkpoint_id=second["checkpoint_id"]) == history[1]

    forked = sdk.threads.update_state(
        thread_id, {"log": ["mine"]}, as_node="before", checkpoint_id=second["checkpoint_id"]
    )

    state = sdk.threads.get_state(thread_id)
    assert state["checkpoint"]["checkpoint_id"] == forked["checkpoint"]["checkpoint_id"]
    assert (state["values"]["log"], state["next"]) == (["mine"], ["ask"])
    assert sdk.threads.get(thread_id)["status"] == "interrupted"
    assert sdk.runs.wait(thread_id, "asks", command={"resume": "yes"})["log"] == ["mine", "yes", "after"]


def test_a_running_run_shows_its_last_checkpoint_and_refuses_updates(sdk: SyncLangGraphClient) -> None:
    thread_id = sdk.threads.create()["thread_id"]
    run = sdk.runs.create(thread_id, "counts", input={"n": 40, "seconds": 0.1})

    wait_until(lambda: (sdk.threads.get_state(thread_id)["values"] or {}).get("log"), 20)

    state = sdk.threads.get_state(thread_id)
    assert state["next"] == ["count"]
    with pytest.raises(ConflictError, match="in-flight runs"):
        sdk.threads.update_state(thread_id, {"log": ["no"]})
    sdk.runs.cancel(thread_id, run["run_id"], wait=True)
    assert sdk.threads.get_state(thread_id)["values"]["log"] == list(
        range(len(sdk.threads.get_state(thread_id)["values"]["log"]))
    )


def test_a_thread_is_built_copied_and_refused(sdk: SyncLangGraphClient) -> None:
    steps = [
        {"updates": [{"values": {"text": "a", "log": [0]}, "as_node": "__start__"}]},
        {"updates": [{"values": {"log": [1]}, "as_node": "before"}]},
    ]
    thread = sdk.threads.create(graph_id="asks", supersteps=steps)
    assert (thread["values"]["log"], thread["status"]) == ([0, 1], "interrupted")

    copy = sdk.threads.copy(thread["thread_id"])

    assert copy["thread_id"] != thread["thread_id"]
    ids = [
        [state["checkpoint_id"] for state in sdk.threads.get_history(id)]
        for id in (thread["thread_id"], copy["thread_id"])
    ]
    assert ids[0] == ids[1]
    with pytest.raises(BadRequestError, match="Node nope does not exist"):
        sdk.threads.update_state(copy["thread_id"], {"log": [2]}, as_node="nope")
    sdk.threads.update_state(copy["thread_id"], {"log": [2]}, as_node="ask")
    assert sdk.threads.get_state(copy["thread_id"])["values"]["log"] == [0, 1, 2]
    assert sdk.threads.get_state(thread["thread_id"])["values"]["log"] == [0, 1]
    assert sdk.threads.prune([copy["thread_id"]], strategy="keep_latest") == {"pruned_count": 1}
    assert len(sdk.threads.get_history(copy["thread_id"])) == 1
