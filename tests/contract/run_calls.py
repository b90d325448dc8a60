"""API calls and queries that tests of runs share."""

from __future__ import annotations

from typing import Any

from shared.models import RunStatus, ThreadStatus
from tests.contract.conftest import Api
from tests.support import factories as make
from tests.support.acting import Actor

BOOM = {"error": "ValueError", "message": "boom"}
LOST = {"error": "TimeoutError", "message": "too slow"}
STOPPED = {"error": "UserInterrupt", "message": "enough"}
ENDS = {"error": BOOM, "timeout": LOST, "interrupted": STOPPED}
MISSING = "00000000-0000-0000-0000-00000000dead"


def start(api: Api, thread_id: str, **body: Any) -> dict[str, Any]:
    response = api.post(f"/threads/{thread_id}/runs", {"assistant_id": "agent", **body})
    assert response.status_code == 200, response.text
    return response.json


def status_of(api: Api, run: dict[str, Any]) -> str | None:
    response = api.get(f"/threads/{run['thread_id']}/runs/{run['run_id']}")
    return None if response.status_code == 404 else response.json["status"]


def thread(api: Api, thread_id: str) -> dict[str, Any]:
    return api.get(f"/threads/{thread_id}").json


def started(api: Api, thread_id: str, **body: Any) -> Actor:
    response = api.post(f"/threads/{thread_id}/runs", {"assistant_id": "agent", **body})
    assert response.status_code == 200, response.text
    return Actor(response.json["run_id"])


def ended(api: Api, thread_id: str, *reached: str, status: str = "error", **body: Any) -> str:
    """Execute a run that writes these checkpoints and ends with this status. Returns its id."""
    actor = started(api, thread_id, **body)
    for checkpoint_id in reached:
        make.stored(actor.run, checkpoint_id)
    thread_status = {"success": ThreadStatus.IDLE, "interrupted": ThreadStatus.INTERRUPTED}.get(status)
    actor.finish(
        {"n": 1},
        status=RunStatus(status),
        thread_status=thread_status or ThreadStatus.ERROR,
        error=ENDS.get(status),
    )
    return str(actor.run.run_id)
