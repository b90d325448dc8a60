"""Sessions of people who sign in: what a session may do, and how pages that are not the console are kept from using it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from flask import Flask

import tests.support.factories as make
from shared.access import api_keys, organizations, sessions
from shared.access.api_keys import DEFAULT_ORGANIZATION_ID
from shared.hosts import exchanges
from shared.infra.postgres import connection
from shared.infra.tokens import token_hash
from shared.oauth import openid
from tests.contract.conftest import ADMIN_KEY, MakeApp, new_key
from tests.contract.signing_in import (
    CALLBACK,
    COOKIE,
    CSRF,
    OF_CONSOLE,
    URL,
    Browser,
    ann,
    browser,
    provider,
    running_provider,
    signing_app,
)
from tests.contract.statements import execute, one, scalar
from tests.support import user_code
from tests.support.oauth_server import OAuthServer, returned
from tests.support.played_app import Side, Stage, serve
from web.gate import limits
from web.gate.deployments import forget as forget_deployments

__all__ = ["ann", "browser", "provider", "running_provider", "signing_app"]

EVIL = "https://evil.example"


def me(browser: Browser, **more: Any) -> tuple[int, str]:
    response = browser.call("GET", "/v2/me", **more)
    return response.status_code, response.json.get("detail", "")


def test_a_session_acts_with_the_role_and_the_name_of_the_person(ann: Browser) -> None:
    found: Any = ann.call("GET", "/v2/me").json
    assert found["key"] is None
    assert found["role"] == "admin"
    assert found["user"]["name"] == "Ann Example <ann@example.com>"
    assert found["user"]["id"].startswith("account:")
    response = ann.call("POST", "/v2/organizations", json={"name": "acme"})
    assert response.status_code == 403
    assert response.json["detail"] == "This needs the role operator: the signed-in user has the role admin"


def test_a_key_that_a_person_creates_has_their_name(ann: Browser) -> None:
    created: Any = ann.call("POST", "/v2/keys", json={"name": "ci", "role": "run"})
    assert created.status_code == 201, created.text
    assert created.json["created_by"] == "Ann Example <ann@example.com>"
    assert ann.call("POST", "/v2/keys", json={"name": "o", "role": "operator"}).status_code == 403
    with connection() as conn:
        assert api_keys.name_of(conn, scalar("SELECT id FROM account")) == "Ann Example <ann@example.com>"


def test_the_cookie_alone_opens_nothing(ann: Browser) -> None:
    for headers in ({}, OF_CONSOLE, {CSRF: ann.csrf, "Cookie": ""}):
        response = ann.client.post("/v2/keys", json={"name": "x", "role": "read"}, headers=headers)
        assert response.status_code == 401, headers
    assert ann.client.get("/v2/keys").status_code == 401
    assert scalar("SELECT count(*) FROM api_key") == 0


def test_a_wrong_csrf_token_opens_nothing(ann: Browser, signing_app: Flask) -> None:
    other = Browser(signing_app, ann.provider)
    other.sign_in()
    for csrf in ("?", ann.csrf[:-1], other.csrf, str(ann.cookie())):
        assert me(ann, headers={CSRF: csrf})[0] == 401, csrf
    assert me(ann)[0] == 200


FOREIGN: list[tuple[str, dict[str, str]]] = [
    ("GET", {"Sec-Fetch-Site": "cross-site"}),
    ("GET", {"Sec-Fetch-Site": "same-site"}),
    ("GET", {"Sec-Fetch-Site": "none"}),
    ("GET", {"Origin": EVIL}),
    ("GET", {"Origin": "null"}),
    ("GET", {"Sec-Fetch-Site": "same-origin", "Origin": "null"}),
    ("POST", {}),
    ("POST", {"Origin": "http://localhost:81"}),
    ("POST", {"Origin": "http://apps.localhost"}),
    ("POST", {"Sec-Fetch-Site": "cross-site", "Origin": URL}),
    ("DELETE", {}),
]


def test_a_request_of_another_site_has_no_session(ann: Browser) -> None:
    """Even with the CSRF token, which such a page cannot know."""
    for method, headers in FOREIGN:
        sent = {**headers, CSRF: ann.csrf}
        path = {"GET": "/v2/keys", "POST": "/v2/keys", "DELETE": "/v2/keys/abcdefgh"}[method]
        body = {"name": "x", "role": "read"} if method == "POST" else None
        response = ann.client.open(path, method=method, json=body, headers=sent)
        assert response.status_code == 401, (method, headers, response.text)
        for place in ("/v2/sign-in/session", "/v2/sign-out"):
            answer = ann.client.open(place, method="GET" if "in" in place else "POST", headers=sent)
            assert answer.status_code in (200, 403), (method, headers, answer.text)
            assert "csrf_token" not in answer.text or method != "GET", headers
        assert me(ann)[0] == 200, (method, headers)


def test_a_browser_that_sends_no_fetch_metadata_uses_the_origin(ann: Browser) -> None:
    assert ann.client.get("/v2/me", headers={CSRF: ann.csrf}).status_code == 200
    response = ann.client.post(
        "/v2/keys", json={"name": "x", "role": "read"}, headers={CSRF: ann.csrf, "Origin": URL}
    )
    assert response.status_code == 201


def test_only_the_console_reads_the_session(ann: Browser) -> None:
    for headers in (
        {},
        {"Sec-Fetch-Site": "same-origin"},
        {CSRF: "?", "Origin": "null"},
        {CSRF: "?", "Sec-Fetch-Site": "cross-site"},
    ):
        response = ann.client.get("/v2/sign-in/session", headers=headers)
        assert response.status_code == 403, headers
        assert "Access-Control-Allow-Origin" not in response.headers
    preflight = ann.client.options(
        "/v2/sign-in/session",
        headers={
            "Origin": EVIL,
            "Access-Control-Request-Method": "GET",
            "Access-Control-Request-Headers": CSRF,
        },
    )
    assert not any(name.lower().startswith("access-control") for name, _ in preflight.headers)


def test_a_key_takes_precedence(ann: Browser) -> None:
    found: Any = ann.call("GET", "/v2/me", headers={"X-Api-Key": new_key("read", name="ci")}).json
    assert (found["role"], found["key"]["name"], found["user"]) == ("read", "ci", None)
    assert me(ann, headers={"X-Api-Key": "wrong"})[0] == 401


def test_another_cookie_of_the_same_name_does_not_replace_the_session(
    ann: Browser, signing_app: Flask
) -> None:
    """As a page below the same host could set one for its own path, without https."""
    jar = f"{COOKIE}=ryd_session_of-somebody-else; {COOKIE}={ann.cookie()}"
    client = signing_app.test_client(use_cookies=False)
    headers = {**OF_CONSOLE, CSRF: ann.csrf, "Cookie": jar}
    assert client.get("/v2/me", headers=headers).status_code == 200


def test_many_cookies_cause_few_lookups(
    ann: Browser, signing_app: Flask, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked_up: list[str] = []
    monkeypatch.setattr(sessions, "find", lambda token, settings: looked_up.append(token))
    jar = "; ".join(f"{COOKIE}=t{number}" for number in range(300))
    client = signing_app.test_client(use_cookies=False)
    headers = {**OF_CONSOLE, CSRF: "?", "Cookie": jar}
    assert client.get("/v2/sign-in/session", headers=headers).json == {
        "session": None,
        "ended": sessions.ENDED,
    }
    assert len(looked_up) == 5


def test_an_unknown_session_is_counted_as_a_wrong_key(ann: Browser, signing_app: Flask) -> None:
    limits.start_failures(signing_app)
    token = "ryd_session_unknown"
    headers = {"Cookie": f"{COOKIE}={token}", CSRF: sessions.csrf_token(token), **OF_CONSOLE}
    client = signing_app.test_client(use_cookies=False)
    answers = [client.get("/v2/me", headers=headers).status_code for _ in range(22)]
    assert answers[0] == 401
    assert answers[-1] == 429
    assert me(ann)[0] == 200  # a valid session passes from the same address


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ("expires_at = now() - interval '1 second'", sessions.EXPIRED),
        ("used_at = now() - interval '3 hours'", sessions.IDLE),
    ],
)
def test_a_session_ends_and_the_console_learns_why(ann: Browser, change: str, sentence: str) -> None:
    execute(f"UPDATE session SET {change}")
    sessions.forget()
    assert me(ann) == (401, sentence)
    found: Any = ann.client.get("/v2/sign-in/session", headers={**OF_CONSOLE, CSRF: "?"})
    assert found.json == {"session": None, "ended": sentence}
    assert ann.cookie() is None


def test_use_keeps_a_session_alive(ann: Browser) -> None:
    execute("UPDATE session SET used_at = now() - interval '1 hour'")
    sessions.forget()
    assert me(ann)[0] == 200
    assert one("SELECT now() - used_at < interval '1 minute' FROM session") == (True,)


def test_signing_out_ends_the_session_here_and_at_the_provider(ann: Browser, signing_app: Flask) -> None:
    token = str(ann.cookie())
    for headers in ({}, {CSRF: "?"}, {CSRF: ann.csrf, "Origin": EVIL}):
        assert ann.client.post("/v2/sign-out", headers=headers).status_code == 403, headers
        without_cookie = signing_app.test_client().post(
            "/v2/sign-out", headers=headers if CSRF not in headers else {}
        )
        assert without_cookie.status_code == 403
        assert "Set-Cookie" not in without_cookie.headers  # as the form of another site's page sends it
    response: Any = ann.call("POST", "/v2/sign-out")
    assert response.status_code == 200
    url = response.json["logout_url"]
    assert url.startswith(f"{ann.provider.url}/logout?")
    sent = returned(url)
    assert (sent["client_id"], sent["post_logout_redirect_uri"]) == ("runyard", f"{URL}/")
    assert sent["id_token_hint"].count(".") == 2
    assert ann.cookie() is None
    assert scalar("SELECT count(*) FROM session") == 0
    ann.client.set_cookie(COOKIE, token)
    assert me(ann) == (401, sessions.ENDED)
    assert ann.call("POST", "/v2/sign-out").json == {"logout_url": None}
    recorded = execute(
        "SELECT subject, address, actor ->> 'name' FROM audit_entry WHERE action = 'user.signed_out'"
    )
    name = "Ann Example <ann@example.com>"
    assert recorded == [(name, "127.0.0.1", name)]


def test_a_provider_without_logout_ends_the_session_here(ann: Browser) -> None:
    ann.provider.metadata = {"end_session_endpoint": None}
    openid.forget()
    assert ann.call("POST", "/v2/sign-out").json == {"logout_url": None}
    assert scalar("SELECT count(*) FROM session") == 0


def test_a_session_ends_with_its_organization_and_with_its_provider(
    app_with: MakeApp, provider: OAuthServer
) -> None:
    acme = make.organization("acme")
    provider.claims = {"org": "acme"}
    configured = provider.openid(CALLBACK)
    person = Browser(app_with(url=URL, oidc_organization_claim="org", **configured), provider)
    person.sign_in()
    app_with(url=URL, **{**configured, "oidc_issuer": EVIL})
    sessions.forget()
    assert me(person)[0] == 401
    app_with(url=URL)  # sign-in is not configured any more
    assert me(person)[0] == 401
    app_with(url=URL, **configured)
    sessions.forget()
    assert me(person)[0] == 200
    with connection() as conn:
        organizations.delete(conn, acme)
    sessions.forget()
    assert me(person)[0] == 401


def test_a_stream_ends_with_its_session(ann: Browser, signing_app: Flask) -> None:
    key, settings = token_hash(str(ann.cookie())), signing_app.config["SETTINGS"]
    sessions.forget()
    assert sessions.is_alive(key, settings)
    ann.call("POST", "/v2/sign-out")
    assert not sessions.is_alive(key, settings)


def test_upkeep_removes_sessions_and_people(ann: Browser, signing_app: Flask) -> None:
    settings = signing_app.config["SETTINGS"]
    execute("UPDATE session SET expires_at = now() - interval '1 hour'")
    with connection() as conn:
        sessions.purge_ended(conn, settings)
    assert scalar("SELECT count(*) FROM session") == 1
    execute("UPDATE session SET expires_at = now() - interval '2 days'")
    with connection() as conn:
        sessions.purge_ended(conn, settings)
    assert (scalar("SELECT count(*) FROM session"), scalar("SELECT count(*) FROM account")) == (0, 1)
    execute("UPDATE account SET signed_in_at = now() - interval '91 days'")
    with connection() as conn:
        sessions.purge_ended(conn, settings)
    assert scalar("SELECT count(*) FROM account") == 0


@pytest.fixture
def chat(signing_app: Flask) -> Any:
    deployment = make.deployment(organization_id=DEFAULT_ORGANIZATION_ID, name="chat")
    forget_deployments()
    return deployment


def test_a_session_uses_a_deployment_as_its_role_allows(ann: Browser, chat: Any) -> None:
    assert ann.call("POST", "/d/chat/threads", json={}).status_code == 200
    assert ann.client.post("/d/chat/threads", json={}, headers=OF_CONSOLE).status_code == 401
    execute("UPDATE session SET role = 'read'")
    sessions.forget()
    assert ann.call("POST", "/d/chat/threads", json={}).status_code == 403
    assert ann.call("POST", "/d/chat/threads/search", json={}).status_code == 200


@pytest.fixture
def app_of_chat(chat: Any, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Stage]:
    """Function that plays the app of the deployment `chat`."""

    def play(answer: Callable[[Side], None], *routes: str, **more: Any) -> Stage:
        stage = Stage(answer)
        monkeypatch.setattr(exchanges, "open_exchange", stage.open_exchange)
        serve(chat, *routes, **more)
        forget_deployments()
        return stage

    return play


def hello(side: Side) -> None:
    side.body()
    side.answer(b"hello", headers=[("content-length", "5")])


def test_an_app_sees_neither_the_session_nor_its_csrf_token(ann: Browser, app_of_chat: Any) -> None:
    stage = app_of_chat(hello, "GET /hello", "POST /threads")
    ann.client.set_cookie("theme", "dark")
    for method, path in (("GET", "/d/chat/hello"), ("POST", "/d/chat/threads")):
        assert ann.call(method, path, json={} if method == "POST" else None).data == b"hello"
        headers = dict(stage.last.head["headers"])
        assert headers["cookie"] == "theme=dark"
        assert "ryd_" not in str(stage.last.head)
        assert CSRF.lower() not in headers
        assert stage.last.head["user"] is None


def test_a_session_does_not_open_a_guarded_route_of_an_app(
    ann: Browser, app_of_chat: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such a route decides by the project's own authorization, which gets nothing of the session."""
    auth = user_code.PlayedAuth()
    seen: list[str] = []
    call = auth.call

    def record(*arguments: Any, **more: Any) -> Any:
        seen.append(str(arguments) + str(more))
        return call(*arguments, **more)

    monkeypatch.setattr("shared.hosts.calls.call", record)
    auth_section = {"parameters": ["headers"], "handlers": user_code.EVERYTHING}
    app_of_chat(hello, "GET /hello", auth=auth_section, http={"enable_custom_route_auth": True})
    response = ann.call("GET", "/d/chat/hello", headers={"x-auth-scheme": "langsmith"})
    assert response.status_code == 401
    assert seen
    assert "ryd_" not in "".join(seen)
    # On a built-in route, a session is a tool of the platform like a key.
    assert (
        ann.call(
            "POST", "/d/chat/threads/search", json={}, headers={"x-auth-scheme": "langsmith"}
        ).status_code
        == 200
    )
    assert ann.call("POST", "/d/chat/threads/search", json={}).status_code == 401
    assert "ryd_" not in "".join(seen)


