"""Pages of the service: the console, the API document, the guide, and components of generative UI."""

from __future__ import annotations

import gzip
import hashlib
import html
import json
import re
from base64 import b64encode
from hashlib import sha256
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import urljoin
from uuid import uuid4

import pytest
from flask import Flask
from flask.testing import FlaskClient

import tests.support.factories as make
from tests.contract.conftest import ADMIN_KEY, Api, ControlPlane, MakeApp
from tests.support.played_app import serve
from tests.support.user_code import PlayedAuth
from web.gate.deployments import forget as forget_deployments
from web.http import static_files

BROWSER = {"Accept": "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8"}
VIEWER = "/o/static/0123456789abcdef/rapidoc-min.js"
IS_UP = {"ok": True, "services": {}}


def test_browsers_get_it_at_the_root_and_everybody_else_what_they_got_before(
    control: ControlPlane, anonymous: FlaskClient
) -> None:
    page = anonymous.get("/", headers=BROWSER)
    assert (page.status_code, page.mimetype) == (200, "text/html")
    for accept in (None, "*/*", "application/json", "application/json, text/plain, */*"):
        other = anonymous.get("/", headers={"Accept": accept} if accept else {})
        assert other.json == IS_UP
        assert "Accept" in other.headers["Vary"]
    assert "Accept" in page.headers["Vary"]
    control.create("chat")
    assert anonymous.get("/d/chat/", headers=BROWSER).json == IS_UP, "a deployment's address has none"


def test_in_dev_it_is_at_the_root_and_where_an_app_has_that_at_an_address_of_its_own(
    app_with: MakeApp,
) -> None:
    local = app_with(dev_deployment="chat").test_client()
    assert local.get("/", headers=BROWSER).mimetype == "text/html"
    assert local.get("/").json == IS_UP
    assert 'data-dev="true"' in local.get("/o/").text
    assert local.get("/o/t/host/deployments/one").headers["Location"].startswith("../../../#/")


def test_links_that_deploys_print_lead_to_it(control: ControlPlane, anonymous: FlaskClient) -> None:
    made = control.create("secret-name")
    address = f"/o/{made['tenant_id']}/host/deployments/{made['id']}"
    moved = anonymous.get(address)
    assert moved.status_code == 302
    where = urljoin(address, moved.headers["Location"])
    assert where == f"/#/deployments/{made['id']}?organization={made['tenant_id']}"
    assert anonymous.get(f"/o/{uuid4()}/host/deployments/{uuid4()}").status_code == 302
    odd = anonymous.get("/o/a%26b/host/deployments/c%3Fd").headers["Location"]
    assert odd.endswith("#/deployments/c%3Fd?organization=a%26b")


def test_its_files_are_ours_wherever_it_is_mounted(anonymous: FlaskClient) -> None:
    for address, script in (("/", "main.js"), ("/o/", "main.js"), ("/o/answer", "answer.js")):
        page = anonymous.get(address, headers=BROWSER).text
        files = re.findall(r'(?:src|href)="([^":]+)"', page)
        assert any(file.endswith(f"/{script}") for file in files), address
        for file in files:
            answer = anonymous.get(urljoin(address, file))
            assert answer.status_code == 200, file
            assert answer.mimetype in ("text/javascript", "text/css")
            assert "immutable" in answer.headers["Cache-Control"]
            assert urljoin(f"/behind/a/proxy{address}", file) == f"/behind/a/proxy{urljoin(address, file)}"
    older = anonymous.get("/o/static/0123456789abcdef/console/main.js")
    assert (older.status_code, older.headers["Cache-Control"]) == (200, "no-cache")


@pytest.mark.parametrize("address", ["/", "/o/answer"])
def test_nothing_else_may_run_or_load_in_it(anonymous: FlaskClient, address: str) -> None:
    page = anonymous.get(address, headers=BROWSER)
    policy = page.headers["Content-Security-Policy"]
    assert "default-src 'none'" in policy
    assert "require-trusted-types-for 'script'" in policy
    assert "unsafe" not in policy
    assert "frame-ancestors 'none'" in policy
    assert not re.findall(r"<script(?![^>]* src=)|<style| style=| on\w+=", page.text)


def test_the_page_for_one_answer_loads_nothing_that_knows_a_key(anonymous: FlaskClient) -> None:
    scripts = re.findall(r'href="[^"]+/console/([^"]+\.js)"', anonymous.get("/o/answer").text)
    assert "parts/question.js" in scripts
    assert not {"core/session.js", "core/api.js", "main.js"} & set(scripts)


