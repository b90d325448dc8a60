"""The exact requests sent to an OAuth provider."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from flask import Flask, request

from shared.infra import egress
from shared.oauth import token_endpoint
from shared.oauth.token_endpoint import OAuthClient
from tests.support.oauth_server import returned
from tests.support.outside import serving

CLIENT = OAuthClient(
    provider_id="acme",
    client_id="a:b c",
    client_secret="s+/& é",
    auth_url="https://acme.example/authorize?tenant=1",
    token_url="https://acme.example/token",
    auth_method="client_secret_post",
    pkce_method=None,
)


def test_the_users_address_keeps_its_own_query() -> None:
    url = token_endpoint.authorization_url(
        CLIENT, redirect_uri="https://us.example/cb?x=1", scopes=["a", "b:c"], state="st", verifier=None
    )
    assert url.startswith("https://acme.example/authorize?tenant=1&response_type=code&")
    assert returned(url) == {
        "tenant": "1",
        "response_type": "code",
        "client_id": "a:b c",
        "redirect_uri": "https://us.example/cb?x=1",
        "scope": "a b:c",
        "state": "st",
    }
    bare = token_endpoint.authorization_url(CLIENT, redirect_uri="r", scopes=[], state="s", verifier=None)
    assert "scope" not in returned(bare)


def test_a_challenge_is_made_as_the_standard_shows() -> None:
    """The example of RFC 7636, appendix B."""
    verifier = "dBjftJeZ4CVP-mB92K27uhbUJU1p1r_wW1gFWFOEjXk"
    client = replace(CLIENT, pkce_method="S256")
    url = token_endpoint.authorization_url(client, redirect_uri="r", scopes=[], state="s", verifier=verifier)
    assert returned(url)["code_challenge"] == "E9Melhoa2OwvFrEMTJguCHaoeK1t8URWbuGJSstw-cM"

    tokens = token_endpoint.Tokens(access_token="hush", refresh_token="hush", lifetime_seconds=1, scopes=None)
    assert "hush" not in repr(tokens)
    assert "s+/&" not in repr(CLIENT)


@pytest.fixture
def heard() -> Iterator[list[Any]]:
    """The requests that a token endpoint receives, as header and form of each. The last item is its address."""
    app, heard = Flask("token endpoint"), []

    @app.post("/token")
    def token() -> dict[str, Any]:
        heard.append((request.headers, request.form.to_dict()))
        return {"access_token": "t", "authed_user": {"access_token": "u", "scope": "a,b"}}

    egress.configure(["127.0.0.1"], allow_http=True)
    with serving(app) as port:
        heard.append(f"http://127.0.0.1:{port}/token")
        yield heard
    egress.configure()


@pytest.mark.parametrize(
    ("method", "secret", "authorization", "form"),
    [
        ("client_secret_post", "s+/& é", None, {"client_id": "a:b c", "client_secret": "s+/& é"}),
        ("client_secret_post", None, None, {"client_id": "a:b c"}),
        ("client_secret_basic", "s+/& é", "a%3Ab+c:s%2B%2F%26+%C3%A9", {}),
        ("client_secret_basic", None, "a%3Ab+c:", {}),
        ("none", "s", None, {"client_id": "a:b c"}),
    ],
)
def test_the_client_is_named_as_the_provider_wants_it(
    heard: list[Any], method: str, secret: str | None, authorization: str | None, form: dict[str, str]
) -> None:
    client = replace(CLIENT, token_url=heard[0], auth_method=method, client_secret=secret)
    token_endpoint.exchange(client, code="c+d", redirect_uri="r", verifier="v")
    token_endpoint.refresh(client, "old")
    (headers, exchanged), (_, refreshed) = heard[1:]
    assert exchanged == {
        "grant_type": "authorization_code",
        "code": "c+d",
        "redirect_uri": "r",
        "code_verifier": "v",
        **form,
    }
    assert refreshed == {"grant_type": "refresh_token", "refresh_token": "old", **form}
    assert headers["Content-Type"] == "application/x-www-form-urlencoded"
    assert headers["Accept"] == "application/json"
    sent = headers.get("Authorization")
    assert (sent and base64.b64decode(sent.removeprefix("Basic ")).decode()) == authorization


def test_one_vendor_puts_the_users_token_inside(heard: list[Any]) -> None:
    client = replace(CLIENT, token_url=heard[0])
    assert token_endpoint.refresh(client, "r").access_token == "t"
    nested = token_endpoint.refresh(replace(client, provider_type="slack"), "r")
    assert (nested.access_token, nested.scopes) == ("u", ["a", "b"])
