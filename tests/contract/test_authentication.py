"""A user's consent at a real OAuth server: all successful paths and all failures."""

from __future__ import annotations

import hashlib
import re
from base64 import urlsafe_b64encode
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any
from uuid import UUID

import pytest
from flask import Response
from werkzeug.test import TestResponse

from shared.infra import egress
from tests.contract.conftest import ControlPlane
from tests.contract.consenting import CALLBACK, Users, changed, form, running, server, users
from tests.support.oauth_server import OAuthServer, returned, slowly

__all__ = ["running", "server", "users"]


def violation(response: TestResponse) -> tuple[int, list[Any], str]:
    body: Any = response.json
    [item] = body["detail"]
    return response.status_code, item["loc"], item["type"]


@pytest.mark.parametrize("method", ["client_secret_post", "client_secret_basic", "none"])
@pytest.mark.parametrize("challenge", [None, "S256", "plain"])
def test_a_user_consents_and_the_token_is_there(
    users: Users, server: OAuthServer, method: str, challenge: str | None
) -> None:
    if method == "none" and challenge is None:
        return  # the server requires PKCE from public clients
    server.client(method, CALLBACK)
    if method == "client_secret_basic":
        server.clients["us"].client_secret = "s3cret-without-signs"  # authlib's server decodes no form values
    users.provider(
        token_endpoint_auth_method=method,
        client_secret=None if method == "none" else server.clients["us"].client_secret,
        uses_pkce=challenge is not None,
        **({"code_challenge_method": challenge} if challenge else {}),
    )

    asked = users.ask()
    assert asked["status"] == "pending"
    assert (asked["token"], asked["user_id"], asked["metadata"]) == (None, "ann", None)
    query = returned(asked["url"])
    assert (query["response_type"], query["client_id"], query["scope"]) == ("code", "us", "read")
    assert query["redirect_uri"] == CALLBACK
    assert len(query["state"]) >= 43
    assert query.get("code_challenge_method") == challenge
    page = users.come_back(server.consent(asked["url"]))
    ended = users.wait(asked["auth_id"])

    assert page.status_code == 200
    [token] = server.tokens
    assert ended == {"status": "completed", "token": token.access_token}
    assert users.ask()["token"] == token.access_token
    [form] = server.asked
    assert form["redirect_uri"] == CALLBACK
    assert ("client_secret" in form) is (method == "client_secret_post")
    assert ("client_id" in form) is (method != "client_secret_basic")
    if challenge:
        assert re.fullmatch(r"[A-Za-z0-9._~-]{43,128}", form["code_verifier"])
        digest = (
            urlsafe_b64encode(hashlib.sha256(form["code_verifier"].encode()).digest()).decode().rstrip("=")
        )
        assert query["code_challenge"] == (digest if challenge == "S256" else form["code_verifier"])


def test_a_front_end_passes_code_and_state_on(users: Users, server: OAuthServer) -> None:
    users.provider()
    asked = users.ask()
    sent = returned(server.consent(asked["url"]))
    response = users.control.post("/v2/auth/callback/acme", {"code": sent["code"], "state": sent["state"]})
    assert (response.status_code, response.json) == (
        200,
        {"status": "completed", "provider_id": "acme", "auth_id": asked["auth_id"]},
    )
    assert users.wait(asked["auth_id"])["token"] == server.tokens[0].access_token


def test_the_page_says_what_became_of_it_and_leaves_no_trace(users: Users, server: OAuthServer) -> None:
    users.provider()
    location = server.consent(users.ask()["url"])
    done, again = users.come_back(location), users.come_back(location, error="<script>alert(1)</script>")
    assert (done.status_code, again.status_code) == (200, 422)
    for page in (done, again):
        assert page.content_type == "text/html; charset=utf-8"
        assert page.headers["Referrer-Policy"] == "no-referrer"
        assert page.headers["Cache-Control"] == "no-store"
        assert page.headers["Content-Security-Policy"].startswith("default-src 'none'; style-src 'sha256-")
        assert "<script" not in page.text
        for held in (returned(location)["code"], returned(location)["state"], server.tokens[0].access_token):
            assert held not in page.text
    assert (
        "<p>This state is unknown, has expired or has been used: start the authorization again.</p>"
        in again.text
    )


def test_an_unknown_or_old_state_is_refused(users: Users, server: OAuthServer) -> None:
    users.provider()
    for state in ("", "x", "é", "%00", "a" * 1025):
        response = users.control.get("/v2/auth/callback/acme", code="x", state=state)
        assert (state, violation(response)[:2]) == (state, (422, ["query", "state"]))
    asked = users.ask()
    location = server.consent(asked["url"])
    users.age("oauth_request")  # expire the request, which is valid for ten minutes
    assert users.come_back(location).status_code == 422
    assert users.wait(asked["auth_id"]) == {"status": "not_found", "token": None}
    assert server.asked == []


