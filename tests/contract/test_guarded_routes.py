"""Every route of a deployment with its own authorization calls it. The tests iterate over all of the app's routes.

The calls are in `tests/support/routes.py`; the fixture `anns` fills their path parameters. A route without an
authorization call fails by its status, unless ASK_NOBODY exempts it.
"""

from __future__ import annotations

import re
from typing import Any
from uuid import uuid4

import pytest
from flask import Flask
from werkzeug.test import TestResponse

import tests.support.factories as make
from shared.errors import Unanswered, Unavailable
from shared.models import METADATA, RunStatus
from tests.contract.conftest import Api, ControlPlane, caller
from tests.support.routes import (
    CALLS,
    COMMANDS,
    EVENTS,
    ITEM,
    MOUNT,
    OTHERS,
    Route,
    body_of,
    erased,
    send,
    stored,
)
from tests.support.user_code import PlayedAuth, crash, owner_only, refuse
from web.gate import limits

ASK_NOBODY = {
    ("POST", f"{MOUNT}/ui/<component_set>"),  # for every user
}
A2A = f"{MOUNT}/a2a/<assistant_id>"
SOCKET = ("GET", EVENTS)
# These differ between another user's thread and a missing one, because a client may wait for a missing thread.
WAITS = {("POST", EVENTS), SOCKET}
NOTHING = ("[]", "0")  # results of a search for another user's records
CREATES = ("run.start", "SendMessage")
FOR_KEYS = f"{MOUNT}/runs/bulk"  # users are refused, whatever the handlers answer
ASKS_A_HOST = ("/history", "/state/<checkpoint_id>", "/state/checkpoint", "/subgraphs/<path:namespace>")

Ids = dict[str, str]  # values for every path parameter


@pytest.fixture
def anns(ann: Api, played: PlayedAuth) -> Ids:
    """One record of each kind, owned by ann through its metadata."""
    deployment, owner = ann.deployment, {"owner": "ann"}
    thread_id = make.thread(deployment.id, metadata=owner)
    kwargs = {"resumable": True, "config": {}}
    run_id = make.run(
        deployment, thread_id, status=RunStatus.SUCCESS, kwargs=kwargs, metadata={**owner, "a2a": {}}
    )
    ids = {
        "deployment": deployment.name,
        "thread_id": str(thread_id),
        "run_id": str(run_id),
        "assistant_id": str(make.assistant(deployment.id, metadata=owner)),
        "cron_id": str(make.cron(deployment, metadata=owner)),
        "thread_cron_id": str(make.cron(deployment, thread_id=thread_id, metadata=owner)),
        "delivery_id": str(make.webhook_delivery(deployment, run_id)),
        "operation_id": str(make.bulk_operation(deployment)),
        "checkpoint_id": str(uuid4()),
        "namespace": "any",
        "component_set": "agent",
        "question_id": str(make.question(deployment, thread_id, run_id=run_id)),
    }
    assert (
        ann.call("PUT", "/store/items", {**ITEM, "namespace": ["ann", "any"], "value": {}}).status_code == 204
    )
    played.forget()
    return ids


@pytest.fixture
def nobodys(anns: Ids) -> Ids:
    """Path parameters whose ids belong to no records."""
    return {name: str(uuid4()) if name.endswith("_id") else value for name, value in anns.items()}


CALLED: list[tuple[Route, Any]] = [
    *(
        (route, body_of(route))
        for route in CALLS
        if route[1].startswith(f"{MOUNT}/") and CALLS[route].role != "open"
    ),
    *OTHERS,
]


def ask(who: Api, ids: Ids, route: Route, body: Any) -> TestResponse:
    return send(ControlPlane(who.client), ids, route, body)


def rows() -> dict[str, list[str]]:
    """Return all stored rows except log lines."""
    return stored({table.name: "true" for table in METADATA.sorted_tables if table.name != "log_line"})


def said(response: TestResponse, route: Route) -> int:
    """Return the HTTP status, or the status that corresponds to an error of a protocol."""
    if response.status_code == 200 and route[1] == COMMANDS:
        found: Any = response.json
        return {"permission_denied": 403, "no_such_run": 404}.get(found.get("error"), 200)
    if response.status_code == 200 and route == ("POST", A2A):
        answer: Any = response.json
        error = answer.get("error")
        return 200 if error is None else {-32602: 403, -32001: 404}.get(error["code"], 200)
    return response.status_code


def words(ids: Ids) -> list[str]:
    return [value for name, value in ids.items() if name.endswith("_id")]


