"""Browsers of people who sign in: the requests of the console's pages, and of other pages that attack them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import pytest
from flask import Flask
from werkzeug.test import TestResponse

from shared.access import sessions
from shared.infra import egress, encryption
from shared.oauth import openid
from tests.contract.conftest import MakeApp
from tests.support.oauth_server import OAuthServer, oauth_server, returned

URL = "http://localhost"
CALLBACK = f"{URL}/v2/sign-in/callback"
CSRF = "X-Runyard-CSRF"
COOKIE, ATTEMPT = "runyard_session", "runyard_sign_in"
OF_CONSOLE = {"Sec-Fetch-Site": "same-origin", "Origin": URL}
BROWSER = {"Accept": "text/html,*/*"}


class Browser:
    """A browser with cookies, and the console that it shows."""

    def __init__(self, app: Flask, provider: OAuthServer) -> None:
        self.client, self.provider, self.csrf = app.test_client(), provider, ""

    def start(self, place: str = "/") -> str:
        """Begin a sign-in. Returns the address at the provider."""
        response = self.client.get("/v2/sign-in/start", query_string={"next": place}, headers=BROWSER)
        assert response.status_code == 302, response.text
        return response.headers["Location"]

    def answer(self, place: str = "/") -> dict[str, str]:
        """Sign in at the provider. Returns the parameters of its redirect."""
        return returned(self.provider.consent(self.start(place)))

    def come_back(self, answer: dict[str, str], *, headers: dict[str, str] | None = None) -> TestResponse:
        return self.client.get(
            urlsplit(CALLBACK).path, query_string=answer, headers=BROWSER if headers is None else headers
        )

    def sign_in(self) -> TestResponse:
        """Sign in, as the console does it. Returns the response to the callback."""
        response = self.come_back(self.answer())
        assert response.status_code == 303, response.text
        self.csrf = self.session()["csrf_token"]
        return response

    def session(self) -> Any:
        response = self.client.get("/v2/sign-in/session", headers={**OF_CONSOLE, CSRF: "?"})
        assert response.status_code == 200, response.text
        return response.json["session"]

    def call(
        self, method: str, path: str, *, headers: dict[str, str] | None = None, **more: Any
    ) -> TestResponse:
        """Send a request of the console's page."""
        return self.client.open(
            path, method=method, headers={**OF_CONSOLE, CSRF: self.csrf, **(headers or {})}, **more
        )

    def cookie(self, name: str = COOKIE) -> str | None:
        found = self.client.get_cookie(name)
        return None if found is None else found.value


@pytest.fixture(scope="module")
def running_provider() -> Iterator[OAuthServer]:
    with oauth_server() as server:
        yield server


@pytest.fixture
def provider(running_provider: OAuthServer) -> Iterator[OAuthServer]:
    """OpenID Connect provider. Its user is Ann, with the role `admin`."""
    running_provider.reset()
    egress.configure(["127.0.0.1"], allow_http=True)
    encryption.configure([encryption.new_key()])
    openid.forget()
    sessions.forget()
    yield running_provider
    encryption.configure([])
    egress.configure()


@pytest.fixture
def signing_app(app_with: MakeApp, provider: OAuthServer) -> Flask:
    return app_with(url=URL, **provider.openid(CALLBACK))


@pytest.fixture
def browser(signing_app: Flask, provider: OAuthServer) -> Browser:
    return Browser(signing_app, provider)


@pytest.fixture
def ann(browser: Browser) -> Browser:
    """A browser in which Ann has signed in."""
    browser.sign_in()
    return browser
