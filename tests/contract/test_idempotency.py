"""Create requests that are repeated with their Idempotency-Key."""

from __future__ import annotations

from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from flask import Flask
from sqlalchemy import Engine, text
from werkzeug.test import TestResponse

from shared.access import idempotency
from shared.access.api_keys import DEFAULT_ORGANIZATION_ID
from shared.access.idempotency import KeyedRequest, StoredResponse
from shared.infra import encryption
from shared.infra.postgres import LARGE, connection, driver
from tests.contract.conftest import Api, ControlPlane, Notifications, caller, new_key
from tests.contract.statements import column, execute, scalar
from tests.support.waiting import wait_until

PROVIDER = {
    "provider_id": "vendor",
    "name": "Vendor",
    "client_id": "us",
    "client_secret": "s3cret",
    "auth_url": "https://example.org/authorize",
    "token_url": "https://example.org/token",
}
CREATE = {"name": "new", "source": "internal_source", "secrets": [{"name": "TOKEN", "value": "s3cret"}]}


def send(control: ControlPlane, path: str, body: Any, key: str = "one", method: str = "POST") -> TestResponse:
    return control.call(method, path, body, headers={"Idempotency-Key": key})


def create(control: ControlPlane, **changes: Any) -> TestResponse:
    return send(control, "/v2/deployments", {**CREATE, **changes})


def is_repeated(response: TestResponse) -> bool:
    return response.headers.get("Idempotent-Replayed") == "true"


def count(table: str) -> int:
    return int(scalar(f"SELECT count(*) FROM {table}"))


def test_a_create_sent_again_is_answered_again_and_done_once(control: ControlPlane, api: Api) -> None:
    first, second = create(control), create(control)
    assert (first.status_code, is_repeated(first)) == (201, False)
    at_another_mount = send(control, "/api-host/v2/deployments", CREATE)
    for again in (second, at_another_mount):
        assert (again.status_code, is_repeated(again), again.data) == (201, True, first.data)
        assert again.headers["Content-Type"] == first.headers["Content-Type"]
    assert (count("idempotent_answer"), count("deployment")) == (1, 2)  # one is the deployment of `api`
    without_key = control.post("/v2/deployments", CREATE)
    assert (without_key.status_code, count("idempotent_answer")) == (409, 1)

    large = {"assistant_id": "agent", "input": {"text": LARGE * "é"}}
    first, second = (api.post("/runs", large, headers={"Idempotency-Key": "two"}) for _ in range(2))
    assert (first.status_code, is_repeated(second), second.data) == (200, True, first.data)
    assert count("run") == 1


@pytest.mark.parametrize(
    ("path", "body", "method"),
    [
        ("/v2/deployments/{id}", {"secrets": [{"name": "A", "value": "b"}]}, "PATCH"),
        ("/v2/deployments/{id}/revisions", {}, "POST"),
        ("/v2/deployments/{id}/revisions/{latest_revision_id}/redeploy", None, "POST"),
        ("/v2/deployments/{id}/upload-url", {"supports_upload_headers": True}, "POST"),
        ("/v2/keys", {"name": "ci", "role": "deploy"}, "POST"),
        ("/v2/organizations", {"name": "another"}, "POST"),
        ("/v2/auth/providers", PROVIDER, "POST"),
    ],
)
def test_whatever_creates_takes_part(
    control: ControlPlane, notifications: Notifications, path: str, body: Any, method: str
) -> None:
    deployment = control.deploy(control.create())
    first = send(control, path.format(**deployment), body, method=method)
    assert first.status_code in (200, 201), first.text
    made = ("revision", "upload", "api_key", "organization", "oauth_provider")
    state = [*map(count, made)], list(notifications.heard)
    second = send(control, path.format(**deployment), body, method=method)
    assert (second.status_code, second.data, is_repeated(second)) == (first.status_code, first.data, True)
    assert ([*map(count, made)], notifications.heard) == state


def test_a_key_belongs_to_one_request(control: ControlPlane) -> None:
    assert create(control).status_code == 201
    id = control.get("/v2/deployments").json["resources"][0]["id"]  # type: ignore[index]
    for path, body, method in (
        ("/v2/deployments", {**CREATE, "name": "other"}, "POST"),
        (f"/v2/deployments/{id}/revisions", CREATE, "POST"),
        (f"/v2/deployments/{id}", CREATE, "PATCH"),
    ):
        refused = send(control, path, body, method=method)
        assert refused.status_code == 422, path
        [item] = refused.json["detail"]  # type: ignore[index]
        assert item["loc"] == ["header", "Idempotency-Key"]
    assert count("deployment") == 1