def test_every_page_of_the_service_is_closed_to_frames_and_to_foreign_scripts(
    anonymous: FlaskClient, subtests: pytest.Subtests
) -> None:
    rows: list[Any] = [
        ("/", 200),
        ("/o/", 200),
        ("/o/answer", 200),
        ("/api-host/", 200),
        ("/docs", 200),
        ("/d/chat/docs", 200),
        ("/v2/auth/callback/<script>?state=<script>&error=<script>&error_description=<script>", 422),
    ]
    for address, status in rows:
        with subtests.test(address=address, status=status):
            page = anonymous.get(address, headers=BROWSER)
            assert (page.status_code, page.mimetype) == (status, "text/html")
            policy = page.headers["Content-Security-Policy"]
            for directive in (
                "default-src 'none'",
                "base-uri 'none'",
                "form-action 'none'",
                "frame-ancestors 'none'",
            ):
                assert directive in policy
            assert not re.search(r"script-src[^;]*('unsafe|\*|https?:|data:|blob:)", policy)
            assert page.headers["X-Content-Type-Options"] == "nosniff"
            assert page.headers["Referrer-Policy"] == "no-referrer"
            assert "<script>" not in page.text


def test_an_error_is_never_a_page(anonymous: FlaskClient) -> None:
    for path in ("/d/chat/<script>", "/<script>", "/v2/<script>", "/o/static/0/<script>"):
        refusal = anonymous.get(path, headers=BROWSER)
        assert (path, refusal.mimetype) == (path, "application/json")
        policy = refusal.headers["Content-Security-Policy"]
        assert policy == "default-src 'none'; frame-ancestors 'none'", path
        assert refusal.headers["X-Content-Type-Options"] == "nosniff", path


def test_no_page_holds_the_window_of_a_console_that_it_opened(
    anonymous: FlaskClient, app_with: MakeApp
) -> None:
    for address in ("/", "/o/"):
        opened = anonymous.get(address, headers=BROWSER)
        assert opened.headers["Cross-Origin-Opener-Policy"] == "same-origin"
    local = app_with(dev_deployment="chat").test_client()  # its app shares the console's origin
    assert local.get("/o/").headers["Cross-Origin-Opener-Policy"] == "noopener-allow-popups"


def test_files_are_compressed_for_who_takes_that_and_sent_once(anonymous: FlaskClient) -> None:
    plain = anonymous.get(VIEWER)
    zipped = anonymous.get(VIEWER, headers={"Accept-Encoding": "gzip, br"})
    assert zipped.headers["Content-Encoding"] == "gzip"
    assert gzip.decompress(zipped.data) == plain.data
    assert len(zipped.data) < len(plain.data) / 2
    assert "MIT License" in anonymous.get("/o/static/0/rapidoc-LICENSE.txt").text
    assert zipped.headers["ETag"] != plain.headers["ETag"]
    for answer in (plain, zipped):
        headers = {
            "If-None-Match": answer.headers["ETag"],
            "Accept-Encoding": "gzip" if answer is zipped else "",
        }
        again = anonymous.get(VIEWER, headers=headers)
        assert (again.status_code, again.data) == (304, b"")
        assert "Accept-Encoding" in answer.headers["Vary"]


def test_only_files_of_the_pages_are_sent_and_no_other_address_beside_them_answers(
    anonymous: FlaskClient,
) -> None:
    for name in (
        "../console.py",
        "nothing.js",
        "console",
        "%2e%2e/console.py",
        "/etc/passwd",
        "a" * 300,
        "a%00b",
        "%5cb",
    ):
        assert anonymous.get(f"/o/static/0123456789abcdef/{name}").status_code in (401, 404), name
    for path in ("/o/tenant", "/o/tenant/host/deployments", "/o/a/b/host/deployments/c"):
        assert anonymous.get(path).status_code == 401, path  # as for any unknown path


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


SCRIPT = "document.title = 'Guide'"


