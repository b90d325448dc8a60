"""Organizations cannot see, guess or change each other's objects: every route is called with a foreign key.

The routes are those of `tests/support/routes.py`. The fixture `theirs` fills their path parameters.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any
from uuid import UUID, uuid4

import pytest
from flask import Flask
from sqlalchemy import update
from werkzeug.test import TestResponse

import tests.support.factories as make
from shared.deployments.deployments import DeploymentRef
from shared.infra.postgres import connection
from shared.models import GRAPH, METADATA, RunStatus
from tests.contract.conftest import ControlPlane, caller, new_key
from tests.support.routes import (
    CALLS,
    CRON,
    EVENTS,
    ITEM,
    MOUNT,
    Route,
    body_of,
    erased,
    filled,
    send,
    stored,
)

CARD = f"{MOUNT}/.well-known/agent-card.json"


@dataclass(frozen=True)
class Theirs:
    """The other organization's objects: one of each kind, and values for every path parameter."""

    organization_id: UUID
    key: str
    deployment: DeploymentRef
    fill: Mapping[str, str]

    @property
    def secrets(self) -> set[str]:
        """Texts that no answer to another organization may contain."""
        ids = {value for name, value in self.fill.items() if name.endswith("_id") and name != "provider_id"}
        return ids | {"their-metadata", "their line"}

    def rows(self) -> dict[str, list[Any]]:
        """Return all rows of the organization."""
        mine = {"organization_id": self.organization_id, "deployment_id": self.deployment.id}
        mine |= {"revision_id": self.deployment.active_revision_id}
        conditions = {"organization": ["id = :organization_id"], "deployment": ["id = :deployment_id"]}
        for table in METADATA.sorted_tables:
            owned = [f"{name} = :{name}" for name in mine if name in table.c]
            conditions.setdefault(table.name, []).extend(owned)
        return stored({name: " OR ".join(found) for name, found in conditions.items() if found}, **mine)