def walk(who: Api, ids: Ids, status: int, detail: str | None = None) -> None:
    """Check that every call is refused with this status, discloses nothing and changes nothing."""
    before, wrong = rows(), []
    for route, body in CALLED:
        if route in ASK_NOBODY and status != 401:
            continue
        limits.start_failures(who.client.application)  # reset the count of failed attempts
        response = ask(who, ids, route, body)
        tells = [word for word in (*words(ids), "secret") if word in response.text]
        in_other_words = detail and route[1] not in (COMMANDS, A2A) and response.json != {"detail": detail}
        if said(response, route) != status or tells or in_other_words:
            wrong.append((route, body, response.status_code, response.text[:200], tells))
    assert not wrong, "\n".join(map(str, wrong))
    assert rows() == before


def test_a_handler_that_refuses_everything_refuses_everything(
    ann: Api, anns: Ids, nobodys: Ids, played: PlayedAuth
) -> None:
    played.on(refuse)
    walk(ann, anns, 403, "Forbidden")
    walk(ann, nobodys, 403, "Forbidden")


def test_a_handler_that_fails_refuses_everything(ann: Api, anns: Ids, played: PlayedAuth) -> None:
    played.on(crash)
    walk(ann, anns, 500, "Internal Server Error")


def test_an_invalid_filter_refuses_everything(ann: Api, anns: Ids, played: PlayedAuth) -> None:
    played.on(lambda ctx, value: {"owner": {"$ne": "bob"}})
    walk(ann, anns, 500, "Internal Server Error")


def test_no_answer_is_a_refusal(ann: Api, anns: Ids, played: PlayedAuth) -> None:
    played.failure = Unavailable("no host")
    assert ann.get(f"/threads/{anns['thread_id']}").status_code == 503
    played.failure = Unanswered("too late")
    walk(ann, anns, 504)


def test_who_is_nobody_gets_nothing(app: Flask, ann: Api, anns: Ids) -> None:
    for client in (
        app.test_client(),
        caller(app, "ryd_00000000_unknown"),
    ):  # the authorization does not know platform keys
        walk(Api(client, ann.deployment), anns, 401, "who are you?")


def test_what_a_stranger_has_looks_like_what_nobody_has(
    ann: Api, bob: Api, anns: Ids, nobodys: Ids, played: PlayedAuth
) -> None:
    played.on(owner_only)
    wrong, before = [], of_ann()
    for route, body in CALLED:
        query = CALLS[route].query if route in CALLS else {}
        if not re.search(r"<(?!deployment>)", route[1] + str(body) + str(query)):
            continue
        answers = []
        for ids in (anns, nobodys):
            response = ask(bob, ids, route, body)
            is_whole = said(response, route) >= 400 or response.content_type == "application/json"
            answers.append((said(response, route), erased(response.text, ids) if is_whole else ""))
            response.close()
        hers, theirs = answers
        creates = isinstance(body, dict) and body.get("method") in CREATES
        is_told_apart = hers[0] != 404 if route in WAITS or creates else hers != theirs
        shows = hers[0] < 400 and not creates and route not in WAITS and hers[1].strip() not in NOTHING
        if is_told_apart or shows:
            wrong.append((route, body, answers))
    assert not wrong, "\n".join(map(str, wrong))
    assert of_ann() == before


def of_ann() -> dict[str, list[str]]:
    return {name: [row for row in found if '"ann"' in row] for name, found in rows().items()}


def test_lists_hold_nothing_of_a_strangers(ann: Api, bob: Api, anns: Ids, played: PlayedAuth) -> None:
    played.on(owner_only)
    walked = 0
    for route, body in CALLED:
        is_list = route[1].endswith(("/search", "/count", "/queue", "/mcp", "/namespaces", f"{MOUNT}/runs"))
        if not is_list or "tools/call" in str(body) or "DELETE" in route:
            continue
        response = ask(bob, anns, route, {} if route[1] == f"{MOUNT}/runs" else body)
        assert response.status_code < 500, (route, response.text)
        assert not [id for id in words(anns) if id in response.text], route
        if route[1].endswith("/count"):
            assert response.json == 0, route
        walked += 1
    assert walked > 8


def test_the_owner_finds_all_of_it(ann: Api, anns: Ids, played: PlayedAuth) -> None:
    """Proves that the paths of the other tests lead to existing records."""
    played.on(owner_only)
    for route, body in CALLED:
        is_for_users = not route[1].startswith(FOR_KEYS) and not route[1].endswith(ASKS_A_HOST)
        if route[0] == "GET" and route in CALLS and is_for_users:
            response = ask(ann, anns, route, body)
            assert (route, response.status_code) == (route, 426 if route == SOCKET else 200), response.text
            response.close()