@pytest.fixture
def static(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Folder in place of web/static, which has no site yet."""
    (tmp_path / "guide").mkdir()
    monkeypatch.setattr(static_files, "STATIC", tmp_path)
    return tmp_path


@pytest.fixture
def site(static: Path) -> Path:
    page = f"<h1>Guide</h1><script>{SCRIPT}</script>"
    (static / "guide" / "index.html").write_text(page)
    (static / "guide" / "search.json").write_text("{}")
    (static / "secret.html").write_text("beside the site")
    return static


def test_a_page_runs_its_own_scripts_and_loads_nothing_from_elsewhere(
    anonymous: FlaskClient, site: Path
) -> None:
    for address in ("/o/guide/", "/o/guide/index.html"):
        page = anonymous.get(address)

        assert (page.status_code, page.mimetype) == (200, "text/html")
        policy = page.headers["Content-Security-Policy"]
        digest = b64encode(sha256(SCRIPT.encode()).digest()).decode()
        assert f"script-src 'self' 'sha256-{digest}';" in policy
        assert "default-src 'none'" in policy
        assert "frame-ancestors 'none'" in policy
    assert anonymous.get("/o/guide/search.json").json == {}


def test_no_file_beside_the_site_is_sent(anonymous: FlaskClient, site: Path) -> None:
    for name in ("../secret.html", "%2e%2e/secret.html", "none.html", "a" * 300):
        assert anonymous.get(f"/o/guide/{name}").status_code in (401, 404), name


def test_a_service_without_the_site_says_how_to_build_it(anonymous: FlaskClient, static: Path) -> None:
    refusal = anonymous.get("/o/guide/")

    assert refusal.status_code == 404
    assert "make docs-site" in refusal.text


SCRIPT, STYLES = "var __LGUI_agent = {};", "p { color: red }"


def load(api: Api, name: str = "weather", path: str = "/ui/agent") -> str:
    response = api.post(path, {"name": name})
    assert response.status_code == 200, response.text
    assert response.content_type == "text/html; charset=utf-8"
    assert "default-src 'none'" in response.headers["Content-Security-Policy"]
    return response.text


def addresses(text: str) -> list[str]:
    return re.findall(r'(?:src|href)="http://[^/]+(/d/[^"]+)"', text)


def test_the_html_names_public_files_that_never_change(api: Api) -> None:
    make.components(api.deployment, SCRIPT, STYLES)

    styles, script = addresses(load(api))

    for path, mimetype, content in ((script, "text/javascript", SCRIPT), (styles, "text/css", STYLES)):
        for encoding in ("gzip", "identity"):
            response = api.client.get(path, headers={"Accept-Encoding": encoding})
            assert response.status_code == 200
            assert response.mimetype == mimetype
            assert response.headers["Cache-Control"] == "public, max-age=31536000, immutable"
            assert response.headers["Cross-Origin-Resource-Policy"] == "cross-origin"
        assert response.text == content
    assert addresses(load(api)) == [styles, script]


def test_the_script_renders_the_component_of_the_request_whatever_its_name(api: Api) -> None:
    make.components(api.deployment, SCRIPT)
    name = "\"'></script><b onclick=\"x('{"

    text = load(api, name)

    (call,) = re.findall(r'onload="([^"]*)"', text)
    escaped = name.replace('"', '\\"')
    assert html.unescape(call) == f"__LGUI_agent.render(\"{escaped}\", '{{{{shadowRootId}}}}')"
    assert "<b" not in text


def test_an_assistant_has_the_components_of_its_graph(api: Api) -> None:
    make.components(api.deployment, SCRIPT)
    assistant_id = make.assistant(api.deployment.id)

    assert load(api, path=f"/ui/{assistant_id}") == load(api)


def test_unknown_sets_and_files_are_missing(api: Api) -> None:
    make.components(api.deployment, SCRIPT)
    (script,) = addresses(load(api))

    assert api.post("/ui/other", {"name": "weather"}).status_code == 404
    for path in (
        script.replace("/agent/", "/other/"),
        script.replace("/d/", "/d/other-"),
        script.replace(".js", ".css"),
        script.replace(".js", ".html"),
        re.sub(r"[0-9a-f]{32}", "0" * 32, script),
    ):
        assert api.client.get(path).status_code == 404, path


def test_the_html_needs_a_caller(app: Flask, api: Api) -> None:
    make.components(api.deployment, SCRIPT)

    assert app.test_client().post("/d/chat/ui/agent", json={"name": "weather"}).status_code == 401


def test_the_files_stay_public_for_a_deployment_with_users(ann: Api, played: PlayedAuth) -> None:
    make.components(ann.deployment, SCRIPT)
    (script,) = addresses(load(ann))
    played.users.clear()

    assert ann.client.get(script).text == SCRIPT


def test_a_project_switches_components_off(api: Api) -> None:
    make.components(api.deployment, SCRIPT)
    make.switched_off(api.deployment, "disable_ui")
    digest = hashlib.sha256(SCRIPT.encode()).hexdigest()[:32]

    assert api.post("/ui/agent", {"name": "weather"}).status_code == 404
    assert api.client.get(f"/d/chat/ui/agent/{digest}.js").status_code == 404


def test_the_console_s_pages_cannot_run_the_files(api: Api) -> None:
    make.components(api.deployment, SCRIPT)
    (script,) = addresses(load(api))

    for headers in (
        {"Sec-Fetch-Site": "same-origin", "Sec-Fetch-Dest": "script"},
        {"Service-Worker": "script"},
    ):
        assert api.client.get(script, headers=headers).status_code == 403
    assert (
        api.client.get(
            script, headers={"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Dest": "script"}
        ).status_code
        == 200
    )
