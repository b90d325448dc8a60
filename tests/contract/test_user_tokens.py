"""A user's tokens: ownership, refresh, listing and revocation."""

from __future__ import annotations

import re
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from flask import Response
from sqlalchemy import text

from shared.access.api_keys import DEFAULT_ORGANIZATION_ID
from shared.infra.postgres import connection
from tests.contract.consenting import Users, changed, running, server, users
from tests.contract.statements import execute
from tests.support.oauth_server import OAuthServer, slowly

__all__ = ["running", "server", "users"]


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
