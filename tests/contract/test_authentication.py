"""A user's consent at a real OAuth server, and the tokens that it gives: all successful paths and all failures."""

from __future__ import annotations

import hashlib
import re
from base64 import urlsafe_b64encode
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any
from urllib.parse import urlsplit
from uuid import UUID

import orjson
import pytest
from flask import Response
from sqlalchemy import text
from werkzeug.test import TestResponse

from shared.access.api_keys import DEFAULT_ORGANIZATION_ID
from shared.infra import egress
from shared.infra.postgres import connection
from tests.contract.conftest import ControlPlane
from tests.contract.statements import execute
from tests.support.oauth_server import OAuthServer, oauth_server, returned, slowly

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


def violation(response: TestResponse) -> tuple[int, list[Any], str]:
    body: Any = response.json
    [item] = body["detail"]
    return response.status_code, item["loc"], item["type"]


@pytest.mark.parametrize(
    ("method", "challenge"),
    [
        ("client_secret_post", "S256"),
        ("client_secret_post", None),
        ("client_secret_basic", "plain"),
        ("none", "S256"),
    ],
)
def test_a_user_consents_and_the_token_is_there(
    users: Users, server: OAuthServer, method: str, challenge: str | None
) -> None:
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


# Tokens


def test_a_token_is_its_users_and_agents_own(users: Users, server: OAuthServer) -> None:
    users.provider()
    token = users.consent(agent_id="a1")["token"]
    assert users.ask(agent_id="a1")["token"] == token
    for more in (
        {"agent_id": "a2"},
        {},
        {"user_id": "bob", "agent_id": "a1"},
        {"agent_id": "a1", "scopes": ["write"]},
    ):
        assert users.ask(**more)["status"] == "pending"
    shared = users.consent()["token"]
    assert users.ask(agent_id="a2")["token"] == shared
    assert users.ask(agent_id="a1")["token"] == token
    assert users.ask(user_id=None, ls_user_id="ann")["token"] == shared
    own = users.ask(user_id=None)
    assert (own["status"], own["user_id"]) == ("pending", str(DEFAULT_ORGANIZATION_ID))


def test_wider_consent_replaces_narrower_and_another_account_stands_beside(
    users: Users, server: OAuthServer
) -> None:
    users.provider()
    users.consent(scopes=["read"])
    wide = users.consent(scopes=["read", "write"])["token"]
    assert users.ask(scopes=["write"])["token"] == wide
    assert len(users.control.get("/v2/auth/tokens").json) == 1  # type: ignore[arg-type]
    other = users.consent(scopes=["read", "write"], force_new=True)["token"]
    listed: Any = users.control.get("/v2/auth/tokens").json
    assert [row["is_default"] for row in listed] == [False, True]
    assert other == server.tokens[-1].access_token
    assert users.ask(token_id=listed[0]["id"])["token"] == wide
    path = f"/v2/auth/tokens/{listed[0]['id']}/metadata"
    described: Any = users.control.call(
        "PATCH", path, {"is_default": True, "provider_account_label": "work"}
    ).json
    assert (described["is_default"], described["provider_account_label"]) == (True, "work")
    assert users.ask(scopes=["read"])["token"] == wide


def test_an_expired_token_is_refreshed_and_the_rotated_refresh_token_kept(
    users: Users, server: OAuthServer
) -> None:
    users.provider()
    first = users.consent()["token"]
    for count in (1, 2):
        users.age()
        again = users.ask()
        assert (again["status"], again["token"]) == ("completed", server.tokens[-1].access_token)
        assert again["token"] != first
        assert server.refreshes() == count
    assert users.ask()["token"] == server.tokens[-1].access_token


def test_a_provider_that_sends_no_new_refresh_token_gets_the_old_one_again(
    users: Users, server: OAuthServer
) -> None:
    users.provider()
    users.consent()
    server.bend = changed(refresh_token=None, scope=None)
    users.age()
    users.ask()
    server.bend = None
    server.tokens[0].is_spent = False  # this provider does not rotate refresh tokens
    users.age()
    assert users.ask()["status"] == "completed"
    assert len({form["refresh_token"] for form in server.asked if "refresh_token" in form}) == 1


def test_many_callers_of_an_expired_token_refresh_it_once(users: Users, server: OAuthServer) -> None:
    users.provider()
    users.consent()
    users.age()
    server.bend = slowly(0.2)
    with ThreadPoolExecutor(5) as pool:
        answers = list(pool.map(lambda _: users.ask(), range(5)))
    assert {answer["token"] for answer in answers} == {server.tokens[-1].access_token}
    assert server.refreshes() == 1


