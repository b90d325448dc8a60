"""Links for answers without an account: one answer each, and what their holders learn."""

from __future__ import annotations

import logging
import threading
from typing import Any
from uuid import UUID, uuid4

import pytest
from flask import Flask
from flask.testing import FlaskClient
from sqlalchemy import text

from shared.inbox import links
from shared.infra.postgres import connection
from shared.models import METADATA
from tests.contract.conftest import Api, Users
from tests.support import user_code
from tests.support.asking import ask, question, runs_of
from web.gate import limits

PAGE = "/o/answer#"


@pytest.fixture
def question_id(api: Api) -> UUID:
    return ask(api.deployment)


def create(client: FlaskClient, question_id: UUID, **body: Any) -> tuple[dict[str, Any], str]:
    """Create a link. Returns its record and its token."""
    response = client.post(f"/v2/inbox/{question_id}/link", json=body)
    assert response.status_code == 201, response.text
    record: Any = response.json
    address, _, token = record["url"].partition(PAGE)
    assert address == "http://127.0.0.1:8123" or address.startswith("http://localhost"), record["url"]
    return record, token


def list_links(client: FlaskClient, question_id: UUID) -> list[Any]:
    found: Any = client.get(f"/v2/inbox/{question_id}/links").json
    return list(found)


def show(client: FlaskClient, token: str) -> tuple[int, Any]:
    response = client.post("/v2/inbox/link/question", json={"token": token})
    return response.status_code, response.json


def answer(client: FlaskClient, token: str, value: Any = "yes") -> tuple[int, Any]:
    response = client.post("/v2/inbox/link/answer", json={"token": token, "answer": value})
    return response.status_code, response.json


def set_time(column: str, sql: str) -> None:
    with connection() as conn:
        conn.execute(text(f"UPDATE question_link SET {column} = {sql}"))


def test_a_person_without_an_account_answers_once(
    client: FlaskClient, anonymous: FlaskClient, question_id: UUID
) -> None:
    record, token = create(client, question_id, label="Ann")
    assert (record["label"], len(token)) == ("Ann", 43)

    status, shown = show(anonymous, token)
    assert status == 200
    assert {**shown, "asked_at": ""} == {
        "value": {"question": "May I?"},
        "version": shown["version"],
        "kind": "interrupt",
        "thread_title": "Refund",
        "deployment_name": "chat",
        "asked_at": "",
        "expires_at": record["expires_at"],
        "label": "Ann",
    }
    assert answer(anonymous, token, {"ok": True}) == (200, shown)

    found = question(question_id)
    assert (found["answer"], found["answered_by"]) == ({"ok": True}, f"link:{record['id']} (Ann)")
    assert found["answered_from"] == "127.0.0.1"
    _, run = runs_of(question_id)
    assert (found["answer_run_id"], run["status"]) == (run["run_id"], "pending")
    for again in (show(anonymous, token), answer(anonymous, token)):
        assert again == (410, {"detail": links.USED})
    (listed,) = list_links(client, question_id)
    assert (listed["id"], listed["created_by"], listed["revoked_at"]) == (record["id"], "bootstrap", None)
    assert listed["used_at"] is not None


def test_only_the_hash_of_a_token_is_stored_and_no_log_contains_it(
    client: FlaskClient, anonymous: FlaskClient, question_id: UUID, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.DEBUG):
        _, token = create(client, question_id)
        show(anonymous, token)
        answer(anonymous, token)
        answer(anonymous, token)
    assert token not in caplog.text
    with connection() as conn:
        for table in METADATA.sorted_tables:
            rows = conn.execute(text(f"SELECT CAST(t AS text) FROM {table.name} t")).scalars()
            assert token not in " ".join(rows), table.name


def test_an_unknown_token_says_nothing_else_and_guesses_are_limited(
    app: Flask, client: FlaskClient, anonymous: FlaskClient, question_id: UUID
) -> None:
    _, token = create(client, question_id)
    for guess in (token[:-1], token + "x", "x", token.swapcase()):
        assert show(anonymous, guess) == (404, {"detail": links.UNKNOWN})
        assert answer(anonymous, guess) == (404, {"detail": links.UNKNOWN})
    statuses = [show(anonymous, f"guess {number}")[0] for number in range(limits.FAILURES_PER_MINUTE)]

    assert set(statuses) == {404, 429}
    assert statuses[-1] == 429
    assert show(anonymous, token)[0] == 200, "a valid token passes, as a valid key does"