@pytest.fixture
def theirs(app: Flask, control: ControlPlane) -> Theirs:
    """Organization with a deployment `chat`."""
    organization_id = make.organization("theirs")
    key = new_key(organization_id=organization_id)
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
    owner.call("PUT", "/d/chat/store/items", {**ITEM, "value": {"v": "their-metadata"}})
    question_id, replay_id = make.question(deployment, value="their-metadata"), make.replay(deployment)
    with connection() as conn:
        case = {"replay_id": replay_id, "position": 1, "run_id": run_id, "thread_id": thread_id}
        conn.execute(METADATA.tables["replay_case"].insert(), {**case, "reason": "their-metadata"})
    fill = {
        "cron_id": owner.post("/d/chat/runs/crons", {**CRON, "metadata": {"of": "their-metadata"}}).json[
            "cron_id"
        ],
        "deployment": "chat",
        "deployment_id": str(deployment.id),
        "name": make.preview(deployment.id, deployment.active_revision_id),
        "revision_id": str(deployment.active_revision_id),
        "thread_id": str(thread_id),
        "run_id": str(run_id),
        "assistant_id": str(make.assistant(deployment.id, name="their-metadata")),
        "delivery_id": str(make.webhook_delivery(deployment, run_id)),
        "operation_id": str(make.bulk_operation(deployment)),
        "replay_id": str(replay_id),
        "position": "1",
        "checkpoint_id": str(uuid4()),
        "namespace": "any",
        "component_set": "agent",
        "question_id": str(question_id),
        "link_id": str(make.question_link(question_id)),
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
    """Admin of another organization with an empty deployment of the same name."""
    organization_id = make.organization("mine")
    make.deployment("chat", organization_id=organization_id)
    return ControlPlane(caller(app, new_key(organization_id=organization_id)))


def routes(*, with_ids: bool) -> list[Route]:
    """Return the routes that require a key, either those with an id in their path or the others."""
    return [
        (method, rule)
        for (method, rule), call in CALLS.items()
        if call.role != "open" and bool(re.search(r"<(?!deployment>)", rule)) is with_ids
    ]


def ask(who: ControlPlane, theirs: Theirs, route: Route) -> TestResponse:
    body = {} if route == ("POST", EVENTS) else body_of(route)  # with channels it would wait for the thread
    return send(who, theirs.fill, route, body)


def test_what_others_have_is_not_found_and_stays_as_it_is(stranger: ControlPlane, theirs: Theirs) -> None:
    before = theirs.rows()
    assert all(
        before[name] for name in ("organization", "deployment", "revision", "thread", "run", "assistant")
    )
    for route in routes(with_ids=True):
        response = ask(stranger, theirs, route)
        assert (route, response.status_code) == (route, CALLS[route].foreign), response.text
    assert theirs.rows() == before


def test_what_others_have_looks_like_what_nobody_has(stranger: ControlPlane, theirs: Theirs) -> None:
    """An answer never discloses that an id exists."""
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
            answers.append((response.status_code, erased(response.text, world.fill)))
        assert answers[0] == answers[1], route


def test_lists_hold_nothing_of_others(stranger: ControlPlane, theirs: Theirs) -> None:
    before = theirs.rows()
    walked = 0
    for route in routes(with_ids=False):
        method, rule = route
        if CALLS[route].role == "operator" or rule.endswith(("/runs/stream", "/runs/wait")):
            continue  # the caller's own stream would not end here
        response = ask(stranger, theirs, route)
        assert response.status_code < 500, (route, response.text)
        if method == "GET" or rule.endswith(("/search", "/count")):
            expected = 404 if rule == CARD else 403 if CALLS[route].foreign == 403 else 200
            assert response.status_code == expected, (route, response.text)
            walked += 1
        assert not [secret for secret in theirs.secrets if secret in response.text], route
    assert walked > 5
    assert theirs.rows() == before


def test_a_deployment_of_others_is_not_found_by_its_name(app: Flask, theirs: Theirs) -> None:
    key = new_key(organization_id=make.organization())
    stranger = ControlPlane(caller(app, key))
    for route in routes(with_ids=True) + routes(with_ids=False):
        if route[1].startswith("/d/<deployment>/"):
            response = ask(stranger, theirs, route)
            assert (route, response.status_code, response.json) == (route, 404, {"detail": "Not Found"})


def test_another_deployment_of_the_organization_has_none_of_it(app: Flask, theirs: Theirs) -> None:
    owner = ControlPlane(caller(app, theirs.key))
    make.deployment("sister", organization_id=theirs.organization_id)
    sister = replace(theirs, fill={**theirs.fill, "deployment": "sister"})
    before = theirs.rows()
    for route in routes(with_ids=True):
        if route[1].startswith(f"{MOUNT}/"):
            response = ask(owner, sister, route)
            assert (route, response.status_code) == (route, CALLS[route].foreign), response.text
    assert theirs.rows() == before


def test_the_owner_finds_all_of_it(app: Flask, theirs: Theirs) -> None:
    """Proves that the paths of the other tests lead to existing records."""
    owner = ControlPlane(caller(app, theirs.key))
    asks_a_graph_host = ("/history", "/state/<checkpoint_id>", "/subgraphs/<path:namespace>")
    for method, rule in routes(with_ids=True):
        if method == "GET" and not rule.endswith(asks_a_graph_host) and "<listener_id>" not in rule:
            response = ask(owner, theirs, (method, rule))
            assert (rule, response.status_code) == (rule, 426 if rule == EVENTS else 200), response.text
            response.close()


NAMED: list[tuple[str, str, Any, int, Any]] = [
    ("POST", "/d/chat/threads/search", {"ids": ["<thread_id>"]}, 200, []),
    ("POST", "/d/chat/threads/search", {"metadata": {"of": "their-metadata"}}, 200, []),
    ("POST", "/d/chat/threads/count", {"metadata": {"of": "their-metadata"}}, 200, 0),
    ("POST", "/d/chat/threads/prune", {"thread_ids": ["<thread_id>"]}, 200, {"pruned_count": 0}),
    ("POST", "/d/chat/assistants/search", {"name": "their-metadata"}, 200, []),
    ("POST", "/d/chat/runs", {"assistant_id": "<assistant_id>"}, 404, None),
    ("GET", "/v2/deployments?deployment_ids=<deployment_id>", None, 200, {"resources": [], "offset": 0}),
    ("DELETE", "/v2/deployments?deployment_ids=<deployment_id>", None, 207, None),
    (
        "POST", "/v2/inbox/answer", {"ids": ["<question_id>"], "answer": 1}, 200,
        {"results": [{"id": "<question_id>", "error": "Question not found"}]},
    ),
]  # fmt: skip


def test_ids_in_bodies_and_queries_lead_nowhere(stranger: ControlPlane, theirs: Theirs) -> None:
    before = theirs.rows()
    for method, path, body, status, answer in NAMED:
        response = stranger.call(method, filled(path, theirs.fill), filled(body, theirs.fill))
        assert (path, response.status_code) == (path, status), response.text
        assert answer is None or response.json == filled(answer, theirs.fill), path
    assert theirs.rows() == before


def test_an_archive_of_others_cannot_be_deployed(stranger: ControlPlane, theirs: Theirs) -> None:
    mine = stranger.create("mine")
    config = {"source_tarball_path": theirs.fill["object_path"], "langgraph_config_path": "langgraph.json"}
    refused = stranger.call("PATCH", f"/v2/deployments/{mine['id']}", {"source_revision_config": config})
    assert refused.status_code == 400
    assert "an upload URL of this deployment" in refused.text


def test_naming_another_organization_is_refused_wherever_it_is_done(
    stranger: ControlPlane, theirs: Theirs
) -> None:
    before = theirs.rows()
    for method, rule in routes(with_ids=True) + routes(with_ids=False):
        for tenant in ("theirs", str(theirs.organization_id)):
            response = stranger.call(method, filled(rule, theirs.fill), headers={"X-Tenant-Id": tenant})
            assert (method, rule, response.status_code) == (method, rule, 403)
    assert theirs.rows() == before
