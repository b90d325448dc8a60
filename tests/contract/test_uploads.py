"""Uploads of archives: the URL, its limits, and deploys from an upload."""

from __future__ import annotations

import base64
import gzip
import hashlib
import io
import os
from typing import Any

import pytest
from flask import Flask
from flask.testing import FlaskClient
from sqlalchemy import text

from shared.deployments import sources
from shared.infra.postgres import connection
from tests.contract.conftest import ADMIN_KEY, ControlPlane, MakeApp, caller
from tests.contract.statements import execute, one
from tests.support.full_disk import largest_file
from tests.support.refusals import detail


@pytest.fixture
def deployment(control: ControlPlane) -> Any:
    return control.create()


def place(control: ControlPlane, deployment: Any, **body: Any) -> Any:
    response = control.post(f"/v2/deployments/{deployment['id']}/upload-url", body)
    assert response.status_code == 200, response.text
    return response.json


def stored() -> dict[str, bytes]:
    """Return every archive by its digest."""
    with connection() as conn:
        digests = conn.execute(text("SELECT digest FROM archive")).scalars().all()
        return {digest: b"".join(sources.archive_chunks(conn, digest)) for digest in digests}


def test_an_upload_has_an_absolute_address_and_a_name(control: ControlPlane, deployment: Any) -> None:
    given = place(control, deployment, supports_upload_headers=True)
    address, _, token = given["upload_url"].rpartition("/")
    assert (address, len(token) >= 32) == ("http://localhost/v2/uploads", True)
    assert token not in repr(tuple(one("SELECT * FROM upload"))), "it is not stored"
    assert given["object_path"].startswith(deployment["id"])
    assert given["upload_headers"] == {"Content-Type": "application/gzip"}
    plain: Any = control.call("POST", f"/v2/deployments/{deployment['id']}/upload-url").json
    assert set(plain) == {"upload_url", "object_path"}


def test_an_operators_own_address_wins(app_with: MakeApp, control: ControlPlane, deployment: Any) -> None:
    named = app_with(url="https://agents.example/yard/")
    given = place(ControlPlane(caller(named, ADMIN_KEY)), deployment)
    assert given["upload_url"].startswith("https://agents.example/yard/v2/uploads/")


def test_an_archive_is_put_without_a_key_and_kept_whole(
    control: ControlPlane, deployment: Any, anonymous: FlaskClient, app: Flask
) -> None:
    content = gzip.compress(os.urandom(2 * 1024 * 1024 + 17), 1)
    given = place(control, deployment)
    response = anonymous.put(
        given["upload_url"], data=content, headers={"Content-Type": "application/gzip", "Connection": "close"}
    )
    digest = hashlib.sha256(content).hexdigest()
    assert response.status_code == 200
    assert response.json == {"object_path": given["object_path"], "sha256": digest, "size": len(content)}
    assert stored() == {digest: content}
    assert list((app.config["SETTINGS"].data_dir / "uploads").iterdir()) == []


def test_an_archive_may_come_in_chunks(
    control: ControlPlane, deployment: Any, anonymous: FlaskClient
) -> None:
    response = anonymous.put(
        place(control, deployment)["upload_url"],
        input_stream=io.BytesIO(b"in chunks"),
        environ_overrides={"wsgi.input_terminated": True, "HTTP_TRANSFER_ENCODING": "chunked"},
    )
    assert response.status_code == 200
    assert list(stored().values()) == [b"in chunks"]


def test_the_same_archive_is_kept_once(control: ControlPlane, deployment: Any) -> None:
    control.upload(deployment, b"same")
    control.upload(control.create("other"), b"same")
    assert list(stored().values()) == [b"same"]


def test_an_upload_address_takes_one_archive(
    control: ControlPlane, deployment: Any, anonymous: FlaskClient
) -> None:
    url = place(control, deployment)["upload_url"]
    assert anonymous.put(url, data=b"first").status_code == 200
    again = anonymous.put(url, data=b"second")
    assert (again.status_code, again.json) == (
        409,
        {"detail": "This upload URL has been used. Create a new one."},
    )
    assert list(stored().values()) == [b"first"]