def test_a_state_serves_once(users: Users, server: OAuthServer) -> None:
    users.provider()
    sent = returned(server.consent(users.ask()["url"]))
    body = {"code": sent["code"], "state": sent["state"]}
    with ThreadPoolExecutor(4) as pool:
        statuses = list(
            pool.map(lambda _: users.control.post("/v2/auth/callback/acme", body).status_code, range(4))
        )
    assert sorted(statuses) == [200, 422, 422, 422]
    assert len(server.asked) == 1
    assert violation(users.control.post("/v2/auth/callback/acme", body)) == (
        422,
        ["body", "state"],
        "value_error",
    )


def test_a_callback_that_is_only_looked_at_or_names_a_parameter_twice_uses_nothing_up(
    users: Users, server: OAuthServer
) -> None:
    users.provider()
    location = server.consent(users.ask()["url"])
    browser = users.control.client.application.test_client()
    assert browser.head(location).status_code == 405
    for name in ("state", "code"):
        twice = browser.get(f"{location}&{name}=other")
        assert (twice.status_code, violation(twice)[1]) == (422, ["query", name])
    assert users.come_back(location).status_code == 200


def test_a_state_belongs_to_its_provider_and_organization(
    users: Users, server: OAuthServer, stranger: ControlPlane
) -> None:
    users.provider()
    users.provider(provider_id="other")
    stranger.post("/v2/auth/providers", server.provider())
    asked = users.ask()
    sent = returned(server.consent(asked["url"]))
    body = {"code": sent["code"], "state": sent["state"]}
    assert violation(users.control.post("/v2/auth/callback/other", body))[:2] == (422, ["body", "state"])
    assert violation(stranger.post("/v2/auth/callback/acme", body))[:2] == (422, ["body", "state"])
    assert stranger.get(f"/v2/auth/wait/{asked['auth_id']}", timeout=0).json == {
        "status": "not_found",
        "token": None,
    }
    assert users.control.post("/v2/auth/callback/acme", body).status_code == 200
    assert stranger.get("/v2/auth/tokens").json == []
    assert stranger.get("/v2/auth/tokens/exists", provider_id="acme").json == {"has_token": False}


def test_a_wrong_verifier_is_noticed_by_the_provider(users: Users, server: OAuthServer) -> None:
    users.provider(uses_pkce=True)
    mine, others = users.ask(), users.ask()
    code = returned(server.consent(others["url"]))["code"]
    state = returned(server.consent(mine["url"]))["state"]
    response = users.control.post("/v2/auth/callback/acme", {"code": code, "state": state})
    assert violation(response) == (422, ["body", "code"], "value_error")
    assert users.wait(mine["auth_id"]) == {
        "status": "failed",
        "token": None,
        "error": "The provider acme refused to issue a token",
    }


def test_a_denial_and_an_answer_of_another_issuer_are_refused(users: Users, server: OAuthServer) -> None:
    users.provider()
    location = server.consent(users.ask()["url"])
    assert returned(location)["iss"] == server.url
    page = users.come_back(location, iss="https://evil.example")
    assert (page.status_code, "another provider" in page.text) == (422, True)
    server.denies = True
    asked = users.ask()
    page = users.come_back(server.consent(asked["url"]))
    assert (page.status_code, "access_denied" in page.text) == (400, True)
    assert users.wait(asked["auth_id"])["status"] == "failed"
    assert server.asked == []


def test_a_providers_own_ways_of_answering_are_understood(users: Users, server: OAuthServer) -> None:
    users.provider()
    for number, bend in enumerate(
        (
            form,
            changed(expires_in="3600"),
            changed(expires_in=None, scope=None),
            changed(expires_in="soon", scope="read,write", token_type="BEARER", refresh_token=None),
            changed(refresh_token=7, expires_in=1e300),
            changed(ok=True, error=None),
        )
    ):
        server.bend = bend
        token = users.consent(user_id=f"user-{number}")["token"]
        assert (number, token) == (number, server.tokens[-1].access_token)


def moved(answer: Response) -> Response:
    return Response(status=307, headers={"Location": "http://169.254.169.254/"})


FAILING: list[tuple[Callable[[Response], Response], int]] = [
    (lambda _: Response(b'{"error":"invalid_grant"}', 400), 422),
    (lambda _: Response(b'{"error":"bad_verification_code"}', 200), 422),
    (lambda _: Response(b'{"ok":false}', 200), 422),
    (lambda _: Response(b'{"error":"slow_down"}', 429), 502),
    (lambda _: Response(b'{"error":"oops"}', 503), 502),
    (lambda _: Response(b"<html>hush</html>", 200), 502),
    (lambda _: Response(b"\xff\xfe", 200), 502),
    (lambda _: Response(b"[]", 200), 502),
    (lambda _: Response(b"{}", 200), 502),
    (lambda _: Response(b"", 200), 502),
    (changed(access_token=None), 502),
    (changed(access_token=""), 502),
    (changed(access_token={"hush": 1}), 502),
    (changed(access_token="a\nb"), 502),
    (lambda _: Response(b'{"access_token":"' + b"x" * 2_000_000 + b'"}', 200), 502),
    (moved, 502),
]


