"""Requests and steps of replays: past runs, turns of upkeep, and the runs of cases."""

from __future__ import annotations

from functools import partial
from typing import Any
from uuid import UUID

from uuid_utils.compat import uuid6
from werkzeug.test import TestResponse

import tests.support.factories as make
from shared.infra.postgres import driver, dumps
from shared.models import RunStatus, ThreadStatus
from shared.runs import finish, limits
from shared.runs.claims import Claimed, Terms
from shared.runs.finish import Finish
from shared.settings import Settings
from tests.contract.conftest import Api, ControlPlane
from tests.contract.run_calls import started
from tests.contract.statements import column, scalar
from workers.upkeep.replays import Turn

NO_CALLS: dict[str, Any] = {"spans": []}
TERMS = Terms("runner", 30, 3600)


def past_run(api: Api, thread_id: str | None = None, **body: Any) -> str:
    """Execute a run with a root checkpoint and without tool calls. Returns its id."""
    thread_id = thread_id or new_thread(api)
    last = column("SELECT max(checkpoint_id) FROM checkpoint WHERE thread_id = :id", id=thread_id)[0]
    actor = started(api, thread_id, **{"input": {"a": 1}, **body})
    checkpoint_id = str(uuid6())
    make.stored(actor.run, checkpoint_id, parent_checkpoint_id=last)
    actor.finish({"a": 1}, state=make.state(thread_id, checkpoint_id), spans=NO_CALLS)
    return str(actor.run.run_id)


def content(response: TestResponse) -> Any:
    return response.json


def new_thread(api: Api) -> str:
    return content(api.post("/threads"))["thread_id"]


def begin(control: ControlPlane, replays: str, **body: Any) -> dict[str, Any]:
    response = control.post(replays, body)
    assert response.status_code == 201, response.text
    return content(response)


def step(settings: Settings, replay: dict[str, Any], times: int = 1) -> None:
    """Execute steps of a replay, as upkeep does."""
    for _ in range(times):
        Turn(UUID(replay["id"]), settings).step()


def claim(replay: dict[str, Any], most: int = 10, *, slots: int = 10) -> list[Claimed]:
    with driver() as conn:
        claimed = limits.claim_of_deployment(
            conn, bench_of(replay), "default", TERMS, most=most, replay_slots=partial(min, slots)
        )
    return [run for run, _ in claimed]


def end(run: Claimed, values: dict[str, Any], status: RunStatus = RunStatus.SUCCESS, **more: Any) -> None:
    state = dumps(make.state(run.thread_id, str(uuid6())))
    ended = Finish(run, status, ThreadStatus.IDLE, values=dumps(values), state=state, interrupts="{}", **more)
    with driver() as conn, conn.transaction():
        assert run.run_id in finish.finish_runs(conn, [ended], owner=TERMS.owner)


def bench_of(replay: dict[str, Any]) -> UUID:
    return scalar("SELECT bench_id FROM replay WHERE id = :id", id=replay["id"])


def cases_of(control: ControlPlane, replays: str, replay: dict[str, Any], **query: Any) -> list[Any]:
    return content(control.get(f"{replays}/{replay['id']}/cases", **query))["resources"]
