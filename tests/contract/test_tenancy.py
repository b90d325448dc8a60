"""Organizations cannot see, guess or touch each other's: a walk over every route with a foreign key.

A new route (test_roles.py makes it known) is walked by itself when the fixture `theirs` fills its path
parameters and an empty body suits it; else the walk fails until `theirs`, BODIES or ANSWERS say how to call it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from uuid import UUID, uuid4

import pytest
from flask import Flask
from sqlalchemy import Table, or_, select, update
from werkzeug.test import TestResponse

import tests.support.factories as make
from shared.access import api_keys, organizations
from shared.deployments.deployments import DeploymentRef
from shared.infra.postgres import connection
from shared.models import GRAPH, METADATA, RunStatus
from tests.contract.conftest import ControlPlane, caller
from tests.contract.test_roles import NEEDED

Route = tuple[str, str]

# The smallest body that gets past validation, where an empty object does not.
CRON = {"assistant_id": "agent", "schedule": "0 * * * *", "metadata": {"of": "their-metadata"}}
BODIES: dict[Route, Any] = {
    ("POST", "/d/<deployment>/threads/<thread_id>/runs"): {"assistant_id": "agent"},
    ("POST", "/d/<deployment>/threads/<thread_id>/runs/stream"): {"assistant_id": "agent"},
    ("POST", "/d/<deployment>/threads/<thread_id>/runs/wait"): {"assistant_id": "agent"},
    ("POST", "/d/<deployment>/threads/<thread_id>/runs/crons"): CRON,
    ("PATCH", "/d/<deployment>/runs/crons/<cron_id>"): {"enabled": False},
    ("POST", "/d/<deployment>/assistants/<assistant_id>/latest"): {"version": 1},
    ("POST", "/d/<deployment>/threads/<thread_id>/state"): {"values": {}},
    ("PATCH", "/d/<deployment>/threads/<thread_id>/state"): {"metadata": {}},
    ("POST", "/d/<deployment>/threads/<thread_id>/state/checkpoint"): {"checkpoint": {"checkpoint_id": "1"}},
    ("POST", "/d/<deployment>/threads/<thread_id>/commands"): {"id": 1, "method": "agent.getTree"},
    ("POST", "/v2/deployments/<deployment_id>/traffic/promote"): {"revision_id": str(uuid4())},
    ("PATCH", "/v2/keys/<key_id>"): {"name": "mine"},
    ("POST", "/v2/auth/callback/<provider_id>"): {"code": "c", "state": "s"},
    ("POST", "/v2/auth/authenticate"): {"provider": "their-provider", "scopes": []},
    ("DELETE", "/d/<deployment>/store/items"): {"namespace": ["theirs"], "key": "k"},
    ("PUT", "/d/<deployment>/store/items"): {"namespace": ["theirs"], "key": "k", "value": {"v": "mine"}},
}

# What a route without ids asks for, where it must ask for something.
QUERIES: dict[Route, dict[str, str]] = {
    ("GET", "/v2/auth/tokens"): {"provider_id": "their-provider"},
    ("GET", "/v2/auth/tokens/exists"): {"provider_id": "their-provider"},
    ("DELETE", "/v2/auth/tokens"): {"provider_id": "their-provider"},
    ("DELETE", "/v2/deployments"): {"deployment_ids": str(uuid4())},
    ("GET", "/d/<deployment>/store/items"): {"namespace": "theirs", "key": "k"},
    ("GET", "/d/<deployment>/.well-known/agent-card.json"): {"assistant_id": "agent"},
}

SOCKET = "/d/<deployment>/threads/<thread_id>/stream/events"

# What answers otherwise than 404 when it is asked for something of another organization.
ANSWERS: dict[Route, int] = {
    ("GET", "/v1/integrations/github/<integration_id>/repos"): 200,  # nobody has any
    ("GET", "/v2/auth/wait/<auth_id>"): 200,  # with the status not_found
    ("PATCH", "/v2/organizations/<organization_id>"): 403,  # for operators
    ("POST", "/d/<deployment>/threads/<thread_id>/copy"): 409,  # as the published API has it
    ("POST", "/d/<deployment>/threads/<thread_id>/commands"): 200,  # a refusal: no such run
    ("POST", SOCKET): 400,  # tests/contract/test_protocol_events.py has more
    ("GET", SOCKET): 426,  # it is for WebSockets: tests/contract/test_protocol_socket.py
    ("DELETE", "/v2/organizations/<organization_id>"): 403,
    ("POST", "/v2/workers/<worker_id>/drain"): 403,  # for operators
}


@dataclass(frozen=True)
class Theirs:
    """What the other organization has: one of everything, and values for every path parameter."""

    organization_id: UUID
    key: str
    deployment: DeploymentRef
    fill: Mapping[str, str]

    def path(self, rule: str) -> str:
        return re.sub(r"<(?:\w+:)?(\w+)>", lambda match: self.fill[match[1]], rule)

    @property
    def secrets(self) -> set[str]:
        """What no answer to a stranger may hold."""
        ids = {value for name, value in self.fill.items() if name.endswith("_id") and name != "provider_id"}
        return ids | {"their-metadata", "their line"}

    def rows(self) -> dict[str, list[Any]]:
        """Everything they have in the database."""
        return {table.name: sorted(map(str, self._rows_of(table))) for table in METADATA.sorted_tables}

    def _rows_of(self, table: Table) -> list[Any]:
        mine = {"organization_id": self.organization_id, "deployment_id": self.deployment.id}
        mine |= {"revision_id": self.deployment.active_revision_id}
        if table.name in ("organization", "deployment"):
            mine["id"] = self.organization_id if table.name == "organization" else self.deployment.id
        conditions = [table.c[name] == value for name, value in mine.items() if name in table.c]
        if not conditions:
            return []
        with connection() as conn:
            return list(conn.execute(select(table).where(or_(*conditions))).all())


@pytest.fixture(autouse=True)
def nothing_known() -> Iterator[None]:
    organizations.forget()
    yield
    organizations.forget()


@pytest.fixture
def theirs(app: Flask, control: ControlPlane) -> Theirs:
    """An organization whose deployment is called chat."""
    organization_id = make.organization("theirs")
    with connection() as conn:
        key = api_keys.create(conn, organization_id, name="theirs")
    owner = ControlPlane(caller(app, key))
    deployment = make.deployment("chat", organization_id=organization_id)
    thread_id = make.thread(deployment.id, metadata={"of": "their-metadata"})
    run_id = make.run(
        deployment,
        thread_id,
        status=RunStatus.SUCCESS,
        kwargs={"resumable": True},
        metadata={"of": "their-metadata"},
    )
    upload: Any = owner.post(f"/v2/deployments/{deployment.id}/upload-url").json
    with connection() as conn:
        conn.execute(
            METADATA.tables["log_line"].insert(),
            {"deployment_id": deployment.id, "kind": "deploy", "level": "INFO", "message": "their line"},
        )
        conn.execute(update(GRAPH).values(drawings={"0": {}, "all": {}}))
    owner.call(
        "PUT", "/d/chat/store/items", {"namespace": ["theirs"], "key": "k", "value": {"v": "their-metadata"}}
    )
    fill = {
        "cron_id": owner.post("/d/chat/runs/crons", CRON).json["cron_id"],
        "deployment": "chat",
        "deployment_id": str(deployment.id),
        "name": make.preview(deployment.id, deployment.active_revision_id),
        "revision_id": str(deployment.active_revision_id),
        "thread_id": str(thread_id),
        "run_id": str(run_id),
        "assistant_id": str(make.assistant(deployment.id, name="their-metadata")),
        "delivery_id": str(make.webhook_delivery(deployment, run_id)),
        "checkpoint_id": str(uuid4()),
        "namespace": "any",
        "organization_id": str(organization_id),
        "key_id": key.split("_")[1],
        "worker_id": str(uuid4()),
        "listener_id": str(uuid4()),
        "integration_id": str(uuid4()),
        "object_path": upload["object_path"],
        **make.oauth(organization_id, "their-provider"),
    }
    return Theirs(organization_id, key, deployment, fill)


@pytest.fixture
def stranger(app: Flask, theirs: Theirs) -> ControlPlane:
    """An admin of another organization, which has a deployment of the same name and nothing in it."""
    organization_id = make.organization("mine")
    make.deployment("chat", organization_id=organization_id)
    with connection() as conn:
        return ControlPlane(caller(app, api_keys.create(conn, organization_id, name="mine")))


def routes(*, with_ids: bool) -> list[Route]:
    """The routes that need a key: those that name something by its id, or those that do not."""
    found = [route for route, role in NEEDED.items() if role != "open"]
    return [(method, rule) for method, rule in found if _names_something(rule) is with_ids]


def _names_something(rule: str) -> bool:
    return bool(set(re.findall(r"<(?:\w+:)?(\w+)>", rule)) - {"deployment"})


def ask(who: ControlPlane, theirs: Theirs, route: Route) -> TestResponse:
    method, rule = route
    body = BODIES.get(route, None if method in ("GET", "DELETE") else {})
    return who.call(method, theirs.path(rule), body, query_string=QUERIES.get(route))


def test_what_others_have_is_not_found_and_stays_as_it_is(stranger: ControlPlane, theirs: Theirs) -> None:
    before = theirs.rows()
    assert all(
        before[name] for name in ("organization", "deployment", "revision", "thread", "run", "assistant")
    )
    for route in routes(with_ids=True):
        response = ask(stranger, theirs, route)
        assert (route, response.status_code) == (route, ANSWERS.get(route, 404)), response.text
        assert theirs.rows() == before, route


def test_what_others_have_looks_like_what_nobody_has(stranger: ControlPlane, theirs: Theirs) -> None:
    """No answer tells that an id exists."""
    nobody = Theirs(
        theirs.organization_id,
        theirs.key,
        theirs.deployment,
        {
            name: str(uuid4()) if name.endswith("_id") and name not in ("key_id", "provider_id") else value
            for name, value in theirs.fill.items()
        }
        | {"key_id": "00000000", "provider_id": "nobodys"},
    )
    for route in routes(with_ids=True):
        answers = []
        for world in (theirs, nobody):
            response = ask(stranger, world, route)
            text = response.text
            for value in sorted(world.fill.values(), key=len, reverse=True):
                text = text.replace(value, "…") if len(value) >= 6 else text
            answers.append((response.status_code, text))
        assert answers[0] == answers[1], route


def test_lists_hold_nothing_of_others(stranger: ControlPlane, theirs: Theirs) -> None:
    before = theirs.rows()
    walked = 0
    for route in routes(with_ids=False):
        method, rule = route
        if NEEDED[route] == "operator" or rule.endswith(("/runs/stream", "/runs/wait")):
            continue  # a stream of one's own has no end here
        response = ask(stranger, theirs, route)
        assert response.status_code < 500, (route, response.text)
        if method == "GET" or rule.endswith(("/search", "/count")):
            assert response.status_code == 200, (route, response.text)
            walked += 1
        assert not [secret for secret in theirs.secrets if secret in response.text], route
        assert theirs.rows() == before, route
    assert walked > 5


def test_a_deployment_of_others_is_not_found_by_its_name(app: Flask, theirs: Theirs) -> None:
    with connection() as conn:
        key = api_keys.create(conn, make.organization(), name="mine")
    stranger = ControlPlane(caller(app, key))
    for route in routes(with_ids=True) + routes(with_ids=False):
        if route[1].startswith("/d/<deployment>/"):
            response = ask(stranger, theirs, route)
            assert (route, response.status_code, response.json) == (route, 404, {"detail": "Not Found"})


def test_the_owner_finds_all_of_it(app: Flask, theirs: Theirs) -> None:
    """The walk would prove nothing if its addresses led nowhere."""
    owner = ControlPlane(caller(app, theirs.key))
    asks_a_graph_host = ("/history", "/state/<checkpoint_id>", "/subgraphs/<path:namespace>")
    for method, rule in routes(with_ids=True):
        if method == "GET" and not rule.endswith(asks_a_graph_host) and "<listener_id>" not in rule:
            response = ask(owner, theirs, (method, rule))
            assert (rule, response.status_code) == (rule, 426 if rule == SOCKET else 200), response.text
            response.close()


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "answer"),
    [
        ("POST", "/d/chat/threads/search", {"ids": ["{thread_id}"]}, 200, []),
        ("POST", "/d/chat/threads/search", {"metadata": {"of": "their-metadata"}}, 200, []),
        ("POST", "/d/chat/threads/count", {"metadata": {"of": "their-metadata"}}, 200, 0),
        ("POST", "/d/chat/threads/prune", {"thread_ids": ["{thread_id}"]}, 200, {"pruned_count": 0}),
        ("POST", "/d/chat/assistants/search", {"name": "their-metadata"}, 200, []),
        ("POST", "/d/chat/runs", {"assistant_id": "{assistant_id}"}, 404, None),
        ("GET", "/v2/deployments?deployment_ids={deployment_id}", None, 200, {"resources": [], "offset": 0}),
        ("DELETE", "/v2/deployments?deployment_ids={deployment_id}", None, 207, None),
    ],
)
def test_ids_in_bodies_and_queries_lead_nowhere(
    stranger: ControlPlane, theirs: Theirs, method: str, path: str, body: Any, status: int, answer: Any
) -> None:
    def filled(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: filled(inner) for key, inner in value.items()}
        if isinstance(value, list):
            return [filled(inner) for inner in value]
        return re.sub(r"\{(\w+)\}", lambda match: theirs.fill[match[1]], value)

    before = theirs.rows()
    response = stranger.call(method, filled(path), filled(body) if body is not None else None)
    assert response.status_code == status, response.text
    assert answer is None or response.json == answer
    assert theirs.rows() == before


def test_an_archive_of_others_cannot_be_deployed(stranger: ControlPlane, theirs: Theirs) -> None:
    mine = stranger.create("mine")
    config = {"source_tarball_path": theirs.fill["object_path"], "langgraph_config_path": "langgraph.json"}
    refused = stranger.call("PATCH", f"/v2/deployments/{mine['id']}", {"source_revision_config": config})
    assert refused.status_code == 400
    assert "not handed out for this deployment" in refused.text


def test_naming_another_organization_is_refused_wherever_it_is_done(
    stranger: ControlPlane, theirs: Theirs
) -> None:
    before = theirs.rows()
    for method, rule in routes(with_ids=True) + routes(with_ids=False):
        for tenant in ("theirs", str(theirs.organization_id)):
            response = stranger.call(method, theirs.path(rule), headers={"X-Tenant-Id": tenant})
            assert (method, rule, response.status_code) == (method, rule, 403)
    assert theirs.rows() == before
