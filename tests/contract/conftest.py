"""The web app on an embedded database, called through Flask's client."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache
from typing import Any
from uuid import UUID, uuid4

import orjson
import pytest
from flask import Flask
from flask.testing import FlaskClient
from sqlalchemy import text
from werkzeug.test import TestResponse

import tests.support.factories as make
from shared.access import api_keys, organizations
from shared.deployments.deployments import DeploymentRef
from shared.eventlog.hub import Hub, hub
from shared.infra import broker, encryption
from shared.infra import redis as shared_redis
from shared.infra.postgres import connection
from shared.settings import Settings
from shared.user_code import users as cached_users
from tests.contract import rpc
from tests.support import user_code
from web.app import create_app
from web.gate import gate
from web.gate.deployments import forget as forget_deployments
from web.ops import health

ADMIN_KEY = "an-operator-key-for-tests"


MakeApp = Callable[..., Flask]
ROUTED_BY = ("app_domain", "dev_deployment")  # settings that an app reads only when it is created


@pytest.fixture(scope="session")
def _routes() -> MakeApp:
    """Web apps by those settings, each created once. Compiling the routes takes longer than most tests."""

    @cache
    def made(**routed_by: str) -> Flask:
        return create_app(replace(Settings.from_env({"RUNYARD_API_KEY": ADMIN_KEY}), **routed_by))

    return made


@pytest.fixture
def app_with(_routes: MakeApp, db: Any, settings: Settings) -> MakeApp:
    """Function that makes the whole web app with changed settings, in the state after its start."""
    api_keys.forget()
    organizations.forget()
    forget_deployments()
    cached_users.forget()
    with connection() as conn:
        api_keys.ensure_default_organization(conn)

    def make_app(**changes: Any) -> Flask:
        app = _routes(**{name: changes[name] for name in ROUTED_BY if name in changes})
        app.config["SETTINGS"] = replace(settings, api_key=ADMIN_KEY, **changes)
        app.config["MAX_CONTENT_LENGTH"] = app.config["SETTINGS"].max_body_bytes
        for part in (gate, health):
            part.start(app)
        return app

    return make_app


@pytest.fixture
def app(app_with: MakeApp) -> Flask:
    """The whole web app. Deployments belong to the default organization."""
    return app_with()


@pytest.fixture
def client(app: Flask) -> FlaskClient:
    """Client with the operator's key."""
    return caller(app, ADMIN_KEY)


@pytest.fixture
def anonymous(app: Flask) -> FlaskClient:
    """Client without a key."""
    return app.test_client()


def caller(app: Flask, key: str) -> FlaskClient:
    """Return a client that sends this key with every request."""
    client = app.test_client()
    client.environ_base["HTTP_X_API_KEY"] = key
    return client


def new_key(
    role: str = "admin", organization_id: UUID = api_keys.DEFAULT_ORGANIZATION_ID, name: str = "some key"
) -> str:
    """Create an API key. Returns its text."""
    with connection() as conn:
        return api_keys.create(conn, organization_id, name=name, role=role)


def _request(body: Any, more: dict[str, Any]) -> dict[str, Any]:
    """Return the parts of a request with this JSON body. None: without a body."""
    if body is None:
        return more
    names_type = "Content-Type" in more.get("headers", ())
    return {
        "data": orjson.dumps(body),
        **({} if names_type else {"content_type": "application/json"}),
        **more,
    }


_responses: list[TestResponse] = []


@pytest.fixture(autouse=True)
def _closed_responses() -> Iterator[None]:
    """Close all responses after a test, as a server does. The garbage collector would end streams at any moment."""
    yield
    for response in _responses:
        response.close()
    _responses.clear()


