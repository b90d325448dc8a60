"""What every answer has in common: bodies of refusals, request ids, CORS, slashes, sizes."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any
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
    """A client of a service that has a deployment called chat."""
    make.deployment(organization_id=DEFAULT_ORGANIZATION_ID, name="chat")
    return client


def test_an_unknown_path_is_404(chat: FlaskClient, subtests: pytest.Subtests) -> None:
    rows: list[Any] = ["/nope", "/v2/nope", "/api-host/v2/nope", "/d/chat/nope", "/d/other/threads/search"]
    for path in rows:
        with subtests.test(path=path):
            response = chat.post(path, data=b"{}")
            assert (response.status_code, response.json) == (404, {"detail": "Not Found"})


def beside_an_id(app: Flask) -> Iterator[tuple[str, set[str], set[str]]]:
    """Yield each path that ends in a word beside one that ends in an id, its methods, and those of the other."""
    methods: dict[str, set[str]] = {}
    for rule in app.url_map.iter_rules():
        if not rule.websocket:
            methods.setdefault(rule.rule, set()).update(rule.methods or ())
    for path, own in methods.items():
        parent, _, word = path.rpartition("/")
        for other in methods if not word.startswith("<") else ():
            if re.fullmatch(re.escape(parent) + r"/<\w+_id>", other) and not other.endswith(ANY_TEXT):
                yield path, own, methods[other]


ANY_TEXT = ("<provider_id>", "<checkpoint_id>")  # every word is one


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


def test_a_deployments_trailing_slash_is_redirected(chat: FlaskClient) -> None:
    response = chat.post("/d/chat/threads/?a=b%20c", data=b"{}")
    assert (response.status_code, response.headers["Location"]) == (307, "../threads?a=b%20c")


def test_a_trailing_slash_on_the_control_plane_is_the_same_route(client: FlaskClient) -> None:
    assert client.get("/v2/deployments/").status_code == client.get("/v2/deployments").status_code == 200
    assert client.get("/api-host/v2/deployments/").status_code == 200


def test_it_never_redirects_for_doubled_slashes(chat: FlaskClient, subtests: pytest.Subtests) -> None:
    rows: list[Any] = ["/v2//deployments", "//v2/deployments", "/d/chat//threads", "/d//threads"]
    for path in rows:
        with subtests.test(path=path):
            assert chat.get(path).status_code in (404, 405)


def test_every_answer_has_a_request_id(client: FlaskClient) -> None:
    assert UUID(client.get("/ok").headers["x-request-id"])
    assert UUID(client.get("/v2/nope").headers["x-request-id"])


def test_a_callers_request_id_is_echoed_when_it_is_a_uuid(client: FlaskClient) -> None:
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


def test_a_browser_may_read_refusals_too(chat: FlaskClient, subtests: pytest.Subtests) -> None:
    rows: list[Any] = [
        ("GET", "/threads/x", 422),
        ("GET", "/nope", 404),
        ("GET", "/ok", 200),
        ("PUT", "/threads", 405),
    ]
    for method, path, status in rows:
        with subtests.test(method=method, path=path, status=status):
            response = chat.open(f"/d/chat{path}", method=method, headers={"Origin": "https://ui.example"})
            assert (response.status_code, response.headers["Access-Control-Allow-Origin"]) == (status, "*")


def test_a_browser_may_read_that_it_has_no_key(anonymous: FlaskClient) -> None:
    response = anonymous.get("/d/chat/threads/x", headers={"Origin": "https://ui.example"})
    assert (response.status_code, response.headers["Access-Control-Allow-Origin"]) == (401, "*")


def test_without_an_origin_there_is_no_cors(chat: FlaskClient) -> None:
    response = chat.post("/d/chat/threads/search", data=b"{}")
    assert "Access-Control-Allow-Origin" not in response.headers
    assert response.headers["Vary"] == "Origin"


def test_the_control_plane_is_not_for_other_origins(client: FlaskClient) -> None:
    response = client.get("/v2/deployments", headers={"Origin": "https://ui.example"})
    assert "Access-Control-Allow-Origin" not in response.headers


def test_answers_are_safe_to_open_in_a_browser(client: FlaskClient) -> None:
    headers = client.get("/v2/deployments").headers
    assert headers["X-Content-Type-Options"] == "nosniff"
    assert "default-src 'none'" in headers["Content-Security-Policy"]
    assert "Server" not in headers


@settings(max_examples=50, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(text=st.text(alphabet=st.characters(codec="utf-8"), max_size=40), query=st.text(max_size=40))
def test_no_address_is_answered_with_a_5xx(chat: FlaskClient, text: str, query: str) -> None:
    text = quote(text)
    for path in (f"/d/chat/{text}", f"/d/{text}/threads/{text}", f"/v2/deployments/{text}"):
        response = chat.get(path, query_string={"limit": query, "offset": query, "select": query})
        assert response.status_code < 500, response.text
