"""API calls and queries that tests of runs share."""

from __future__ import annotations

from typing import Any

from tests.contract.conftest import Api

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
