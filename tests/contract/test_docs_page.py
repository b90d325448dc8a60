"""`/docs`: a page that loads nothing, runs only its own script, and has no origin at a deployment's address."""

from __future__ import annotations

import gzip
import json
from base64 import b64encode
from hashlib import sha256
from html.parser import HTMLParser

import pytest
from flask.testing import FlaskClient

from tests.contract.conftest import ADMIN_KEY, Api, MakeApp
from tests.support.played_app import serve
from web.gate.deployments import forget as forget_deployments

HOSTILE = '</script><script src="static/x.js"></script><!--<script>%DOCUMENT% %VIEWER%<iframe srcdoc="<script src=x>">'
DOCUMENT = {
    "openapi": "3.1.0",
    "info": {"title": HOSTILE, "version": "1", "description": HOSTILE},
    "paths": {f"/{HOSTILE}": {"get": {"summary": HOSTILE, "responses": {}}}},
}


class Page(HTMLParser):
    """Parser that collects a page's scripts with their text, and all URLs."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.scripts: list[tuple[str | None, str]] = []
        self.addresses: list[str] = []
        self._is_script = False
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        self.addresses += [found[name] or "" for name in ("src", "href", "spec-url") if name in found]
        self._is_script = tag == "script"
        if self._is_script:
            self.scripts.append((found.get("type"), ""))

    def handle_data(self, data: str) -> None:
        if self._is_script:
            kind, text = self.scripts[-1]
            self.scripts[-1] = (kind, text + data)

    def handle_endtag(self, tag: str) -> None:
        self._is_script = False


def directives(policy: str) -> dict[str, list[str]]:
    return {name: sources for name, *sources in (part.split() for part in policy.split(";"))}


@pytest.fixture
def hostile(api: Api) -> None:
    """Give the deployment `chat` an app with a route for every path, and a document that contains markup."""
    serve(api.deployment, "GET /static/{name:path}", "GET /docs/{name:path}", openapi=DOCUMENT)
    forget_deployments()


def test_the_page_loads_nothing_and_runs_its_own_script_alone(hostile: None, anonymous: FlaskClient) -> None:
    for address in ("/docs", "/api-host/docs", "/d/chat/docs"):
        answer = anonymous.get(address)
        page = Page(answer.text)
        assert [each for each in page.addresses if not each.startswith("data:")] == [], address
        (_, viewer), (kind, document) = page.scripts
        assert kind == "application/json"
        assert json.loads(document) == anonymous.get(address.replace("docs", "openapi.json")).json
        policy = directives(answer.headers["Content-Security-Policy"])
        assert policy["default-src"] == ["'none'"]
        assert policy["script-src"] == [f"'sha256-{b64encode(sha256(viewer.encode()).digest()).decode()}'"]
        assert policy["img-src"] == ["data:"]
        assert policy["style-src"] == ["'unsafe-inline'"]
        for name in ("base-uri", "form-action", "frame-ancestors"):
            assert (address, policy[name]) == (address, ["'none'"])
    # Markup of a project is only data in its page.
    assert viewer == Page(anonymous.get("/docs").text).scripts[0][1]
    assert json.loads(document)["info"]["description"] == HOSTILE
    assert f"/{HOSTILE}" in json.loads(document)["paths"]


def test_the_page_of_a_deployment_has_an_opaque_origin_and_that_of_the_service_its_own(
    app_with: MakeApp, hostile: None
) -> None:
    client = app_with(app_domain="apps.localhost").test_client()
    for url in (
        "http://localhost/d/chat/docs",
        "http://localhost/api-host/d/chat/docs",
        "http://chat.apps.localhost/docs",
    ):
        sandbox = directives(client.get(url).headers["Content-Security-Policy"])["sandbox"]
        assert "allow-scripts" in sandbox, url
        assert "allow-same-origin" not in sandbox, url
        assert not {one for one in sandbox if "top-navigation" in one}, url
    assert "sandbox" not in client.get("/docs").headers["Content-Security-Policy"]


def test_in_dev_the_page_of_a_developer_keeps_its_origin_and_a_stranger_s_does_not(
    app_with: MakeApp, hostile: None
) -> None:
    local = app_with(dev_deployment="chat").test_client()
    assert "sandbox" not in local.get("/docs").headers["Content-Security-Policy"]
    stranger = local.get("/docs", environ_overrides={"REMOTE_ADDR": "192.0.2.7"})
    assert "sandbox allow-scripts" in stranger.headers["Content-Security-Policy"]


def test_the_page_may_call_its_deployment_and_nothing_of_the_control_plane(
    api: Api, anonymous: FlaskClient
) -> None:
    asks = {
        "Origin": "null",
        "Access-Control-Request-Method": "POST",
        "Access-Control-Request-Headers": "x-api-key",
    }
    may = anonymous.options("/d/chat/threads", headers=asks)
    assert may.status_code == 200
    assert "x-api-key" in may.headers["Access-Control-Allow-Headers"]
    made = anonymous.post("/d/chat/threads", json={}, headers={"Origin": "null", "X-Api-Key": ADMIN_KEY})
    assert (made.status_code, made.headers["Access-Control-Allow-Origin"]) == (200, "*")
    assert "Access-Control-Allow-Origin" not in anonymous.options("/v2/keys", headers=asks).headers


def test_the_page_is_shown_where_the_deployment_lets_no_other_origin_call(
    api: Api, anonymous: FlaskClient
) -> None:
    serve(api.deployment, "GET /hello", http={"cors": {"allow_origins": ["https://mine.example"]}})
    forget_deployments()
    document = Page(anonymous.get("/d/chat/docs").text).scripts[1][1]
    assert "/threads" in json.loads(document)["paths"]


def test_the_page_is_compressed_and_sent_once(hostile: None, anonymous: FlaskClient) -> None:
    plain = anonymous.get("/d/chat/docs")
    zipped = anonymous.get("/d/chat/docs", headers={"Accept-Encoding": "gzip"})
    assert gzip.decompress(zipped.data) == plain.data
    assert len(zipped.data) < len(plain.data) / 2
    again = anonymous.get("/d/chat/docs", headers={"If-None-Match": plain.headers["ETag"]})
    assert (again.status_code, again.data) == (304, b"")
    assert again.headers["Content-Security-Policy"] == plain.headers["Content-Security-Policy"]


def test_no_file_of_ours_is_at_an_address_that_a_project_can_have(api: Api) -> None:
    for name in ("rapidoc-min.js", "console/main.js"):
        assert api.get(f"/static/{name}").status_code == 404
        assert api.get(f"/o/static/0/{name}").status_code == 404
