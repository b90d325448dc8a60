"""Every route of a deployment with an authorization of its own asks it: a walk over the app's own list of routes.

A new route is walked by itself when `world` fills its path parameters and an empty body suits it; else the walk fails
until BODIES or QUERIES say how to call it. One that asks nobody fails by its status, unless ASK_NOBODY says why not.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

import pytest
from flask import Flask
from sqlalchemy import select
from werkzeug.test import TestResponse

import tests.support.factories as make
from shared.errors import Unanswered, Unavailable
from shared.infra.postgres import connection
from shared.models import METADATA, RunStatus
from tests.contract.conftest import Api, caller
from tests.support.user_code import Context, PlayedAuth, crash, owner_only, refuse
from web import auth, operations

Route = tuple[str, str]

MOUNT = "/d/<deployment>"
RUN = {"assistant_id": "agent"}
CRON = {**RUN, "schedule": "0 * * * *"}
ITEM = {"namespace": ["any"], "key": "k"}
MESSAGE = {"messageId": "m", "role": "user", "parts": [{"text": "hello"}]}
GET_TREE = {"id": 1, "method": "agent.getTree"}

# The smallest body that gets past validation, where an empty object does not.
BODIES: dict[Route, Any] = {
    ("POST", "/assistants"): {"graph_id": "agent"},
    ("POST", "/assistants/<assistant_id>/latest"): {"version": 1},
    ("POST", "/threads/prune"): {"thread_ids": ["<thread_id>"]},
    ("PATCH", "/threads/<thread_id>"): {"metadata": {}},
    ("POST", "/threads/<thread_id>/state"): {"values": {}},
    ("PATCH", "/threads/<thread_id>/state"): {"metadata": {}},
    ("POST", "/threads/<thread_id>/state/checkpoint"): {"checkpoint": {"checkpoint_id": "1"}},
    ("POST", "/threads/<thread_id>/runs"): RUN,
    ("POST", "/threads/<thread_id>/runs/stream"): RUN,
    ("POST", "/threads/<thread_id>/runs/wait"): RUN,
    ("POST", "/threads/<thread_id>/runs/crons"): CRON,
    ("POST", "/threads/<thread_id>/stream/events"): {"channels": ["values"]},
    ("POST", "/threads/<thread_id>/commands"): GET_TREE,
    ("POST", "/runs"): RUN,
    ("POST", "/runs/stream"): RUN,
    ("POST", "/runs/wait"): RUN,
    ("POST", "/runs/batch"): [RUN],
    ("POST", "/runs/cancel"): {"thread_id": "<thread_id>", "run_ids": ["<run_id>"]},
    ("POST", "/runs/crons"): CRON,
    ("PATCH", "/runs/crons/<cron_id>"): {"enabled": False},
    ("PUT", "/store/items"): {**ITEM, "value": {}},
    ("DELETE", "/store/items"): ITEM,
    ("POST", "/mcp"): {"jsonrpc": "2.0", "id": 1, "method": "tools/list"},
    ("POST", "/a2a/<assistant_id>"): {
        "jsonrpc": "2.0", "id": 1, "method": "SendMessage", "params": {"message": MESSAGE},
    },
}  # fmt: skip
QUERIES: dict[Route, dict[str, str]] = {
    ("GET", "/store/items"): {"namespace": "any", "key": "k"},
    ("GET", "/.well-known/agent-card.json"): {"assistant_id": "<assistant_id>"},
}
# More calls of the same routes: other methods of a protocol, other branches.
OTHERS: list[tuple[Route, Any]] = [
    (
        ("POST", "/threads/<thread_id>/commands"),
        {"id": 1, "method": "input.respond", "params": {"interrupt_id": "i"}},
    ),
    (("POST", "/runs/cancel"), {"status": "all"}),
    (("POST", "/runs"), {"assistant_id": "<assistant_id>"}),
    (("POST", "/mcp"), {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "agent"}}),
    *(
        (
            ("POST", "/a2a/<assistant_id>"),
            {"jsonrpc": "2.0", "id": 1, "method": method, "params": {"id": "<thread_id>:<run_id>"}},
        )
        for method in ("GetTask", "CancelTask", "tasks/get", "tasks/cancel")
    ),
    (("POST", "/a2a/<assistant_id>"), {"jsonrpc": "2.0", "id": 1, "method": "ListTasks", "params": {}}),
    (("POST", "/a2a/<assistant_id>"), {"jsonrpc": "2.0", "id": 1, "method": "GetExtendedAgentCard"}),
    (
        ("POST", "/threads/<thread_id>/commands"),
        {"id": 1, "method": "run.start", "params": RUN},
    ),  # makes the thread
]
ASK_NOBODY = {("DELETE", "/mcp")}  # sessions, of which there are none
COMMANDS, SOCKET = "/threads/<thread_id>/commands", ("GET", "/threads/<thread_id>/stream/events")
# What differs where a thread is another's and where there is none: a client may wait for one to be made.
WAITS = {("POST", "/threads/<thread_id>/stream/events"), SOCKET}
MAKES = {"run.start"}
ASKS_A_HOST = ("/history", "/state/<checkpoint_id>", "/state/checkpoint", "/subgraphs/<path:namespace>")


@dataclass(frozen=True)
class World:
    """One user's things: values for every path parameter."""

    fill: Mapping[str, str]

    def filled(self, value: Any) -> Any:
        if isinstance(value, dict):
            return {key: self.filled(inner) for key, inner in value.items()}
        if isinstance(value, list):
            return [self.filled(inner) for inner in value]
        if not isinstance(value, str):
            return value
        return re.sub(r"<(?:\w+:)?(\w+)>", lambda match: self.fill[match[1]], value)

    @property
    def ids(self) -> set[str]:
        return {value for name, value in self.fill.items() if name.endswith("_id")}