def test_an_app_cannot_set_the_service_s_cookies(browser: Browser, app_of_chat: Any) -> None:
    names = (COOKIE, f"__Host-{COOKIE}", "runyard_sign_in", "__Host-runyard_sign_in")

    def answer(side: Side) -> None:
        side.body()
        cookies = [("set-cookie", f" {name} =x; Path=/") for name in names]
        side.answer(b"", headers=[*cookies, ("set-cookie", "a=1"), ("content-length", "0")])

    app_of_chat(answer, "GET /hello")
    assert browser.client.get("/d/chat/hello").headers.getlist("Set-Cookie") == ["a=1; Path=/d/chat"]


def test_runs_get_no_header_of_the_session(ann: Browser, chat: Any) -> None:
    serve(chat, http={"configurable_headers": {"includes": ["cookie", "x-*"]}})
    forget_deployments()
    ann.client.set_cookie("theme", "dark")
    body = {"assistant_id": "agent", "input": {}}
    response = ann.call("POST", "/d/chat/runs", json=body, headers={"X-Plain": "yes"})
    assert response.status_code == 200, response.text
    assert (
        one("SELECT kwargs -> 'config' -> 'configurable' -> 'cookie' #>> '{}', kwargs::text FROM run")[0]
        == "theme=dark"
    )
    assert "ryd_" not in scalar("SELECT kwargs::text FROM run")