class Api:
    """A deployment's API for one caller."""

    def __init__(self, client: FlaskClient, deployment: DeploymentRef) -> None:
        self.client, self.deployment = client, deployment

    def call(self, method: str, path: str, body: Any = None, **more: Any) -> TestResponse:
        address = f"/d/{self.deployment.name}{path}"
        response = self.client.open(address, method=method, **_request(body, more))
        _responses.append(response)
        return response

    def set(self, **changes: Any) -> None:
        """Change settings of the service."""
        config = self.client.application.config
        config["SETTINGS"] = replace(config["SETTINGS"], **changes)

    def get(self, path: str, **more: Any) -> TestResponse:
        return self.call("GET", path, **more)

    def post(self, path: str, body: Any = None, **more: Any) -> TestResponse:
        return self.call("POST", path, {} if body is None else body, **more)

    def patch(self, path: str, body: Any, **more: Any) -> TestResponse:
        return self.call("PATCH", path, body, **more)

    def delete(self, path: str, **more: Any) -> TestResponse:
        return self.call("DELETE", path, **more)


class Notifications:
    """A notifier that records notifications."""

    def __init__(self) -> None:
        self.heard: list[tuple[str, str]] = []

    def notify(self, task: str, queue: str, id: UUID | str) -> None:
        self.heard.append((queue, str(id)))


@pytest.fixture
def notifications(monkeypatch: pytest.MonkeyPatch) -> Notifications:
    """Notifications that would go to the broker."""
    notifier = Notifications()
    monkeypatch.setattr(broker, "notifier", notifier)
    return notifier


@pytest.fixture(scope="session")
def _hub(redis_url: str) -> Hub:
    return Hub(shared_redis.make_client(redis_url))


@pytest.fixture
def encryption_key() -> Iterator[None]:
    """An encryption key of the service."""
    encryption.configure([encryption.new_key()])
    yield
    encryption.configure([])


@pytest.fixture
def api(
    client: FlaskClient,
    redis: Any,
    notifications: Notifications,
    encryption_key: None,
    _hub: Hub,
    monkeypatch: pytest.MonkeyPatch,
) -> Api:
    """Deployment `chat` with the graphs `agent` and `other`, otherwise empty."""
    monkeypatch.setattr(hub, "instance", _hub)
    deployment = make.deployment(
        organization_id=api_keys.DEFAULT_ORGANIZATION_ID, name="chat", graphs=("agent", "other")
    )
    api = Api(client, deployment)
    api.set(heartbeat_seconds=0.05)  # Flask's client returns after a body's first bytes
    return api


@pytest.fixture
def chat(api: Api) -> Api:
    """Deployment with a unique name, for a separate web process, which caches deployments by name for a moment."""
    deployment = make.deployment(
        organization_id=api_keys.DEFAULT_ORGANIZATION_ID, name=f"chat-{uuid4().hex[:8]}"
    )
    return Api(api.client, deployment)


@pytest.fixture
def taking_graphs(api: Api) -> None:
    """Input schemas of the graphs, as shown in A2A cards and MCP tools: `agent` takes messages, `other` a trip."""
    make.takes(api.deployment, "agent", rpc.CHAT)
    make.takes(api.deployment, "other", rpc.TRIP)


@pytest.fixture
def neighbour(app: Flask, api: Api) -> Api:
    """Deployment `chat` of another organization, called with that organization's key."""
    organization_id = make.organization()
    key = new_key(organization_id=organization_id)
    return Api(caller(app, key), make.deployment(organization_id=organization_id, name="chat"))


@pytest.fixture
def played(monkeypatch: pytest.MonkeyPatch) -> user_code.PlayedAuth:
    """Authorization behind `users`: bearer token NAME means user NAME. Allows everything unless a test adds a handler."""
    auth = user_code.PlayedAuth()
    monkeypatch.setattr("shared.hosts.calls.call", auth.call)
    return auth


class Users:
    """Users of the deployment `chat`, whose authorization is played by the test."""

    def __init__(self, api: Api, played: user_code.PlayedAuth) -> None:
        self.owner, self.played, self.deployment = api, played, api.deployment
        self.ann, self.bob, self.nobody = (self.of(token) for token in ("ann", "bob", None))

    def of(self, token: str | None) -> Api:
        """Return a caller with this bearer token."""
        client = self.owner.client.application.test_client()
        if token is not None:
            client.environ_base["HTTP_AUTHORIZATION"] = f"Bearer {token}"
        return Api(client, self.deployment)

    def last_line(self) -> str:
        """Return the newest line of the deployment's log."""
        query = text("SELECT message FROM log_line WHERE deployment_id = :id ORDER BY id DESC LIMIT 1")
        with connection() as conn:
            return conn.execute(query, {"id": self.deployment.id}).scalar_one()


