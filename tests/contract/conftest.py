"""The web app on an embedded database, called through Flask's client."""

from __future__ import annotations

from dataclasses import replace
from typing import Any
from uuid import UUID

import orjson
import pytest
from flask import Flask
from flask.testing import FlaskClient
from werkzeug.test import TestResponse

import tests.factories as make
from shared import api_keys, bus, events, queues
from shared.database import transaction
from shared.deployments import DeploymentRef
from shared.settings import Settings
from web import deployment_api
from web.app import create_app

ADMIN_KEY = "an-operator-key-for-tests"


@pytest.fixture
def app(db: Any, settings: Settings) -> Flask:
    """The whole web app; its organization is the default one."""
    api_keys.forget()
    with transaction() as session:
        api_keys.ensure_default_organization(session)
    return create_app(replace(settings, api_key=ADMIN_KEY))


@pytest.fixture
def client(app: Flask) -> FlaskClient:
    """A caller with the operator's key."""
    return caller(app, ADMIN_KEY)


@pytest.fixture
def anonymous(app: Flask) -> FlaskClient:
    """A caller without a key."""
    return app.test_client()


def caller(app: Flask, key: str) -> FlaskClient:
    """A client that sends this key with every request."""
    client = app.test_client()
    client.environ_base["HTTP_X_API_KEY"] = key
    return client


class Api:
    """A deployment's interface as one caller sees it."""

    def __init__(self, client: FlaskClient, deployment: DeploymentRef) -> None:
        self.client, self.deployment = client, deployment

    def call(self, method: str, path: str, body: Any = None, **more: Any) -> TestResponse:
        raw = None if body is None else orjson.dumps(body)
        return self.client.open(f"/d/{self.deployment.name}{path}", method=method, data=raw, **more)

    def get(self, path: str, **more: Any) -> TestResponse:
        return self.call("GET", path, **more)

    def post(self, path: str, body: Any = None, **more: Any) -> TestResponse:
        return self.call("POST", path, {} if body is None else body, **more)

    def patch(self, path: str, body: Any, **more: Any) -> TestResponse:
        return self.call("PATCH", path, body, **more)

    def delete(self, path: str, **more: Any) -> TestResponse:
        return self.call("DELETE", path, **more)


class Rings:
    """A bell that remembers who was rung for."""

    def __init__(self) -> None:
        self.heard: list[tuple[str, str]] = []

    def ring(self, task: str, queue: str, id: UUID | str) -> None:
        self.heard.append((queue, str(id)))


@pytest.fixture
def rings(monkeypatch: pytest.MonkeyPatch) -> Rings:
    """What would go to the broker."""
    bell = Rings()
    monkeypatch.setattr(queues, "bell", bell)
    return bell


@pytest.fixture(scope="session")
def _hub(redis_url: str) -> events.Hub:
    return events.Hub(bus.make_client(redis_url))


@pytest.fixture
def api(
    client: FlaskClient, redis: Any, rings: Rings, _hub: events.Hub, monkeypatch: pytest.MonkeyPatch
) -> Api:
    """A deployment called chat with the graphs `agent` and `other`, nothing else in it."""
    monkeypatch.setattr(events, "_hub", _hub)
    deployment_api._known.clear()
    deployment = make.deployment(
        organization_id=api_keys.DEFAULT_ORGANIZATION_ID, name="chat", graphs=("agent", "other")
    )
    return Api(client, deployment)


@pytest.fixture
def neighbour(app: Flask, api: Api) -> Api:
    """The deployment of the same name in another organization, called with a key of its own."""
    organization_id = make.organization()
    with transaction() as session:
        key = api_keys.create(session, organization_id, name="neighbour")
    return Api(caller(app, key), make.deployment(organization_id=organization_id, name="chat"))