def owned(ctx: Context, value: dict[str, Any]) -> Any:
    """Each user has their own things, and their own part of the store."""
    if ctx.resource == "store":
        value["namespace"] = [ctx.identity, *(value["namespace"] or ())]
        return None
    return owner_only(ctx, value)


@pytest.fixture
def anns(ann: Api, played: PlayedAuth) -> World:
    """One of everything, ann's by its metadata."""
    deployment, owner = ann.deployment, {"owner": "ann"}
    thread_id = make.thread(deployment.id, metadata=owner)
    kwargs = {"resumable": True, "config": {}}
    run_id = make.run(
        deployment, thread_id, status=RunStatus.SUCCESS, kwargs=kwargs, metadata={**owner, "a2a": {}}
    )
    fill = {
        "thread_id": str(thread_id),
        "run_id": str(run_id),
        "assistant_id": str(make.assistant(deployment.id, metadata=owner)),
        "cron_id": str(make.cron(deployment, metadata=owner)),
        "delivery_id": str(make.webhook_delivery(deployment, run_id)),
        "checkpoint_id": str(uuid4()),
        "namespace": "any",
    }
    assert (
        ann.call("PUT", "/store/items", {**ITEM, "namespace": ["ann", "any"], "value": {}}).status_code == 204
    )
    played.forget()
    return World(fill)


IDS = ("thread", "run", "assistant", "cron", "checkpoint", "delivery")
NOBODYS = World(
    {
        **{f"{name}_id": str(uuid4()) for name in IDS},
        "namespace": "any",
    }
)


@pytest.fixture
def routes(app: Flask) -> list[Route]:
    """The routes of a deployment that are not open, from the app itself."""
    found = []
    for rule in app.url_map.iter_rules():
        stated = operations.of_view(app.view_functions[rule.endpoint])
        if rule.rule.startswith(f"{MOUNT}/") and stated.role != "open":
            methods = sorted((rule.methods or set()) - {"HEAD", "OPTIONS"})
            found += [(method, rule.rule.removeprefix(MOUNT)) for method in methods]
    assert len(found) > 60
    return list(dict.fromkeys(found))


def calls(routes: list[Route]) -> Iterator[tuple[Route, Any]]:
    for route in routes:
        yield route, BODIES.get(route, None if route[0] in ("GET", "DELETE") else {})
    yield from OTHERS


def ask(who: Api, world: World, route: Route, body: Any) -> TestResponse:
    method, rule = route
    query = world.filled(QUERIES.get(route, {}))
    headers = {"Accept": "application/json, text/event-stream"}
    return who.call(method, world.filled(rule), world.filled(body), query_string=query, headers=headers)


def rows() -> dict[str, list[str]]:
    """All that is stored, but the lines of logs."""
    with connection() as conn:
        return {
            table.name: sorted(str(row) for row in conn.execute(select(table)))
            for table in METADATA.sorted_tables
            if table.name != "log_line"
        }


def said(response: TestResponse, route: Route) -> int:
    """The status of an answer; of a protocol's own refusal the one that it stands for."""
    if response.status_code == 200 and route[1] == COMMANDS:
        found: Any = response.json
        return {"permission_denied": 403, "no_such_run": 404}.get(found.get("error"), 200)
    if response.status_code == 200 and route == ("POST", "/a2a/<assistant_id>"):
        answer: Any = response.json
        error = answer.get("error")
        return 200 if error is None else {-32602: 403, -32001: 404}.get(error["code"], 200)
    return response.status_code