def test_an_upload_address_that_is_unknown_expired_or_of_a_deleted_deployment_takes_nothing(
    control: ControlPlane, deployment: Any, anonymous: FlaskClient
) -> None:
    expired, deleted = (place(control, deployment)["upload_url"] for _ in range(2))
    assert anonymous.put("/v2/uploads/guessed", data=b"x").status_code == 404
    execute("UPDATE upload SET expires_at = now() - interval '1 second'")
    assert anonymous.put(expired, data=b"x").status_code == 404
    execute("UPDATE upload SET expires_at = now() + interval '1 hour'")
    control.call("DELETE", f"/v2/deployments/{deployment['id']}")
    assert anonymous.put(deleted, data=b"x").status_code == 404
    assert stored() == {}


def test_a_larger_archive_is_413_and_the_upload_address_stays_open(
    app_with: MakeApp, control: ControlPlane, deployment: Any
) -> None:
    small = app_with(max_archive_bytes=1000, max_body_bytes=10).test_client()  # limit of other bodies
    url = place(control, deployment)["upload_url"]
    in_chunks = {"wsgi.input_terminated": True, "HTTP_TRANSFER_ENCODING": "chunked"}
    for response in (
        small.put(url, data=b"x" * 1001),
        small.put(url, input_stream=io.BytesIO(b"x" * 1001), environ_overrides=in_chunks),
    ):
        assert response.status_code == 413
        assert response.json == {"detail": "The request body is larger than 1000 bytes"}
    assert stored() == {}
    assert small.put(url, data=b"x" * 1000).status_code == 200


def test_an_archive_that_is_empty_or_was_damaged_on_its_way_is_refused(
    control: ControlPlane, deployment: Any, anonymous: FlaskClient
) -> None:
    url = place(control, deployment)["upload_url"]
    empty = anonymous.put(url, data=b"")
    assert (empty.status_code, empty.json) == (400, {"detail": "the archive is empty"})
    digest = base64.b64encode(hashlib.sha256(b"whole").digest()).decode()
    headers = {"Content-Digest": f"sha-512=:AAAA:, sha-256=:{digest}:"}
    damaged = anonymous.put(url, data=b"while", headers=headers)
    assert (damaged.status_code, detail(damaged)) == (
        400,
        "the archive does not match the SHA-256 in Content-Digest: upload it again",
    )
    assert stored() == {}
    assert anonymous.put(url, data=b"whole", headers=headers).status_code == 200


def test_an_archive_that_the_disk_cannot_hold_is_refused_and_may_come_again(
    control: ControlPlane, deployment: Any, anonymous: FlaskClient, app: Flask
) -> None:
    url = place(control, deployment)["upload_url"]
    with largest_file(100_000):
        full = anonymous.put(url, data=b"x" * 3_000_000)
    assert (full.status_code, detail(full)) == (503, "the archive cannot be stored: File too large")
    assert full.headers["Retry-After"]
    assert list((app.config["SETTINGS"].data_dir / "uploads").iterdir()) == []
    assert anonymous.put(url, data=b"whole").status_code == 200


def test_only_what_was_put_can_be_deployed(control: ControlPlane, deployment: Any) -> None:
    def refusal(path: str) -> Any:
        body = {"source_revision_config": {"source_tarball_path": path}}
        response = control.call("PATCH", f"/v2/deployments/{deployment['id']}", body)
        assert response.status_code == 400
        return response.json["detail"]  # type: ignore[index]

    assert refusal(place(control, deployment)["object_path"]) == (
        "nothing was uploaded to source_tarball_path"
    )
    not_ours = "source_tarball_path must be the object_path of an upload URL of this deployment"
    assert refusal(control.upload(control.create("other"))) == not_ours
    assert refusal("../../etc/passwd") == not_ours
