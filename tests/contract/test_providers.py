"""OAuth providers: complete bodies, invalid ones, and discovery from an MCP server."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.contract.conftest import ControlPlane
from tests.contract.statements import scalar
from tests.support.oauth_server import OAuthServer, oauth_server

PROVIDERS = "/v2/auth/providers"
BODY = {
    "provider_id": "acme",
    "name": "Acme",
    "client_id": "us",
    "auth_url": "https://acme.example/authorize",
    "token_url": "https://acme.example/token",
}
KEYS = """
id organization_id provider_id name client_id auth_url token_url uses_pkce code_challenge_method provider_type
mcp_server_url token_endpoint_auth_method is_dynamic_client created_at updated_at
""".split()


def test_a_provider_is_created_with_defaults_and_listed_in_an_array(control: ControlPlane) -> None:
    assert control.get(PROVIDERS).json == []
    response = control.post(PROVIDERS, BODY)
    made: Any = response.json
    assert response.status_code == 200
    assert sorted(made) == sorted(KEYS)
    assert {name: made[name] for name in BODY} == BODY
    assert (made["uses_pkce"], made["code_challenge_method"], made["provider_type"]) == (False, "S256", None)
    assert (made["token_endpoint_auth_method"], made["is_dynamic_client"]) == ("client_secret_post", False)
    assert control.get(PROVIDERS).json == [made]
    assert control.get(f"{PROVIDERS}/acme").json == made


@pytest.mark.parametrize("secret", ["a-client-secret", "", None])
def test_its_secret_is_in_no_answer_and_not_readable_at_rest(
    control: ControlPlane, secret: str | None
) -> None:
    answers = [
        control.post(PROVIDERS, {**BODY, "client_secret": secret}),
        control.get(PROVIDERS),
        control.get(f"{PROVIDERS}/acme"),
        control.call("PATCH", f"{PROVIDERS}/acme", {"client_secret": "another-client-secret"}),
    ]
    for answer in answers:
        assert answer.status_code == 200
        assert "secret" not in answer.text.replace("client_secret_post", "")
    stored = scalar("SELECT client_secret FROM oauth_provider")
    assert b"another-client-secret" not in bytes(stored)


BAD: list[tuple[str, Any, str]] = [
    *[("provider_id", value, "string_pattern_mismatch") for value in ("a/b", "..", ".", "a\nb", "a\\b")],
    ("name", "a\x00b", "value_error"),
    *[
        (name, value, "value_error")
        for name in ("auth_url", "token_url")
        for value in (
            "",
            "string",
            "http://acme.example/",
            "javascript:alert(1)",
            "https://a:b@acme.example/",
        )
    ],
    *[
        ("token_url", f"https://{host}/", "value_error")
        for host in ("10.0.0.1", "localhost", "2130706433", "[::1]")
    ],
]


def test_every_wrong_value_is_refused_with_its_location(control: ControlPlane) -> None:
    for name, value, kind in BAD:
        response = control.post(PROVIDERS, {**BODY, name: value})
        body: Any = response.json
        assert (name, value, response.status_code) == (name, value, 422)
        assert list(body) == ["detail"]
        [item] = body["detail"]
        assert sorted(item) == ["loc", "msg", "type"]
        assert (value, item["loc"], item["type"]) == (value, ["body", name], kind)
        assert isinstance(item["msg"], str)


def test_every_provider_type_of_the_contract_is_taken(control: ControlPlane) -> None:
    for kind in ("vendor_a", "vendor_b", "vendor_c", "microsoft", "salesforce", "slack", None):
        body = {**BODY, "provider_id": str(kind), "provider_type": kind}
        made: Any = control.post(PROVIDERS, body).json
        assert made["provider_type"] == kind


def test_a_name_is_taken_once_in_an_organization(control: ControlPlane, stranger: ControlPlane) -> None:
    assert control.post(PROVIDERS, BODY).status_code == 200
    again = control.post(PROVIDERS, BODY)
    assert (again.status_code, again.json) == (
        409,
        {"detail": "An OAuth provider with the id 'acme' already exists."},
    )
    assert stranger.post(PROVIDERS, BODY).status_code == 200


def test_a_change_leaves_what_is_null_or_not_named(control: ControlPlane) -> None:
    made: Any = control.post(PROVIDERS, BODY).json
    changed: Any = control.call(
        "PATCH", f"{PROVIDERS}/acme", {"name": "New", "client_id": None, "uses_pkce": True}
    ).json
    assert changed == {**made, "name": "New", "uses_pkce": True, "updated_at": changed["updated_at"]}
    refused: Any = control.call("PATCH", f"{PROVIDERS}/acme", {"token_url": "https://10.0.0.1/"})
    assert (refused.status_code, refused.json["detail"][0]["loc"]) == (422, ["body", "token_url"])


def test_a_deleted_provider_is_gone(control: ControlPlane) -> None:
    control.post(PROVIDERS, BODY)
    gone = control.call("DELETE", f"{PROVIDERS}/acme")
    assert (gone.status_code, gone.json) == (200, {"message": "OAuth provider 'acme' deleted."})
    for method in ("GET", "PATCH", "DELETE"):
        response = control.call(method, f"{PROVIDERS}/acme", {} if method == "PATCH" else None)
        assert (response.status_code, response.json) == (404, {"detail": "OAuth provider 'acme' not found."})
    assert control.post(PROVIDERS, BODY).status_code == 200


@pytest.fixture
def server(lenient: None) -> Iterator[OAuthServer]:
    with oauth_server() as running:
        yield running


def discover(control: ControlPlane, url: str) -> Any:
    body = {"provider_id": "tools", "name": "Tools", "mcp_server_url": url}
    return control.post(f"{PROVIDERS}/mcp-discover", body)


def test_an_mcp_server_is_enough_to_find_and_register_at_its_provider(
    control: ControlPlane, server: OAuthServer
) -> None:
    response = discover(control, f"{server.url}/mcp")
    found: Any = response.json
    assert response.status_code == 200, response.text
    assert sorted(found) == sorted(KEYS)
    [client] = server.clients.values()
    assert found["client_id"] == client.client_id
    assert client.redirect_uris == ("http://localhost/v2/auth/callback/tools",)
    assert (found["mcp_server_url"], found["is_dynamic_client"]) == (f"{server.url}/mcp", True)
    assert (found["uses_pkce"], found["code_challenge_method"]) == (True, "S256")
    assert (found["token_endpoint_auth_method"], client.method) == ("none", "none")
    assert (found["auth_url"], found["token_url"]) == (f"{server.url}/authorize", f"{server.url}/token")
    assert discover(control, f"{server.url}/mcp").status_code == 409


def test_a_provider_that_lacks_something_or_lies_is_refused(
    control: ControlPlane, server: OAuthServer
) -> None:
    rows: list[tuple[dict[str, Any], str]] = [
        ({"issuer": "https://evil.example"}, "names another issuer"),
        ({"registration_endpoint": None}, "dynamic client registration"),
        ({"token_endpoint": None}, "name its token endpoint"),
        ({"token_endpoint": "https://10.0.0.1/token"}, "the token endpoint of its authorization server"),
        ({"registration_endpoint": "https://169.254.169.254/"}, "the registration endpoint"),
        ({"authorization_endpoint": "javascript:alert(1)"}, "the authorization endpoint"),
        ({"code_challenge_methods_supported": ["plain"]}, "PKCE"),
        ({"token_endpoint_auth_methods_supported": ["private_key_jwt"]}, "client authentication"),
    ]
    for metadata, words in rows:
        server.metadata = metadata
        response = discover(control, f"{server.url}/mcp")
        assert (words, response.status_code) == (words, 422)
        (item,) = response.json["detail"]
        assert item["loc"] == ["body", "mcp_server_url"]
        assert words in item["msg"]
        assert server.clients == {}, words


def test_discovery_calls_no_address_it_may_not(control: ControlPlane, server: OAuthServer) -> None:
    for url in ("https://10.0.0.1/mcp", "http://169.254.169.254/", "ftp://x/", "x"):
        response = discover(control, url)
        assert (url, response.status_code) == (url, 422)
        assert response.json["detail"][0]["loc"] == ["body", "mcp_server_url"], url
    down = discover(control, "http://127.0.0.1:1024/mcp")
    assert (down.status_code, down.json) == (502, {"detail": "127.0.0.1 cannot be reached"})