def test_an_expired_or_revoked_link_says_so(
    client: FlaskClient, anonymous: FlaskClient, question_id: UUID
) -> None:
    record, token = create(client, question_id)
    set_time("expires_at", "now() - interval '1 second'")
    for gone in (show(anonymous, token), answer(anonymous, token)):
        assert gone == (410, {"detail": links.EXPIRED})
    assert question(question_id)["answered_at"] is None
    set_time("expires_at", "now() + interval '1 hour'")

    for _ in range(2):
        assert client.delete(f"/v2/inbox/links/{record['id']}").status_code == 204
    for gone in (show(anonymous, token), answer(anonymous, token)):
        assert gone == (410, {"detail": links.REVOKED})
    assert client.delete(f"/v2/inbox/links/{uuid4()}").status_code == 404


def test_a_question_answered_elsewhere_ends_its_links_without_saying_by_whom(
    client: FlaskClient, anonymous: FlaskClient, question_id: UUID
) -> None:
    _, token = create(client, question_id)
    assert client.post(f"/v2/inbox/{question_id}/answer", json={"answer": "no"}).status_code == 200

    for gone in (show(anonymous, token), answer(anonymous, token)):
        assert gone == (410, {"detail": links.CLOSED})
    assert (question(question_id)["answer"], len(runs_of(question_id))) == ("no", 2)
    refused = client.post(f"/v2/inbox/{question_id}/link", json={})
    assert refused.status_code == 409


def test_of_two_links_the_second_finds_the_question_answered(
    client: FlaskClient, anonymous: FlaskClient, question_id: UUID
) -> None:
    (_, first), (_, second) = create(client, question_id), create(client, question_id)
    assert answer(anonymous, first)[0] == 200
    assert answer(anonymous, second) == (410, {"detail": links.CLOSED})
    with connection() as conn:
        used = conn.execute(text("SELECT count(*) FROM question_link WHERE used_at IS NOT NULL")).scalar_one()
    assert used == 1, "a refused answer does not use its link"