def test_a_bad_key_is_placed(control: ControlPlane) -> None:
    for key in ("", "x" * 256, "schlüssel", "tab\tbed"):
        response = send(control, "/v2/deployments", CREATE, key)
        assert (key, response.status_code) == (key, 422)
        assert [item["loc"] for item in response.json["detail"]] == [["header", "Idempotency-Key"]]  # type: ignore[index]
    assert count("deployment") == 0


def test_a_refusal_is_not_kept(control: ControlPlane) -> None:
    assert create(control, secrets=[{"name": "DATABASE_URI", "value": "x"}]).status_code == 400
    assert create(control).status_code == 201


def test_callers_do_not_meet_each_other(app: Flask, control: ControlPlane, stranger: ControlPlane) -> None:
    key = new_key()
    colleague = ControlPlane(caller(app, key))
    first = create(control)
    assert create(stranger).json["id"] != first.json["id"]  # type: ignore[index]
    assert create(colleague).status_code == 409  # executed, because the name is taken


def test_twenty_at_once_make_one(control: ControlPlane) -> None:
    app = control.client.application
    key = control.client.environ_base["HTTP_X_API_KEY"]

    def one(_: int) -> TestResponse:
        return create(ControlPlane(caller(app, key)))

    with ThreadPoolExecutor(20) as pool:
        answers = list(pool.map(one, range(20)))
    statuses = Counter(answer.status_code for answer in answers)
    assert set(statuses) <= {201, 409}
    assert len({answer.data for answer in answers if answer.status_code == 201}) == 1
    assert sum(not is_repeated(answer) for answer in answers if answer.status_code == 201) == 1
    assert all(answer.headers["Retry-After"] == "1" for answer in answers if answer.status_code == 409)
    assert count("deployment") == count("revision") == 1


def test_a_request_in_progress_is_waited_for_and_one_that_died_is_not(
    control: ControlPlane, db: Engine
) -> None:
    asked = KeyedRequest.of(DEFAULT_ORGANIZATION_ID, "bootstrap", "one")
    with db.connect() as conn:
        assert idempotency.stored_response(conn, asked) is None
        busy = create(control)
        assert (busy.status_code, busy.headers["Retry-After"]) == (409, "1")
        conn.invalidate()  # as if its process were killed
    wait_until(lambda: create(control).status_code == 201, 10, what="the key to be free")


def test_a_failure_after_the_create_undoes_both(
    control: ControlPlane, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> None:
        raise OSError("the process dies")

    with monkeypatch.context() as patched:
        patched.setattr(idempotency, "store", fail)
        assert create(control).status_code == 500
    assert count("deployment") == count("idempotent_answer") == 0
    assert create(control).status_code == 201


def test_the_drivers_own_connection_will_do(control: ControlPlane) -> None:
    asked = KeyedRequest.of(DEFAULT_ORGANIZATION_ID, "somebody", "one", "POST", "/runs", b"{}")
    answer = StoredResponse(200, {"Content-Location": "/runs/1"}, "{}")
    with driver() as conn, conn.transaction():
        assert idempotency.stored_response(conn, asked) is None
        idempotency.store(conn, asked, answer)
    with driver() as conn, conn.transaction():
        assert idempotency.stored_response(conn, asked) == answer


def test_what_is_stored_is_encrypted(control: ControlPlane) -> None:
    create(control)
    [stored] = column("SELECT answer FROM idempotent_answer")
    assert b'"name"' not in bytes(stored)
    assert '"name":"new"' in encryption.decrypt(stored)


def test_a_key_is_free_again_after_a_day(control: ControlPlane) -> None:
    create(control)
    with connection() as conn:
        conn.execute(text("UPDATE idempotent_answer SET created_at = now() - interval '23 hours'"))
        assert idempotency.remove_old(conn) == 0
    assert is_repeated(create(control))
    execute("UPDATE idempotent_answer SET created_at = now() - interval '25 hours'")
    assert create(control, name="tomorrow").status_code == 201
    assert is_repeated(create(control, name="tomorrow"))
    with connection() as conn:
        conn.execute(text("UPDATE idempotent_answer SET created_at = now() - interval '25 hours'"))
        assert idempotency.remove_old(conn) == 1
