"""Common properties of all responses: error bodies, request ids, CORS, slashes, sizes."""

from __future__ import annotations

import re
from collections.abc import Iterator
from urllib.parse import quote
from uuid import UUID, uuid4

import pytest
from flask import Flask
from flask.testing import FlaskClient
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import tests.support.factories as make
from shared.access.api_keys import DEFAULT_ORGANIZATION_ID


@pytest.fixture
def chat(client: FlaskClient) -> FlaskClient:
    """Client of a service with the deployment `chat`."""
    make.deployment(organization_id=DEFAULT_ORGANIZATION_ID, name="chat")
    return client


def test_an_unknown_path_is_404_and_doubled_slashes_are_not_redirected(chat: FlaskClient) -> None:
    for path in ("/nope", "/v2/nope", "/api-host/v2/nope", "/d/chat/nope", "/d/other/threads/search"):
        response = chat.post(path, data=b"{}")
        assert (path, response.status_code, response.json) == (path, 404, {"detail": "Not Found"})
    for path in ("/v2//deployments", "//v2/deployments", "/d/chat//threads", "/d//threads"):
        assert chat.get(path).status_code in (404, 405), path


def beside_an_id(app: Flask) -> Iterator[tuple[str, set[str], set[str]]]:
    """Yield `(path, methods, methods of the other)` for each path whose last word could be an id of another path."""
    methods: dict[str, set[str]] = {}
    for rule in app.url_map.iter_rules():
        if not rule.websocket:
            methods.setdefault(rule.rule, set()).update(rule.methods or ())
    for path, own in methods.items():
        parent, _, word = path.rpartition("/")
        for other in methods if not word.startswith("<") else ():
            if re.fullmatch(re.escape(parent) + r"/<\w+_id>", other) and not other.endswith(ANY_TEXT):
                yield path, own, methods[other]


ANY_TEXT = ("<provider_id>", "<checkpoint_id>")  # any text is a valid id


def test_a_wrong_method_beside_an_id_is_405_and_names_the_right_ones(app: Flask, chat: FlaskClient) -> None:
    tried = 0
    for path, own, others in beside_an_id(app):
        path = path.replace("<deployment>", "chat").replace("<thread_id>", str(uuid4()))
        for method in {*others, "PUT"} - own:
            response = chat.open(path, method=method)
            assert response.status_code == 405, (method, path, response.text)
            assert set(response.headers["Allow"].split(", ")) == own, (method, path)
            tried += 1
        assert set(chat.options(path).headers["Allow"].split(", ")) == own, path
    assert tried > 30


def test_a_trailing_slash_is_redirected_at_a_deployment_and_ignored_elsewhere(chat: FlaskClient) -> None:
    response = chat.post("/d/chat/threads/?a=b%20c", data=b"{}")
    assert (response.status_code, response.headers["Location"]) == (307, "../threads?a=b%20c")
    assert chat.get("/v2/deployments/").status_code == chat.get("/v2/deployments").status_code == 200


def test_every_answer_has_a_request_id_and_a_callers_own_is_echoed_when_it_is_a_uuid(
    client: FlaskClient,
) -> None:
    for path in ("/ok", "/v2/nope"):
        assert UUID(client.get(path).headers["x-request-id"])
    sent = "0191e7a4-6b3e-7c3a-9d1e-0242ac120002"
    assert client.get("/ok", headers={"x-request-id": sent}).headers["x-request-id"] == sent
    assert client.get("/ok", headers={"x-request-id": "x"}).headers["x-request-id"] != "x"


def test_a_browser_may_ask_whether_it_may_call(anonymous: FlaskClient) -> None:
    response = anonymous.options(
        "/d/chat/threads",
        headers={
            "Origin": "https://ui.example",
            "Access-Control-Request-Method": "POST",
            "Access-Control-Request-Headers": "x-api-key,content-type",
            "Access-Control-Request-Private-Network": "true",
        },
    )
    assert (response.status_code, response.text) == (200, "OK")
    headers = response.headers
    assert headers["Access-Control-Allow-Origin"] == "*"
    assert headers["Access-Control-Allow-Methods"] == "DELETE, GET, HEAD, OPTIONS, PATCH, POST, PUT"
    assert headers["Access-Control-Allow-Headers"] == "x-api-key,content-type"
    assert headers["Access-Control-Max-Age"] == "600"
    assert headers["Access-Control-Allow-Private-Network"] == "true"


def test_a_browser_may_read_what_reconnecting_needs(chat: FlaskClient) -> None:
    response = chat.post("/d/chat/threads/search", data=b"{}", headers={"Origin": "https://ui.example"})
    assert response.headers["Access-Control-Allow-Origin"] == "*"
    exposed = response.headers["Access-Control-Expose-Headers"]
    assert set(exposed.split(", ")) == {
        "location", "content-location", "x-pagination-total", "x-pagination-next", "x-request-id",
    }  # fmt: skip


def test_a_browser_may_read_refusals_too(chat: FlaskClient, anonymous: FlaskClient) -> None:
    for client, method, path, status in (
        (chat, "GET", "/threads/x", 422),
        (chat, "GET", "/nope", 404),
        (chat, "GET", "/ok", 200),
        (chat, "PUT", "/threads", 405),
        (anonymous, "GET", "/threads/x", 401),
    ):
        response = client.open(f"/d/chat{path}", method=method, headers={"Origin": "https://ui.example"})
        assert (method, path, response.status_code) == (method, path, status)
        assert response.headers["Access-Control-Allow-Origin"] == "*", (method, path)


def test_without_an_origin_and_on_the_control_plane_there_is_no_cors(chat: FlaskClient) -> None:
    response = chat.post("/d/chat/threads/search", data=b"{}")
    assert "Access-Control-Allow-Origin" not in response.headers
    assert response.headers["Vary"] == "Origin"
    elsewhere = chat.get("/v2/deployments", headers={"Origin": "https://ui.example"})
    assert "Access-Control-Allow-Origin" not in elsewhere.headers


def test_answers_are_safe_to_open_in_a_browser(client: FlaskClient) -> None:
    headers = client.get("/v2/deployments").headers
    assert headers["X-Content-Type-Options"] == "nosniff"
    assert "default-src 'none'" in headers["Content-Security-Policy"]
    assert "Server" not in headers


@settings(max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(text=st.text(alphabet=st.characters(codec="utf-8"), max_size=40), query=st.text(max_size=40))
def test_no_address_is_answered_with_a_5xx(chat: FlaskClient, text: str, query: str) -> None:
    text = quote(text)
    for path in (f"/d/chat/{text}", f"/d/{text}/threads/{text}", f"/v2/deployments/{text}"):
        response = chat.get(path, query_string={"limit": query, "offset": query, "select": query})
        assert response.status_code < 500, response.text