def test_a_deployment_at_its_own_name_has_no_session(app_with: MakeApp, provider: OAuthServer) -> None:
    app = app_with(url=URL, app_domain="apps.localhost", **provider.openid(CALLBACK))
    person = Browser(app, provider)
    person.sign_in()
    make.deployment(organization_id=DEFAULT_ORGANIZATION_ID, name="chat")
    forget_deployments()
    cookie = {"Cookie": f"{COOKIE}={person.cookie()}"}
    for headers in (cookie, {**cookie, "Origin": "http://chat.apps.localhost"}):
        response = person.client.get(
            "/threads/count",
            base_url="http://chat.apps.localhost",
            headers={**OF_CONSOLE, **headers, CSRF: person.csrf},
        )
        assert response.status_code in (401, 405), response.text
    response = person.client.post(
        "/threads/search",
        base_url="http://chat.apps.localhost",
        json={},
        headers={**OF_CONSOLE, **cookie, CSRF: person.csrf},
    )
    assert response.status_code == 401


def test_a_websocket_has_no_session(ann: Browser, chat: Any) -> None:
    """A handshake carries the cookie, and cannot carry the CSRF token."""
    upgrade = {"Connection": "Upgrade", "Upgrade": "websocket", **OF_CONSOLE}
    path = f"/d/chat/threads/{make.thread(chat.id)}/stream/events"
    assert ann.client.get(path, headers=upgrade).status_code == 401


def test_an_operator_acts_for_other_organizations(app_with: MakeApp, provider: OAuthServer) -> None:
    make.organization("acme")
    provider.claims = {"roles": ["owners"]}
    person = Browser(app_with(url=URL, **provider.openid(CALLBACK)), provider)
    person.sign_in()
    found: Any = person.call("GET", "/v2/me", headers={"X-Tenant-Id": "acme"}).json
    assert found["organization"]["name"] == "acme"


def test_the_operator_s_key_still_works_beside_sign_in(ann: Browser) -> None:
    found: Any = ann.client.get("/v2/me", headers={"X-Api-Key": ADMIN_KEY}).json
    assert (found["role"], found["user"]) == ("operator", None)
