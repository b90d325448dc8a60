"""Users of one OAuth provider: the HTTP requests of their browsers and agents."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import urlsplit

import orjson
import pytest
from flask import Response
from werkzeug.test import TestResponse

from shared.infra import egress
from tests.contract.conftest import ControlPlane
from tests.contract.statements import execute
from tests.support.oauth_server import OAuthServer, oauth_server, returned

CALLBACK = "http://localhost/v2/auth/callback/acme"


@pytest.fixture(scope="module")
def running() -> Iterator[OAuthServer]:
    with oauth_server() as server:
        yield server


@pytest.fixture
def server(running: OAuthServer) -> Iterator[OAuthServer]:
    """OAuth server with the client `us`, which authenticates by form fields."""
    running.reset()
    running.client("client_secret_post", CALLBACK)
    egress.configure(["127.0.0.1"], allow_http=True)
    yield running
    egress.configure()


class Users:
    """Users of the provider `acme`, acting over HTTP."""

    def __init__(self, control: ControlPlane, server: OAuthServer) -> None:
        self.control, self.server = control, server

    def provider(self, **more: Any) -> None:
        response = self.control.post("/v2/auth/providers", self.server.provider(**more))
        assert response.status_code == 200, response.text

    def ask(self, **more: Any) -> Any:
        body = {"provider": "acme", "scopes": ["read"], "user_id": "ann", **more}
        response = self.control.post("/v2/auth/authenticate", body)
        assert response.status_code == 200, response.text
        assert response.headers["Cache-Control"] == "no-store"
        return response.json

    def come_back(self, location: str, **changes: str) -> TestResponse:
        """Follow the redirect to our callback, as the browser does."""
        browser = self.control.client.application.test_client()
        target = urlsplit(location)
        query = {**returned(location), **changes}
        return browser.get(target.path, query_string=query, headers={"Accept": "text/html,*/*"})

    def consent(self, **more: Any) -> Any:
        """Request a token, consent and return to the callback. Returns the answer to a second request."""
        asked = self.ask(**more)
        assert asked["status"] == "pending", asked
        page = self.come_back(self.server.consent(asked["url"]))
        assert page.status_code == 200, page.text
        return self.ask(**{**more, "force_new": False})

    def wait(self, auth_id: str, seconds: int = 0) -> Any:
        return self.control.get(f"/v2/auth/wait/{auth_id}", timeout=seconds).json

    def age(self, table: str = "oauth_grant") -> None:
        """Let all existing rows expire."""
        execute(f"UPDATE {table} SET expires_at = now() - interval '1 second'")


@pytest.fixture
def users(control: ControlPlane, server: OAuthServer) -> Users:
    return Users(control, server)


def form(answer: Response) -> Response:
    found = orjson.loads(answer.data)
    body = "&".join(f"{name}={value}" for name, value in found.items())
    return Response(body, mimetype="application/x-www-form-urlencoded")


def changed(**changes: Any) -> Callable[[Response], Response]:
    """Return a `bend` that changes fields of the answer. None removes a field."""

    def bend(answer: Response) -> Response:
        found = {**orjson.loads(answer.data), **changes}
        return Response(orjson.dumps({name: value for name, value in found.items() if value is not None}))

    return bend
