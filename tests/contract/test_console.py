"""The page of a deployment: the same for everybody, without a word of any deployment in it."""

from __future__ import annotations

import re
from urllib.parse import urljoin
from uuid import uuid4

from flask.testing import FlaskClient

from tests.contract.conftest import ControlPlane


def test_it_is_the_same_with_and_without_a_deployment(control: ControlPlane, anonymous: FlaskClient) -> None:
    made = control.create("secret-name")
    page = anonymous.get(f"/o/{made['tenant_id']}/host/deployments/{made['id']}")
    assert page.status_code == 200
    assert page.mimetype == "text/html"
    assert page.data == anonymous.get(f"/o/{uuid4()}/host/deployments/{uuid4()}").data
    assert b"secret-name" not in page.data


def test_its_script_and_style_are_files_of_ours_wherever_it_is_mounted(anonymous: FlaskClient) -> None:
    address = "/o/tenant/host/deployments/one"
    page = anonymous.get(address).text
    files = re.findall(r'(?:src|href)="([^":]+)"', page)
    assert len(files) == 2
    for file in files:
        assert anonymous.get(urljoin(address, file)).status_code == 200
        assert urljoin(f"/behind/a/proxy{address}", file) == f"/behind/a/proxy{urljoin(address, file)}"


def test_nothing_else_may_run_or_load_in_it(anonymous: FlaskClient) -> None:
    page = anonymous.get("/o/tenant/host/deployments/one")
    policy = page.headers["Content-Security-Policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert not re.findall(r"<script(?![^>]* src=)|<style| style=| on\w+=", page.text)
    script = anonymous.get("/static/console.js").text
    assert not re.findall(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(", script)


def test_no_other_address_under_its_prefix_answers(anonymous: FlaskClient) -> None:
    for path in ("/o/tenant", "/o/tenant/host/deployments", "/o/a/b/host/deployments/c"):
        assert anonymous.get(path).status_code == 401  # as any address that there is not
