"""Crons over HTTP."""

from __future__ import annotations

from datetime import datetime
from typing import Any
from uuid import UUID

from sqlalchemy import text

from shared import assistants
from shared.infra.postgres import connection
from tests.contract.conftest import Api
from tests.contract.statements import execute

FIELDS = [
    "cron_id", "assistant_id", "thread_id", "user_id", "end_time", "schedule", "timezone", "payload",
    "next_run_date", "metadata", "on_run_completed", "enabled", "created_at", "updated_at",
]  # fmt: skip
HOURLY = {"assistant_id": "agent", "schedule": "0 * * * *"}


def new(api: Api, path: str = "/runs/crons", **body: Any) -> dict[str, Any]:
    response = api.post(path, {**HOURLY, **body})
    assert response.status_code == 200, response.text
    return response.json


def test_a_new_cron_is_the_contracts_record(api: Api) -> None:
    cron = new(api, input={"a": 1}, metadata={"m": 1}, stream_mode="updates", end_time="2030-01-01T00:00:00Z")

    assert list(cron) == FIELDS
    assert UUID(cron["cron_id"]).version == 7
    assert cron["assistant_id"] == str(assistants.default_id("agent"))
    assert (cron["thread_id"], cron["timezone"], cron["on_run_completed"]) == (None, None, "delete")
    assert (cron["enabled"], cron["metadata"], cron["user_id"]) == (True, {"m": 1}, "")
    assert "." not in cron["next_run_date"]
    assert cron["payload"]["input"] == {"a": 1}
    assert cron["payload"]["stream_mode"] == ["updates"]
    assert cron["payload"]["config"]["configurable"] == {"cron_id": cron["cron_id"]}
    assert api.get(f"/runs/crons/{cron['cron_id']}").json == cron

    thread_id = api.post("/threads").json["thread_id"]
    cron = new(api, f"/threads/{thread_id}/runs/crons", multitask_strategy="interrupt")
    assert (cron["thread_id"], cron["on_run_completed"]) == (thread_id, None)
    assert cron["payload"]["multitask_strategy"] == "interrupt"


SENT = {
    "assistant_id": "agent", "schedule": "0 9 * * 1", "timezone": "Europe/Berlin",
    "end_time": "2030-01-01T00:00:00+02:00", "enabled": False, "on_run_completed": "keep", "input": {"n": 1},
    "metadata": {"a": 1}, "config": {"configurable": {"k": 1}}, "stream_mode": ["values"],
}  # fmt: skip


def test_its_payload_is_what_was_sent(api: Api) -> None:
    cron = new(api, **SENT)

    configurable = {"k": 1, "cron_id": cron["cron_id"]}
    resolved = {"assistant_id": cron["assistant_id"], "config": {"configurable": configurable}}
    assert cron["payload"] == {**SENT, **resolved}
    assert cron["end_time"] == SENT["end_time"]

    sent = {"end_time": "2031-01-01T00:00", "schedule": "0 8 * * *", "metadata": {"b": 2}, "enabled": True}
    changed = api.patch(f"/runs/crons/{cron['cron_id']}", sent).json
    assert changed["payload"] == {**SENT, **resolved, **sent}
    assert changed["end_time"] == sent["end_time"]
    ended = api.patch(f"/runs/crons/{cron['cron_id']}", {"end_time": None}).json
    assert (ended["end_time"], ended["payload"]["end_time"]) == (None, None)


def test_the_end_of_a_cron_from_before_its_payload_was_kept_whole_is_shown(api: Api) -> None:
    cron = new(api, end_time="2030-01-01T00:00:00Z")
    execute("UPDATE cron SET payload = '{}'")
    shown = api.get(f"/runs/crons/{cron['cron_id']}").json
    assert shown["end_time"] == "2030-01-01T00:00:00+00:00"


def firings(api: Api, cron_id: str, **query: Any) -> Any:
    response = api.get(f"/runs/crons/{cron_id}/firings", query_string=query)
    assert response.status_code == 200, response.text
    return response.json["firings"]


