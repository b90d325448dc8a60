"""MCP and OAuth: discovery without a key, challenges of deployments with `auth.oauth`, and pages of other origins."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from flask.testing import FlaskClient
from werkzeug.test import TestResponse

from shared.hosts import exchanges
from tests.contract.conftest import Api, MakeApp, Users
from tests.contract.rpc import BOTH
from tests.support import user_code
from tests.support.played_app import Stage, serve
from web.gate.deployments import forget as forget_deployments

SERVER = "https://auth.example/realm"
OAUTH = {"authorization_servers": [SERVER], "scopes": ["tools", "admin"]}
AUTH = {"parameters": ["headers"], "handlers": user_code.EVERYTHING}
DOCUMENTS = ("oauth-protected-resource", "oauth-authorization-server", "openid-configuration")
LIST = {"jsonrpc": "2.0", "id": 1, "method": "tools/list"}


@pytest.fixture
def configure(api: Api) -> Callable[..., None]:
    """Function that gives the deployment `chat` this `auth` and `http`, and a public address."""

    def apply(*routes: str, auth: Any = None, **http: Any) -> None:
        serve(api.deployment, *routes, http=http, auth=auth)
        api.set(url="https://run.example")
        forget_deployments()

    return apply


def listed(api: Api, path: str = "/mcp", **more: Any) -> TestResponse:
    return api.post(path, LIST, headers={**BOTH, **more})


def test_discovery_needs_no_key_and_finds_nothing_without_oauth(api: Api, anonymous: FlaskClient) -> None:
    for name in DOCUMENTS:
        for path in ("", "/", "/d/chat/mcp", "/d/nothing/mcp", "/d/chat", "/d/", "/x"):
            assert (name, path, anonymous.get(f"/.well-known/{name}{path}").status_code) == (name, path, 404)
        assert anonymous.get(f"/d/chat/.well-known/{name}").status_code == 404
    for path in (
        "/.well-known/other",
        "/d/chat/.well-known/agent-card.json",
        "/.well-known/oauth-protected-resourcex",
    ):
        assert anonymous.get(path).status_code == 401
    response = anonymous.post("/d/chat/mcp", json=LIST, headers=BOTH)
    assert (response.status_code, response.headers["WWW-Authenticate"]) == (401, "Bearer")


def test_a_deployment_with_oauth_describes_its_server(
    anonymous: FlaskClient, configure: Callable[..., None], subtests: pytest.Subtests
) -> None:
    for prefix in ("", "/pre"):
        configure(auth={**AUTH, "oauth": OAUTH}, mount_prefix=prefix)
        found = anonymous.get(f"/.well-known/oauth-protected-resource/d/chat{prefix}/mcp")
        assert (found.status_code, found.json) == (
            200,
            {
                "resource": f"https://run.example/d/chat{prefix}/mcp",
                "authorization_servers": [SERVER],
                "scopes_supported": ["tools", "admin"],
                "bearer_methods_supported": ["header"],
            },
        )
        for path in ("/d/chat", "/d/chat/a2a", "/d/chat/mcp/x", "/d/other/mcp", ""):
            missing = anonymous.get(f"/.well-known/oauth-protected-resource{path}")
            assert (path, missing.status_code) == (path, 404)
    configure(auth={**AUTH, "oauth": OAUTH}, disable_mcp=True)
    assert anonymous.get("/.well-known/oauth-protected-resource/d/chat/mcp").status_code == 404


def test_a_deployment_with_a_host_of_its_own_describes_its_server_there(
    app_with: MakeApp, configure: Callable[..., None]
) -> None:
    configure(auth={**AUTH, "oauth": OAUTH})
    client = app_with(app_domain="apps.example.com", url="https://run.example").test_client()
    host = {"Host": "chat.apps.example.com"}
    found = client.get("/.well-known/oauth-protected-resource/mcp", headers=host)
    assert found.json["resource"] == "https://chat.apps.example.com/mcp"  # type: ignore[index]
    assert client.get("/.well-known/oauth-protected-resource", headers=host).status_code == 404


def test_a_project_may_describe_its_own_server(
    anonymous: FlaskClient, configure: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    stage = Stage(lambda side: side.answer(b"ours"))
    monkeypatch.setattr(exchanges, "open_exchange", stage.open_exchange)
    configure("GET /.well-known/oauth-protected-resource/{path:path}", auth={**AUTH, "oauth": OAUTH})
    assert anonymous.get("/.well-known/oauth-protected-resource/d/chat/mcp").data == b"ours"


def test_a_refusal_names_the_description(users: Users, configure: Callable[..., None]) -> None:
    document = "https://run.example/.well-known/oauth-protected-resource/d/chat/mcp"
    pointer = f'resource_metadata="{document}", scope="tools admin"'
    configure(auth={**AUTH, "oauth": OAUTH})
    for path in ("/mcp", "/mcp/"):
        response = listed(users.nobody, path)
        assert (response.status_code, response.headers.getlist("WWW-Authenticate")) == (
            401,
            [f"Bearer {pointer}"],
        )
    assert users.nobody.post("/threads/search").headers["WWW-Authenticate"] == "Basic"

    users.played.on(user_code.refuse, "assistants", "search")
    response = listed(users.ann)
    assert response.status_code == 403
    assert response.headers["WWW-Authenticate"] == f'Bearer error="insufficient_scope", {pointer}'
    users.played.users["ann"]["permissions"] = ["tools", "admin", "more"]
    assert "WWW-Authenticate" not in listed(users.ann).headers, "no scope is missing"


def test_a_description_may_name_no_scopes(users: Users, configure: Callable[..., None]) -> None:
    configure(auth={**AUTH, "oauth": {**OAUTH, "scopes": []}})
    challenge = listed(users.nobody).headers["WWW-Authenticate"]
    document = "https://run.example/.well-known/oauth-protected-resource/d/chat/mcp"
    assert challenge == f'Bearer resource_metadata="{document}"'
    users.played.on(user_code.refuse, "assistants", "search")
    assert "WWW-Authenticate" not in listed(users.ann).headers


def test_only_pages_of_origins_that_cors_names_may_call(api: Api, configure: Callable[..., None]) -> None:
    page, other = {"Origin": "https://page.example"}, {"Origin": "https://other.example"}
    own = {"Origin": "https://run.example"}
    rows: list[tuple[Any, dict[str, str], int]] = [
        ({"allow_origins": ["https://page.example"]}, page, 200),
        ({"allow_origins": ["https://page.example"]}, other, 403),
        ({"allow_origins": ["https://page.example"]}, {"Origin": "null"}, 403),
        ({"allow_origins": ["https://page.example"]}, own, 200),
        ({"allow_origins": ["https://page.example"]}, {}, 200),
        ({"allow_origin_regex": "https://[a-z]+\\.example"}, other, 200),
        ({"allow_origin_regex": "https://page\\.example"}, other, 403),
        ({"allow_origins": ["*"]}, other, 200),
        ({"allow_methods": ["POST"]}, other, 200),
        (None, other, 200),
    ]
    for cors, headers, status in rows:
        configure(**({} if cors is None else {"cors": cors}))
        assert (cors, headers, listed(api, **headers).status_code) == (cors, headers, status)
    for path in ("/a2a/agent", "/ag-ui/agent"):
        configure(cors={"allow_origins": ["https://page.example"]})
        assert api.post(path, {}, headers=other).status_code == 403
        assert api.post(path, {}, headers=page).status_code != 403


def test_pages_of_other_sites_may_not_call_a_developer_s_machine(app_with: MakeApp, api: Api) -> None:
    local = app_with(dev_deployment="chat").test_client()
    for headers, status in (
        ({}, 200),
        ({"Origin": "http://localhost:3000"}, 200),
        ({"Origin": "https://evil.example"}, 403),
    ):
        answer = local.post("/mcp", json=LIST, headers={**BOTH, **headers})
        assert (headers, answer.status_code) == (headers, status)
    assert local.get("/.well-known/oauth-protected-resource/mcp").status_code == 404