def walk(who: Api, world: World, routes: list[Route], status: int) -> None:
    """Every call is refused with this status, tells nothing and changes nothing."""
    before, wrong = rows(), []
    for route, body in calls(routes):
        if route in ASK_NOBODY and status != 401:
            continue
        auth.start(who.client.application)  # no address has failed too often
        response = ask(who, world, route, body)
        tells = [word for word in (*world.ids, "secret") if word in response.text]
        if said(response, route) != status or tells or rows() != before:
            wrong.append((route, body, response.status_code, response.text[:200], tells))
            before = rows()
    assert not wrong, "\n".join(map(str, wrong))


def test_a_handler_that_refuses_everything_refuses_everything(
    ann: Api, anns: World, played: PlayedAuth, routes: list[Route]
) -> None:
    played.on(refuse)
    walk(ann, anns, routes, 403)
    walk(ann, NOBODYS, routes, 403)


def test_a_handler_that_fails_refuses_everything(
    ann: Api, anns: World, played: PlayedAuth, routes: list[Route]
) -> None:
    played.on(crash)
    walk(ann, anns, routes, 500)


@pytest.mark.parametrize(
    ("failure", "status"), [(Unanswered("too late"), 504), (Unavailable("no host"), 503)]
)
def test_no_answer_is_a_refusal(
    ann: Api, anns: World, played: PlayedAuth, routes: list[Route], failure: Exception, status: int
) -> None:
    played.failure = failure
    walk(ann, anns, routes, status)


def test_who_is_nobody_gets_nothing(app: Flask, ann: Api, anns: World, routes: list[Route]) -> None:
    walk(Api(app.test_client(), ann.deployment), anns, routes, 401)


def test_a_platform_key_is_nobody_here(app: Flask, ann: Api, anns: World, routes: list[Route]) -> None:
    walk(Api(caller(app, "ryd_00000000_unknown"), ann.deployment), anns, routes, 401)


def test_what_a_stranger_has_looks_like_what_nobody_has(
    ann: Api, bob: Api, anns: World, played: PlayedAuth, routes: list[Route]
) -> None:
    played.on(owned)
    wrong = []
    for route, body in calls(routes):
        if "<" not in route[1] + str(body) + str(QUERIES.get(route)) or "Search" in route[1]:
            continue
        before = of_ann()
        answers = []
        for world in (anns, NOBODYS):
            response = ask(bob, world, route, body)
            text = response.text if said(response, route) >= 400 else ""
            for value in sorted(world.fill.values(), key=len, reverse=True):
                text = text.replace(value, "…") if len(value) >= 6 else text
            answers.append((said(response, route), text))
            response.close()
        is_made = isinstance(body, dict) and (body.get("method") in MAKES or _sends(body))
        is_told_apart = answers[0][0] != 404 if route in WAITS or is_made else answers[0] != answers[1]
        if is_told_apart or of_ann() != before:
            wrong.append((route, body, answers, of_ann() != before))
    assert not wrong, "\n".join(map(str, wrong))


def _sends(body: dict[str, Any]) -> bool:
    return body.get("method") == "SendMessage"


def of_ann() -> dict[str, list[str]]:
    return {name: [row for row in found if "'ann'" in row] for name, found in rows().items()}


def test_lists_hold_nothing_of_a_strangers(
    ann: Api, bob: Api, anns: World, played: PlayedAuth, routes: list[Route]
) -> None:
    played.on(owned)
    walked = 0
    for route, body in calls(routes):
        is_list = route[1].endswith(("/search", "/count", "/queue", "/mcp", "/namespaces", "/runs"))
        if not is_list or "<" in route[1] or "tools/call" in str(body) or "DELETE" in route:
            continue
        response = ask(bob, anns, route, {} if route[1] == "/runs" else body)
        assert response.status_code < 500, (route, response.text)
        assert not [id for id in anns.ids if id in response.text], route
        if route[1].endswith("/count"):
            assert response.json == 0, route
        walked += 1
    assert walked > 8


def test_the_owner_finds_all_of_it(ann: Api, anns: World, played: PlayedAuth, routes: list[Route]) -> None:
    """The walk would prove nothing if its addresses led nowhere."""
    played.on(owned)
    for route, body in calls(routes):
        if route[0] == "GET" and not route[1].endswith(ASKS_A_HOST):
            response = ask(ann, anns, route, body)
            assert (route, response.status_code) == (route, 426 if route == SOCKET else 200), response.text
            response.close()