@pytest.fixture
def users(api: Api, played: user_code.PlayedAuth) -> Users:
    """Users ann and bob. Every action of theirs is authorized, and allowed unless the test says otherwise."""
    user_code.protect(api.deployment)
    return Users(api, played)


@pytest.fixture
def ann(users: Users) -> Api:
    return users.ann


@pytest.fixture
def bob(users: Users) -> Api:
    return users.bob


class ControlPlane:
    """The control plane for one caller."""

    def __init__(self, client: FlaskClient) -> None:
        self.client = client

    def call(self, method: str, path: str, body: Any = None, **more: Any) -> TestResponse:
        return self.client.open(path, method=method, **_request(body, more))

    def get(self, path: str, **query: Any) -> TestResponse:
        return self.call("GET", path, query_string=query)

    def post(self, path: str, body: Any = None) -> TestResponse:
        return self.call("POST", path, {} if body is None else body)

    def create(self, name: str = "chat", **more: Any) -> Any:
        """Create a deployment that waits for its source. Returns its record."""
        body = {"source_config": {"deployment_type": "dev"}, "source_revision_config": {}, "secrets": []}
        response = self.post("/v2/deployments", {**body, "name": name, "source": "internal_source", **more})
        assert response.status_code == 201, response.text
        return response.json

    def change(self, deployment: Any, **body: Any) -> Any:
        response = self.call("PATCH", f"/v2/deployments/{deployment['id']}", body)
        assert response.status_code == 200, response.text
        return response.json

    def upload(self, deployment: Any, content: bytes = b"an archive") -> str:
        """Upload an archive. Returns its object path."""
        place = self.post(f"/v2/deployments/{deployment['id']}/upload-url")
        assert place.status_code == 200, place.text
        found: Any = place.json
        put = self.client.application.test_client().put(found["upload_url"], data=content)
        assert put.status_code == 200, put.text
        return str(found["object_path"])

    def deploy(self, deployment: Any, content: bytes = b"an archive", **body: Any) -> Any:
        """Upload an archive and request a revision of it. Returns the deployment's record."""
        config = {
            "source_tarball_path": self.upload(deployment, content),
            "langgraph_config_path": "langgraph.json",
        }
        return self.change(deployment, source_revision_config=config, **body)

    def revision(self, deployment: Any, revision_id: str | None = None) -> Any:
        """Return a revision's record, by default the latest one's."""
        revision_id = revision_id or deployment["latest_revision_id"]
        response = self.get(f"/v2/deployments/{deployment['id']}/revisions/{revision_id}")
        assert response.status_code == 200, response.text
        return response.json

    def revisions(self, deployment: Any, **query: Any) -> list[Any]:
        response = self.get(f"/v2/deployments/{deployment['id']}/revisions", **query)
        assert response.status_code == 200, response.text
        found: Any = response.json
        return list(found["resources"])


@pytest.fixture
def control(
    client: FlaskClient,
    redis: Any,
    notifications: Notifications,
    encryption_key: None,
    _hub: Hub,
    monkeypatch: pytest.MonkeyPatch,
) -> ControlPlane:
    """The empty control plane, with an encryption key for secrets."""
    monkeypatch.setattr(hub, "instance", _hub)
    return ControlPlane(client)


@pytest.fixture
def deployed(control: ControlPlane) -> Any:
    """Record of a deployment whose first revision waits for its build."""
    return control.deploy(control.create())


@pytest.fixture
def stranger(app: Flask, control: ControlPlane) -> ControlPlane:
    """The control plane for another organization."""
    return ControlPlane(caller(app, new_key(organization_id=make.organization())))


@pytest.fixture
def thread_id(api: Api) -> str:
    return api.post("/threads").json["thread_id"]


@pytest.fixture
def replays(control: ControlPlane, api: Api) -> str:
    """Path of the deployment's replays."""
    return f"/v2/deployments/{api.deployment.id}/replays"
