"""Webhooks and crons on the whole platform: ended runs are delivered, due crons fire.

Also covers cancelling all runs at once, because this module has a deployment of its own.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from langgraph_sdk.client import SyncLangGraphClient

from tests.support.receiver import Call, Receiver, receiving
from tests.support.stack import Stack
from tests.support.waiting import wait_until

KITCHEN = Path(__file__).parent.parent / "projects" / "kitchen"
SECRET = "a secret of receiver and deployment"


@pytest.fixture(scope="module")
def sdk(stack: Stack, tmp_path_factory: pytest.TempPathFactory) -> SyncLangGraphClient:
    """A client of the `kitchen` project with a webhook signing secret and a header on all deliveries."""
    folder = tmp_path_factory.mktemp("told") / "kitchen"
    shutil.copytree(KITCHEN, folder)
    config = json.loads((folder / "langgraph.json").read_text())
    config["env"] |= {"WEBHOOK_SIGNING_SECRET": SECRET, "LG_WEBHOOK_TOKEN": "t0ken"}
    config["webhooks"] = {"headers": {"Authorization": "Bearer ${{ env.LG_WEBHOOK_TOKEN }}"}}
    (folder / "langgraph.json").write_text(json.dumps(config))
    return stack.sdk(stack.deploy(folder, name="told"))


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with receiving() as receiver:
        yield receiver


def delivered(receiver: Receiver, run: Any) -> Call:
    """Return the first delivery that the receiver gets for a run."""
    return wait_until(lambda: receiver.calls_of(run["run_id"]), 20)[0]


def test_receivers_get_how_runs_end(sdk: SyncLangGraphClient, receiver: Receiver) -> None:
    thread_id = sdk.threads.create()["thread_id"]
    asked: Any = {"webhook": receiver.url}
    done = sdk.runs.create(thread_id, "echo", input={"text": "a"}, **asked)
    gone = sdk.runs.create(None, "echo", input={"text": "b"}, **asked)
    failed = sdk.runs.create(None, "fails", input={"text": "c"}, **asked)

    call = delivered(receiver, done)
    signed = f"{call.id}.{call.headers['Webhook-Timestamp']}.".encode() + call.body
    digest = hmac.digest(SECRET.encode(), signed, hashlib.sha256)
    assert call.headers["Webhook-Signature"] == f"v1,{base64.b64encode(digest).decode()}"
    assert call.headers["Authorization"] == "Bearer t0ken"
    run: Any = sdk.runs.get(thread_id, done["run_id"])
    assert run.pop("attempts") == []  # not in the delivery: attempts name machines of the service
    assert {name: call.document[name] for name in run} == run
    assert call.document["values"] == sdk.threads.get(thread_id)["values"]
    assert (
        delivered(receiver, gone).document["status"],
        delivered(receiver, gone).document["values"]["log"],
    ) == (
        "success",
        ["b"],
    )
    assert delivered(receiver, failed).document["status"] == "error"
    assert delivered(receiver, failed).document["error"]["error"]


@pytest.mark.parametrize(("action", "status"), [("interrupt", "interrupted"), ("rollback", "rollback")])
def test_receivers_get_runs_that_are_cancelled(
    sdk: SyncLangGraphClient, receiver: Receiver, action: Any, status: str
) -> None:
    thread_id = sdk.threads.create()["thread_id"]
    for stateless in (False, True):
        run = sdk.runs.create(
            None if stateless else thread_id,
            "counts",
            input={"n": 600, "seconds": 0.1},
            webhook=receiver.url,
        )
        wait_until(lambda run=run: sdk.runs.get(run["thread_id"], run["run_id"])["status"] == "running", 20)
        sdk.runs.cancel(run["thread_id"], run["run_id"], action=action)

        call = delivered(receiver, run)
        assert call.document["status"] == status
        assert call.document["error"]["error"] == (
            "UserRollback" if status == "rollback" else "UserInterrupt"
        )
        assert call.document["values"] is None or status == "interrupted"


def test_a_cron_runs_when_it_is_due_until_it_is_deleted(sdk: SyncLangGraphClient, receiver: Receiver) -> None:
    thread_id = sdk.threads.create()["thread_id"]
    cron = sdk.crons.create_for_thread(
        thread_id,
        "echo",
        schedule="* * * * * */1",
        input={"text": "tick"},
        webhook=receiver.url,
        metadata={"from": "a cron"},
    )
    wait_until(lambda: len(receiver.calls) >= 2, 30, what="two firings")
    sdk.crons.delete(cron["cron_id"])

    runs = sdk.runs.list(thread_id, limit=100)
    assert {run["metadata"]["from"] for run in runs} == {"a cron"}
    assert {run["kwargs"]["config"]["configurable"]["cron_id"] for run in runs} == {cron["cron_id"]}
    run_ids = [run["run_id"] for run in runs]
    wait_until(lambda: {call.document["run_id"] for call in receiver.calls} == set(run_ids), 20)
    assert sdk.threads.get(thread_id)["values"]["log"] == ["tick"] * len(runs)
    # Compare ids, not records: a run that was due just before the deletion may still have been live above.
    assert [run["run_id"] for run in sdk.runs.list(thread_id, limit=100)] == run_ids, "no cron, no runs"


def test_several_running_runs_are_stopped_at_once(sdk: SyncLangGraphClient) -> None:
    http = sdk.http.client
    bodies = [{"assistant_id": "sleeps", "input": {}, "on_completion": "keep"} for _ in range(3)]
    made = http.post("/runs/batch", json=bodies).json()

    def statuses() -> set[str]:
        return {sdk.runs.get(run["thread_id"], run["run_id"])["status"] for run in made}

    wait_until(lambda: statuses() == {"running"}, timeout=30)
    assert http.post("/runs/cancel", json={"status": "running"}).status_code == 204
    wait_until(lambda: statuses() == {"interrupted"}, timeout=30)
    assert {sdk.threads.get(run["thread_id"])["status"] for run in made} == {"interrupted"}