def test_a_refused_refresh_leads_to_new_consent(users: Users, server: OAuthServer) -> None:
    users.provider()
    users.consent()
    [row] = users.control.get("/v2/auth/tokens").json  # type: ignore[misc]
    users.age()
    server.tokens[0].is_spent = True
    assert users.ask(token_id=row["id"])["status"] == "token_expired"
    assert users.ask()["status"] == "pending"
    assert server.refreshes() == 1


def test_a_refresh_without_an_answer_asks_nobody_to_consent_again(users: Users, server: OAuthServer) -> None:
    users.provider()
    users.consent()
    users.age()
    server.bend = lambda _: Response(status=503)
    body = {"provider": "acme", "scopes": ["read"], "user_id": "ann"}
    assert users.control.post("/v2/auth/authenticate", body).status_code == 502
    server.bend = None
    server.tokens[0].is_spent = False
    assert users.ask()["status"] == "completed"


def test_tokens_are_listed_without_themselves_and_encrypted_at_rest(
    users: Users, server: OAuthServer
) -> None:
    users.provider(uses_pkce=True)
    users.consent()
    answer = users.control.get("/v2/auth/tokens", provider_id="acme")
    [row] = answer.json  # type: ignore[misc]
    assert (row["provider_id"], row["user_id"], row["scopes"]) == ("acme", "ann", ["read"])
    assert (row["is_default"], row["provider_account_label"], row["agent_id"]) == (True, None, None)
    assert row["expires_at"] is not None
    [token] = server.tokens
    with connection() as conn:
        stored = "".join(
            conn.execute(text(f"SELECT string_agg(cast(t AS text), '') FROM {table} t")).scalar_one() or ""
            for table in ("oauth_grant", "oauth_request", "oauth_provider")
        )
        stored_bytes = bytes.fromhex("".join(re.findall(r"\\+x([0-9a-f]+)", stored)) or "00")
    for held in (token.access_token, token.refresh_token or "", server.clients["us"].client_secret):
        assert held not in answer.text
        assert held not in stored
        assert held.encode() not in stored_bytes


def test_tokens_are_revoked_here_and_where_the_provider_can(users: Users, server: OAuthServer) -> None:
    users.provider()
    users.consent()
    users.consent(user_id="bob")
    rows: Any = users.control.get("/v2/auth/tokens").json
    assert users.control.call("DELETE", f"/v2/auth/tokens/{rows[0]['id']}").status_code == 204
    assert users.control.call("DELETE", f"/v2/auth/tokens/{rows[0]['id']}").status_code == 404
    assert users.control.get("/v2/auth/tokens/exists", provider_id="acme").json == {"has_token": True}
    execute("UPDATE oauth_provider SET revocation_url = :url", url=f"{server.url}/revoke")
    gone = users.control.call("DELETE", "/v2/auth/tokens", query_string={"provider_id": "acme"})
    assert (gone.status_code, gone.json) == (200, {"message": "1 token revoked.", "provider_id": "acme"})
    assert set(server.revoked) == {server.tokens[1].access_token, server.tokens[1].refresh_token}
    assert users.control.get("/v2/auth/tokens/exists", provider_id="acme").json == {"has_token": False}
    query = (
        "SELECT actor ->> 'key_id', subject FROM audit_entry WHERE action = 'provider.authorized' ORDER BY id"
    )
    assert [tuple(row) for row in execute(query)] == [("ann", "acme"), ("bob", "acme")]
    query = "SELECT subject, detail FROM audit_entry WHERE action = 'provider.tokens_revoked'"
    assert execute(query) == [("acme", {"tokens": 1})] * 2
    assert users.ask()["status"] == "pending"
    missing: Any = users.control.call("DELETE", "/v2/auth/tokens").json
    assert missing["detail"][0]["loc"] == ["query", "provider_id"]


def test_a_provider_takes_its_tokens_along(users: Users, server: OAuthServer) -> None:
    users.provider()
    users.consent()
    pending = users.ask(user_id="bob")
    location = server.consent(pending["url"])
    users.control.call("DELETE", "/v2/auth/providers/acme")
    assert users.control.get("/v2/auth/tokens").json == []
    assert users.come_back(location).status_code == 422
    body = {"provider": "acme", "scopes": []}
    assert users.control.post("/v2/auth/authenticate", body).status_code == 404
