"""Webhooks over HTTP: the URLs that a run or cron may name, and their storage."""

from __future__ import annotations

from typing import Any

from sqlalchemy import text

from shared.infra.postgres import connection, dumps
from tests.contract.conftest import Api
from tests.contract.statements import scalar
from tests.support.creating import fire_due_crons

LOOPBACK = "https://127.0.0.1/hook"
BLOCKED = {"detail": "Webhook host blocked: loopback IP range"}
HOOK = "http://127.0.0.1:8080/hook"


def named(api: Api, url: Any) -> list[tuple[str, Any]]:
    """Return `(path, body)` of every call that accepts a webhook."""
    thread_id = api.post("/threads").json["thread_id"]
    run = {"assistant_id": "agent", "webhook": url}
    cron = {**run, "schedule": "0 * * * *"}
    calls = [(path + kind, run) for path in ("", f"/threads/{thread_id}") for kind in ("/runs", "/runs/wait")]
    calls += [(path + "/runs/stream", run) for path in ("", f"/threads/{thread_id}")]
    calls += [("/runs/crons", cron), (f"/threads/{thread_id}/runs/crons", cron)]
    return [*calls, ("/runs/batch", [{"assistant_id": "agent"}, run])]


def test_an_address_that_may_not_be_called_is_422_wherever_it_is_named(api: Api) -> None:
    for path, body in named(api, LOOPBACK):
        response = api.post(path, body)
        assert (response.status_code, response.json) == (422, BLOCKED), path
    cron = api.post("/runs/crons", {"assistant_id": "agent", "schedule": "0 * * * *"}).json
    response = api.patch(f"/runs/crons/{cron['cron_id']}", {"webhook": LOOPBACK})
    assert (response.status_code, response.json) == (422, BLOCKED)
    assert scalar("SELECT count(*) FROM run") == 0


def test_a_path_is_kept_as_it_was_sent_where_the_project_lets_webhooks_lead_back(
    api: Api, lenient: None
) -> None:
    with connection() as conn:
        manifest = {"webhooks": {"url": {"disable_loopback": False}}}
        conn.execute(text("UPDATE revision SET manifest = CAST(:m AS json)"), {"m": dumps(manifest)})
    api.set(url="http://127.0.0.1:8123")
    for path, body in named(api, "/hook"):
        response = api.post(path, body, buffered=False)
        assert response.status_code == 200, path
        response.close()
    with connection() as conn:
        kept = conn.execute(text("SELECT DISTINCT webhook FROM run WHERE webhook IS NOT NULL")).scalars()
        assert list(kept) == ["/hook"]
    api.set(url="http://10.0.0.1")
    refused = api.post("/runs", {"assistant_id": "agent", "webhook": "/hook"})
    assert refused.json == {"detail": "Webhook host blocked: private or reserved IP range"}


def test_the_runs_of_a_cron_have_its_webhook(api: Api, lenient: None) -> None:
    body = {"assistant_id": "agent", "schedule": "0 * * * *"}
    cron = api.post("/runs/crons", {**body, "webhook": HOOK}).json
    assert cron["payload"]["webhook"] == HOOK
    path = f"/runs/crons/{cron['cron_id']}"
    make_due = text("UPDATE cron SET next_run_date = now() - interval '1 second'")
    for change, expected in (({}, HOOK), ({"webhook": None}, None)):
        if change:
            assert api.patch(path, change).json["payload"]["webhook"] is None
        with connection() as conn:
            conn.execute(make_due)
        [fired] = fire_due_crons()
        with connection() as conn:
            query = text("SELECT webhook FROM run WHERE run_id = :id")
            assert conn.execute(query, {"id": fired.run_id}).scalar_one() == expected
