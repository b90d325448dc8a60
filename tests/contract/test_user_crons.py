"""Crons of users: the user that a cron fires for, and the authorization of its runs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from uuid import UUID

import orjson
import pytest
from langgraph_sdk import Auth
from sqlalchemy import text, update

from shared.crons import firing
from shared.errors import HostDied, Unanswered, Unavailable
from shared.infra import encryption
from shared.infra.postgres import connection
from shared.models import DEPLOYMENT
from tests.contract.conftest import Users
from tests.contract.statements import execute, one, scalar
from tests.support import factories as make
from tests.support.creating import SETTINGS, fire_due_crons
from tests.support.user_code import Context, owner_only, user
from workers.upkeep.upkeep import DueCrons

HOURLY = {"assistant_id": "agent", "schedule": "0 * * * *", "metadata": {"a": 1}, "input": {"n": 1}}


@pytest.fixture(autouse=True)
def by_owner(users: Users, own_key: None) -> None:
    users.played.on(owner_only)
    users.played.users["ann"] = user("ann", team="red")


def due(users: Users, path: str = "/runs/crons", **body: Any) -> Any:
    """Create a cron of ann's that is due now. Returns its id."""
    response: Any = users.ann.post(path, {**HOURLY, **body})
    assert response.status_code == 200, response.text
    execute("UPDATE cron SET next_run_date = now() - interval '1 minute'")
    users.played.forget()
    return response.json["cron_id"]


def fire(users: Users) -> list[UUID]:
    """Run one complete round of upkeep. Returns the ids of the created runs."""
    before = {run["run_id"] for run in runs()}
    round = DueCrons(SETTINGS)
    round.fire()
    round.join()
    return [run["run_id"] for run in runs() if run["run_id"] not in before]


def runs() -> list[Any]:
    with connection() as conn:
        return list(conn.execute(text("SELECT * FROM run ORDER BY created_at")).mappings())


def is_due() -> bool:
    return scalar("SELECT next_run_date <= now() FROM cron")


def test_it_fires_for_its_user_whole_who_is_kept_encrypted(users: Users) -> None:
    cron_id = due(users)
    row = one("SELECT user_id, auth_user FROM cron")
    assert row.user_id == "ann"
    assert b"red" not in bytes(row.auth_user)
    assert orjson.loads(encryption.decrypt(row.auth_user)) == user("ann", team="red")

    (fired,) = fire(users)

    assert users.played.pairs() == [("threads", "create_run")]
    value = users.played.value("threads", "create_run")
    assert value["thread_id"] is None
    assert value["metadata"] == {"a": 1, "owner": "ann", "cron_id": str(cron_id)}
    assert users.played.authenticated == []  # no authentication takes place
    (run,) = runs()
    assert run["run_id"] == fired
    configurable = run["kwargs"]["config"]["configurable"]
    assert configurable["langgraph_auth_user"] == user("ann", team="red")
    assert (configurable["langgraph_auth_user_id"], configurable["cron_id"]) == ("ann", cron_id)
    assert run["metadata"]["owner"] == "ann"
    assert fire(users) == []


def test_what_the_handler_changes_is_in_the_run(users: Users) -> None:
    due(users)

    def handler(ctx: Context, value: dict[str, Any]) -> None:
        value["metadata"]["stamped"] = True
        value["kwargs"]["input"] = {"n": 2}

    users.played.on(handler)
    fire(users)
    (run,) = runs()
    assert (run["input"], run["metadata"]["stamped"]) == ({"n": 2}, True)


def test_a_handler_that_refuses_stops_it_and_the_log_says_so(users: Users) -> None:
    cron_id = due(users)

    def refuse(ctx: Context, value: dict[str, Any]) -> Any:
        raise Auth.exceptions.HTTPException(status_code=403, detail="not at night")

    users.played.on(refuse)
    assert fire(users) == []
    assert runs() == []
    assert not is_due()
    assert users.last_line() == f"cron {cron_id}: skipped this run: not at night"


def test_a_host_that_is_down_delays_it(users: Users) -> None:
    cron_id = due(users)
    for error in (Unanswered(), Unavailable("no host"), HostDied("SIGKILL")):

        def fail(document: Mapping[str, Any], error: Exception = error) -> bytes:
            raise error

        users.played.answer = fail
        with pytest.raises((Unanswered, Unavailable)):
            firing.fire(cron_id, SETTINGS, guarded=True)
        assert fire(users) == [], error
        assert (runs(), is_due()) == ([], True), error
    users.played.answer = None
    assert len(fire(users)) == 1


def test_one_that_was_not_answered_is_not_asked_about_again_at_once(users: Users) -> None:
    due(users)

    def fail(document: Mapping[str, Any]) -> bytes:
        raise Unanswered

    users.played.answer = fail
    crons = DueCrons(SETTINGS)
    users.played.forget()
    for _ in range(3):
        crons.fire()
        crons.join()
    assert len(users.played.calls) == 1


def test_a_thread_that_is_not_its_users_any_more_gets_no_run(users: Users) -> None:
    thread: Any = users.ann.post("/threads").json
    due(users, f"/threads/{thread['thread_id']}/runs/crons")
    execute("""UPDATE thread SET metadata = '{"owner": "bob"}'""")
    assert fire(users) == []
    assert runs() == []
    assert "not found" in users.last_line()


def test_an_assistant_that_is_not_its_users_any_more_gets_no_run(users: Users) -> None:
    assistant: Any = users.ann.post("/assistants", {"graph_id": "agent"}).json
    due(users, assistant_id=assistant["assistant_id"])
    execute("""UPDATE assistant_version SET metadata = '{"owner": "bob"}'""")
    assert fire(users) == []
    assert users.played.pairs() == [("threads", "create_run"), ("assistants", "read")]
    assert runs() == []


def test_a_cron_that_changes_while_it_is_asked_about_is_asked_about_again(users: Users) -> None:
    cron_id = due(users)

    def slow(ctx: Context, value: dict[str, Any]) -> Any:
        execute("""UPDATE cron SET metadata = '{"owner": "ann", "b": 2}'""")
        return owner_only(ctx, value)

    users.played.on(slow)
    assert firing.fire(cron_id, SETTINGS, guarded=True) is None
    users.played.on(owner_only)
    assert len(fire(users)) == 1
    assert runs()[0]["metadata"]["b"] == 2


def test_a_cron_from_before_there_were_users_fires_for_nobody(users: Users) -> None:
    make.cron(users.deployment)
    execute("UPDATE cron SET next_run_date = now() - interval '1 minute'")
    users.played.forget()
    assert fire(users) == []
    assert (runs(), users.played.calls) == ([], [])
    assert "has no user" in users.last_line()


def test_without_an_authorization_it_fires_unasked(users: Users) -> None:
    due(users)
    plain = make.revision(users.deployment.id, number=2, graphs=("agent",))
    with connection() as conn:
        conn.execute(update(DEPLOYMENT).values(active_revision_id=plain))
    assert len(fire_due_crons()) == 1
    assert runs()[0]["kwargs"]["config"]["configurable"]["langgraph_auth_user"] is None