def test_of_simultaneous_answers_one_is_accepted(app: Flask, client: FlaskClient, question_id: UUID) -> None:
    _, token = create(client, question_id)
    begin, results = threading.Barrier(4), []

    def send() -> None:
        begin.wait()
        results.append(answer(app.test_client(), token))

    threads = [threading.Thread(target=send) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert sorted(status for status, _ in results) == [200, 410, 410, 410]
    assert len(runs_of(question_id)) == 2


def test_a_link_that_ends_while_it_is_answered_creates_no_run(
    client: FlaskClient, anonymous: FlaskClient, question_id: UUID, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, token = create(client, question_id)
    find = links.find

    def find_and_revoke(*args: Any) -> Any:
        found = find(*args)
        set_time("revoked_at", "now()")
        return found

    monkeypatch.setattr(links, "find", find_and_revoke)
    assert answer(anonymous, token) == (410, {"detail": links.REVOKED})
    assert len(runs_of(question_id)) == 1


def test_an_answer_to_a_question_that_has_changed_does_not_count(
    client: FlaskClient, anonymous: FlaskClient, question_id: UUID
) -> None:
    """A node that runs again asks the same question, perhaps with another value."""
    _, token = create(client, question_id)
    read = show(anonymous, token)[1]["version"]
    with connection() as conn:
        conn.execute(text('UPDATE question SET value = \'{"question": "May I take more?"}\''))
    body = {"token": token, "answer": "yes", "version": read}
    refused: Any = anonymous.post("/v2/inbox/link/answer", json=body)
    assert (refused.status_code, refused.json["detail"]) == (409, links.CHANGED)
    assert len(runs_of(question_id)) == 1
    body["version"] = show(anonymous, token)[1]["version"]
    assert anonymous.post("/v2/inbox/link/answer", json=body).status_code == 200


def test_an_invalid_answer_does_not_use_the_link(
    client: FlaskClient, anonymous: FlaskClient, api: Api
) -> None:
    question_id = ask(api.deployment, None)
    _, token = create(client, question_id)
    status, body = answer(anonymous, token, 1)
    assert (status, body["detail"][0]["loc"]) == (422, ["body", "answer"])
    assert answer(anonymous, token, None)[0] == 200


def test_the_page_shows_until_when_an_answer_counts(
    client: FlaskClient, anonymous: FlaskClient, api: Api
) -> None:
    expiring = {"expire_after_seconds": 60, "on_expiry": {"action": "answer", "answer": 1}}
    question_id = ask(api.deployment, rules=expiring)
    _, token = create(client, question_id)
    with connection() as conn:
        at = conn.execute(text("SELECT expires_at FROM question")).scalar_one()
    assert show(anonymous, token)[1]["expires_at"] == at.isoformat()


def test_the_bodies_are_checked(client: FlaskClient, anonymous: FlaskClient, question_id: UUID) -> None:
    for label in ("a\nb", "\0"):
        assert client.post(f"/v2/inbox/{question_id}/link", json={"label": label}).status_code == 422, label
    assert anonymous.post("/v2/inbox/link/question", json={"token": "\0"}).status_code == 422
    assert anonymous.post("/v2/inbox/link/answer", json={"token": "x"}).status_code == 422
    large = {"token": "x", "answer": "x" * 1024 * 1024}
    assert anonymous.post("/v2/inbox/link/answer", json=large).status_code == 413
    # A valid body in chunks that is followed by more than the limit.
    chunked = anonymous.post(
        "/v2/inbox/link/answer",
        data=b'{"token": "x", "answer": 1}' + b" " * 1024 * 1024 + b"x",
        environ_overrides={
            "wsgi.input_terminated": True,
            "HTTP_TRANSFER_ENCODING": "chunked",
            "CONTENT_LENGTH": "",
        },
    )
    assert chunked.status_code == 413


def test_a_question_has_a_limited_number_of_valid_links(
    client: FlaskClient, question_id: UUID, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(links, "MAX_LINKS", 2)
    first, _ = create(client, question_id)
    create(client, question_id)
    refused = client.post(f"/v2/inbox/{question_id}/link", json={})
    assert (refused.status_code, "revoke some" in refused.text) == (409, True)
    client.delete(f"/v2/inbox/links/{first['id']}")
    create(client, question_id)


def test_links_of_a_deleted_deployment_are_unknown(
    client: FlaskClient, anonymous: FlaskClient, api: Api, question_id: UUID
) -> None:
    _, token = create(client, question_id)
    assert client.delete(f"/v2/deployments/{api.deployment.id}").status_code == 204
    for gone in (show(anonymous, token), answer(anonymous, token)):
        assert gone == (404, {"detail": links.UNKNOWN})


def test_a_deployments_own_authorization_decides_about_answers_by_links(
    client: FlaskClient, anonymous: FlaskClient, users: Users
) -> None:
    question_id = ask(users.deployment)
    _, token = create(client, question_id)
    users.played.on(user_code.refuse, "threads", "create_run")
    assert answer(anonymous, token) == (403, {"detail": links.REFUSED})
    users.played.on(user_code.allow, "threads", "create_run")
    assert answer(anonymous, token)[0] == 200


def test_a_deployment_that_disables_tools_of_the_platform_has_no_links(
    client: FlaskClient, anonymous: FlaskClient, api: Api
) -> None:
    user_code.protect(api.deployment, disable_studio_auth=True)
    question_id = ask(api.deployment)
    with connection() as conn:
        link, token = links.create(conn, question_id, key_id="", seconds=60, label=None)

    assert client.post(f"/v2/inbox/{question_id}/link", json={}).status_code == 404
    assert client.get(f"/v2/inbox/{question_id}/links").status_code == 404
    assert client.delete(f"/v2/inbox/links/{link['link_id']}").status_code == 404
    for gone in (show(anonymous, token), answer(anonymous, token)):
        assert gone == (404, {"detail": links.UNKNOWN})
    assert question(question_id)["answered_at"] is None