def test_it_shows_when_it_fires_next_and_one_that_is_overdue_fires_now(api: Api, neighbour: Api) -> None:
    cron = new(api, schedule="30 9 * * *", timezone="Europe/Berlin")
    five = firings(api, cron["cron_id"])
    assert len(five) == 5
    assert five[0] == cron["next_run_date"]
    assert five == sorted(five)
    assert all(at.endswith((":30:00+00:00", ":30:00Z")) for at in five)
    assert firings(api, cron["cron_id"], count=2) == five[:2]
    path = f"/runs/crons/{cron['cron_id']}"
    api.patch(path, {"end_time": five[2]})
    assert firings(api, cron["cron_id"]) == five[:3]
    api.patch(path, {"enabled": False})
    assert firings(api, cron["cron_id"]) == []
    assert neighbour.get(f"{path}/firings").status_code == 404
    refused = api.get(f"{path}/firings?count=0")
    assert (refused.status_code, refused.json["detail"].partition(":")[0]) == (422, "count")

    cron = new(api)
    with connection() as conn:
        conn.execute(text("UPDATE cron SET next_run_date = now() - interval '3 hours'"))
        now = conn.execute(text("SELECT now()")).scalar_one()
    first, second = (datetime.fromisoformat(at) for at in firings(api, cron["cron_id"], count=2))
    assert now <= first < second
    assert second.minute == 0


def test_a_change_merges_metadata_and_begins_a_new_schedule_from_now(api: Api) -> None:
    cron = new(api, metadata={"a": 1, "b": 1}, end_time="2030-01-01T00:00:00", input={"x": 1})

    changed = api.patch(
        f"/runs/crons/{cron['cron_id']}",
        {
            "metadata": {"b": 2},
            "end_time": None,
            "schedule": "0 0 1 1 *",
            "timezone": "Asia/Tokyo",
            "enabled": False,
        },
    ).json

    assert changed["metadata"] == {"a": 1, "b": 2}
    assert changed["payload"]["metadata"] == {"b": 2}
    assert changed["payload"]["input"] == {"x": 1}
    assert (changed["end_time"], changed["enabled"]) == (None, False)
    assert changed["next_run_date"].endswith("-12-31T15:00:00+00:00")
    assert changed["updated_at"] > cron["updated_at"]


def test_search_and_count_filter_page_and_select(api: Api) -> None:
    thread_id = api.post("/threads").json["thread_id"]
    first = new(api, metadata={"n": 1})
    second = new(api, f"/threads/{thread_id}/runs/crons", enabled=False)
    other = new(api, assistant_id="other")

    def found(**body: Any) -> list[str]:
        return [cron["cron_id"] for cron in api.post("/runs/crons/search", body).json]

    assert found() == [other["cron_id"], second["cron_id"], first["cron_id"]]
    assert found(sort_by="created_at", sort_order="asc", limit=2) == [first["cron_id"], second["cron_id"]]
    assert found(enabled=False) == found(thread_id=thread_id) == [second["cron_id"]]
    assert found(assistant_id=other["assistant_id"]) == [other["cron_id"]]
    assert found(metadata={"n": 1}) == [first["cron_id"]]
    page = api.post("/runs/crons/search", {"limit": 1, "select": ["cron_id", "now"]})
    assert page.json == [{"cron_id": other["cron_id"]}]
    assert (page.headers["X-Pagination-Total"], page.headers["X-Pagination-Next"]) == ("3", "1")
    assert api.post("/runs/crons/count", {"assistant_id": first["assistant_id"]}).json == 2


def test_a_deleted_cron_is_gone(api: Api) -> None:
    cron_id = new(api)["cron_id"]
    assert api.delete(f"/runs/crons/{cron_id}").status_code == 204
    for response in (api.delete(f"/runs/crons/{cron_id}"), api.get(f"/runs/crons/{cron_id}")):
        assert (response.status_code, response.json) == (404, {"detail": "Not Found"})


def test_a_schedule_that_is_due_too_often_is_refused_unless_the_operator_allows_it(api: Api) -> None:
    cron_id = new(api)["cron_id"]
    often = {"schedule": "* * * * * */2"}
    refused = api.patch(f"/runs/crons/{cron_id}", often)
    assert refused.status_code == 422
    assert "the last one is seconds" in refused.json["detail"]

    api.set(min_cron_seconds=2.0)

    assert api.patch(f"/runs/crons/{cron_id}", often).json["schedule"] == often["schedule"]
    api.set(min_cron_seconds=10.0)
    zone = api.patch(f"/runs/crons/{cron_id}", {"timezone": "Asia/Tokyo"})
    assert zone.status_code == 200, "what was allowed once is not looked at again"
