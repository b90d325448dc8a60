"""The console's page is equal for all callers and mentions no deployment."""

from __future__ import annotations

import gzip
import re
from typing import Any
from urllib.parse import urljoin
from uuid import uuid4

import pytest
from flask.testing import FlaskClient

from tests.contract.conftest import ControlPlane, MakeApp

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
