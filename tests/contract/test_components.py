"""Components of generative UI: the HTML that loads one, and the public files that it names."""

from __future__ import annotations

import hashlib
import html
import re

from flask import Flask

import tests.support.factories as make
from tests.contract.conftest import Api
from tests.support.user_code import PlayedAuth

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
