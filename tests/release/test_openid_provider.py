"""Sign-in with the certified OpenID Connect provider `oidc-provider`, which shares no code with the service or its tests.

Its pages are forms without scripts, so that an HTTP client is its browser.
"""

from __future__ import annotations

import html
import json
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import urljoin

import httpx
import pytest
from flask import Flask

from shared.access import sessions
from shared.infra import egress, encryption
from shared.oauth import openid
from tests.contract.conftest import MakeApp, _routes, app_with
from tests.contract.signing_in import ATTEMPT, BROWSER, CALLBACK, URL, Browser
from tests.support import javascript
from tests.support.oauth_server import SECRET, returned
from tests.support.servers import free_port

__all__ = ["_routes", "app_with"]

MAX_REDIRECTS = 15
USUAL: dict[str, Any] = {
    "algorithm": "RS256",
    "method": "client_secret_basic",
    "claims": {"name": "Ann Example", "groups": ["staff", "guests"]},
    "in_id_token": False,
}


@contextmanager
def provider(port: int, **options: Any) -> Iterator[None]:
    """Run the provider with new keys."""
    folder = javascript.installed("openid")
    shutil.copy(javascript.JS / "openid" / "provider.mjs", folder)
    options = {**USUAL, "port": port, "url": URL, "secret": SECRET, **options}
    process = subprocess.Popen(
        [javascript.NODE / "node", "provider.mjs"],
        cwd=folder,
        env=javascript.environment(OPTIONS=json.dumps(options)),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    try:
        assert process.stdout.readline() == "ready\n"
        yield
    finally:
        process.communicate(timeout=30)  # closes its input


class Person:
    """A browser that shows the pages of the console and of the provider."""

    def __init__(self, app: Flask) -> None:
        self.console = Browser(app, None)  # type: ignore[arg-type]  the provider of other tests
        self.elsewhere = httpx.Client(timeout=30)

    def visit(self, url: str, *, refuses: bool = False) -> str:
        """Fill in the provider's forms. Returns the address of the service to which the provider redirects."""
        for _ in range(MAX_REDIRECTS):
            shown = self.elsewhere.get(url)
            if not shown.is_redirect and refuses:
                (link,) = re.findall(r'href="([^"]+/abort)"', shown.text)
                shown = self.elsewhere.get(urljoin(url, html.unescape(link)))
            elif not shown.is_redirect:
                shown = self._submit(url, shown.text)
            assert shown.is_redirect, shown.text
            url = urljoin(url, shown.headers["location"])
            if url.startswith(f"{URL}/"):
                return url
        raise AssertionError(f"the provider redirects too often: {url}")

    def _submit(self, url: str, page: str) -> httpx.Response:
        (action,) = re.findall(r'<form[^>]* action="([^"]+)"', page)
        hidden = dict(re.findall(r'name="([^"]+)" value="([^"]*)"', page))
        return self.elsewhere.post(
            urljoin(url, html.unescape(action)),
            data={**hidden, "login": "ann", "password": "any", "logout": "yes"},
        )

    def answer(self) -> dict[str, str]:
        return returned(self.visit(self.console.start()))

    def sign_in(self) -> Any:
        """Sign in. Returns the session."""
        response = self.console.come_back(self.answer())
        assert response.status_code == 303, response.text
        session = self.console.session()
        self.console.csrf = session["csrf_token"]
        return session


@pytest.fixture
def port(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """Port of the provider, which the service may call. The service reads rotated keys at once."""
    egress.configure(["127.0.0.1"], allow_http=True)
    encryption.configure([encryption.new_key()])
    monkeypatch.setattr(openid, "RETRY_SECONDS", 0.0)
    openid.forget()
    sessions.forget()
    yield free_port()
    encryption.configure([])
    egress.configure()


@pytest.fixture
def person(app_with: MakeApp, port: int) -> Callable[..., Person]:
    """Function that opens a browser at a service with this claim for roles."""

    def browse(role_claim: str = "groups") -> Person:
        return Person(
            app_with(
                url=URL,
                oidc_issuer=f"http://127.0.0.1:{port}",
                oidc_client_id="runyard",
                oidc_client_secret=SECRET,
                oidc_role_claim=role_claim,
                oidc_roles=(("staff", "run"), ("platform", "admin")),
            )
        )

    return browse


@pytest.mark.parametrize(
    ("options", "claim", "role"),
    [
        ({}, "groups", "run"),
        ({"algorithm": "ES256", "method": "client_secret_post", "in_id_token": True}, "groups", "run"),
        ({"algorithm": "PS256", "claims": {"access": {"roles": "platform"}}}, "access.roles", "admin"),
        ({"algorithm": "Ed25519", "in_id_token": True, "claims": {"groups": "staff"}}, "groups", "run"),
    ],
)
def test_a_person_signs_in_and_out(
    port: int, person: Callable[..., Person], options: dict[str, Any], claim: str, role: str
) -> None:
    ann = person(claim)
    with provider(port, **options):
        session = ann.sign_in()
        assert session["role"] == role
        assert session["name"].endswith(
            "ann@example.com" if "claims" in options else "Ann Example <ann@example.com>"
        )
        signed_out: Any = ann.console.call("POST", "/v2/sign-out").json
        assert ann.visit(signed_out["logout_url"]) == f"{URL}/"
        assert ann.console.session() is None
        assert ann.sign_in()["role"] == role


def test_a_person_who_refuses_is_told_so(port: int, person: Callable[..., Person]) -> None:
    ann = person()
    with provider(port):
        answer = returned(ann.visit(ann.console.start(), refuses=True))
        response = ann.console.come_back(answer)
    assert (response.status_code, "The provider answered access_denied." in response.text) == (400, True)


def test_a_code_counts_once_and_for_one_sign_in(port: int, person: Callable[..., Person]) -> None:
    ann = person()
    with provider(port):
        first, second = ann.answer(), ann.answer()
        mixed = {**second, "code": first["code"]}  # PKCE: the verifier is that of another sign-in
        assert "The provider refused the code." in ann.console.come_back(mixed).text
        answer = ann.answer()
        kept = ann.console.cookie(ATTEMPT)
        assert ann.console.come_back(answer).status_code == 303
        assert kept is not None
        ann.console.client.set_cookie(ATTEMPT, kept)
        assert "The provider refused the code." in ann.console.come_back(answer).text


def test_sign_in_survives_new_keys_and_another_algorithm_and_says_when_the_provider_is_down(
    port: int, person: Callable[..., Person]
) -> None:
    ann = person()
    for options in ({}, {}, {"algorithm": "ES256"}):
        with provider(port, **options):
            ann.sign_in()
    openid.forget()
    response = ann.console.client.get("/v2/sign-in/start", headers=BROWSER)
    assert (response.status_code, "Not signed in" in response.text) == (502, True)
    assert ann.console.call("GET", "/v2/me").status_code == 200
    assert ann.console.call("POST", "/v2/sign-out").json == {"logout_url": None}


def test_a_service_at_another_address_is_not_a_client(port: int, app_with: MakeApp) -> None:
    settings = {"oidc_client_id": "runyard", "oidc_client_secret": SECRET, "oidc_default_role": "read"}
    with provider(port):
        slash = app_with(url=URL, oidc_issuer=f"http://127.0.0.1:{port}/", **settings).test_client()
        response = slash.get("/v2/sign-in/start")
        assert (response.status_code, "names another issuer" in response.text) == (502, True)
        moved = app_with(url="http://localhost:81", oidc_issuer=f"http://127.0.0.1:{port}", **settings)
        address = moved.test_client().get("/v2/sign-in/start").headers["Location"]
        refused = httpx.get(address)
        assert (refused.status_code, "redirect_uri" in refused.text) == (400, True)
    assert CALLBACK not in address