def failed(users: Users, server: OAuthServer, user_id: str, bend: Callable[[Response], Response]) -> int:
    """Send a user back from a token endpoint that fails. Returns the status of the answer, which has no secrets."""
    server.bend = bend
    asked = users.ask(user_id=user_id)
    sent = returned(server.consent(asked["url"]))
    response = users.control.post("/v2/auth/callback/acme", {"code": sent["code"], "state": sent["state"]})
    assert "hush" not in response.text
    assert "internal" not in response.text
    assert users.wait(asked["auth_id"])["status"] == "failed"
    assert users.control.get("/v2/auth/tokens").json == []
    return response.status_code


def test_a_token_endpoint_that_fails_is_reported_without_its_message(
    users: Users, server: OAuthServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    users.provider()
    for number, (bend, status) in enumerate(FAILING):
        assert (number, failed(users, server, f"user-{number}", bend)) == (number, status)

    monkeypatch.setattr(
        egress.request, "__kwdefaults__", {**egress.request.__kwdefaults__, "timeout_seconds": 0.5}
    )
    assert failed(users, server, "waits", slowly(1.0)) == 502


def test_a_token_endpoint_that_is_down_is_reported(users: Users, server: OAuthServer) -> None:
    users.provider(token_url="http://127.0.0.1:1024/token")
    page = users.come_back(server.consent(users.ask()["url"]))
    assert (page.status_code, "127.0.0.1 cannot be reached" in page.text) == (502, True)


def test_who_waits_is_woken_by_the_consent(users: Users, server: OAuthServer) -> None:
    users.provider()
    asked = users.ask()
    assert users.wait(asked["auth_id"]) == {"status": "timeout", "token": None}
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(users.wait, asked["auth_id"], 30)
        users.come_back(server.consent(asked["url"]))
        assert waiting.result(timeout=20) == {"status": "completed", "token": server.tokens[0].access_token}


def test_waiting_for_nothing_ends_at_once(users: Users) -> None:
    for auth_id in (str(UUID(int=1)), "x"):
        assert users.wait(auth_id, 30) == {"status": "not_found", "token": None}, auth_id


def test_no_token_or_secret_is_logged(
    users: Users, server: OAuthServer, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG")
    users.provider(uses_pkce=True)
    asked = users.ask()
    location = server.consent(asked["url"])
    users.come_back(location)
    users.age()
    users.ask()
    server.tokens[-1].is_spent = True
    users.age()
    users.ask()
    others = ("authlib", "httpx", "httpcore")  # logs of the OAuth server and the browser
    ours = "\n".join(r.getMessage() for r in caplog.records if not r.name.startswith(others))
    held = [returned(location)["state"], server.clients["us"].client_secret]
    held += [value for token in server.tokens for value in (token.access_token, token.refresh_token or "")]
    assert [value for value in held if value in ours] == []


def test_the_redirect_can_go_to_a_front_end(users: Users, server: OAuthServer) -> None:
    config = users.control.client.application.config
    front = "https://front.example/host-oauth-callback/{provider_id}"
    config["SETTINGS"] = replace(config["SETTINGS"], oauth_redirect_url=front)
    users.provider(provider_id="acme corp")
    asked = users.ask(provider="acme corp")
    assert returned(asked["url"])["redirect_uri"] == "https://front.example/host-oauth-callback/acme%20corp"
    server.client("client_secret_post", "https://front.example/host-oauth-callback/acme%20corp")
    sent = returned(server.consent(asked["url"]))
    body = {"code": sent["code"], "state": sent["state"], "iss": sent["iss"]}
    assert users.control.post("/v2/auth/callback/acme%20corp", body).status_code == 200


def test_the_mcp_server_is_named_to_its_provider(users: Users, server: OAuthServer) -> None:
    body = {"provider_id": "acme", "name": "Tools", "mcp_server_url": f"{server.url}/mcp"}
    assert users.control.post("/v2/auth/providers/mcp-discover", body).status_code == 200
    server.issuer = f"{server.url}/tenant"
    asked = users.ask()
    assert returned(asked["url"])["resource"] == f"{server.url}/mcp"
    assert users.come_back(server.consent(asked["url"])).status_code == 200
    assert server.asked[0]["resource"] == f"{server.url}/mcp"
    assert users.ask()["token"] == server.tokens[0].access_token
