"""The documentation as a site: its pages run only their own scripts; without a site the answer says how to build it."""

from __future__ import annotations

from base64 import b64encode
from hashlib import sha256
from pathlib import Path

import pytest
from flask.testing import FlaskClient

from web.http import static_files

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
