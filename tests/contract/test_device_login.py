"""Sign-in of the command line by a code that a signed-in person confirms."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from flask import Flask
from flask.testing import FlaskClient

from shared.access import device_logins
from tests.contract.conftest import ADMIN_KEY, caller
from tests.contract.signing_in import (
    URL,
    Browser,
    ann,
    browser,
    provider,
    running_provider,
    signing_app,
)
from tests.contract.statements import execute, one, scalar
from web.gate import limits

__all__ = ["ann", "browser", "provider", "running_provider", "signing_app"]


class CommandLine:
    """A command line that logs in."""

    def __init__(self, client: FlaskClient) -> None:
        self.client = client
        response = client.post("/v2/sign-in/device", json={"device": "ann-laptop"})
        assert response.status_code == 200, response.text
        assert response.headers["Cache-Control"] == "no-store"
        self.login: Any = response.json

    def poll(self, *, wait: bool = True) -> Any:
        if wait:
            execute("UPDATE device_login SET polled_at = polled_at - interval '2 minutes'")
        body = {"device_code": self.login["device_code"]}
        response = self.client.post("/v2/sign-in/device/token", json=body)
        assert response.status_code == 200, response.text
        return response.json


@pytest.fixture
def command_line(signing_app: Flask) -> CommandLine:
    return CommandLine(signing_app.test_client())


def answer(browser: Browser, code: str, *, approve: bool = True) -> int:
    body = {"user_code": code, "approve": approve}
    return browser.call("POST", "/v2/sign-in/device/answer", json=body).status_code


def test_a_person_confirms_a_code_and_the_command_line_gets_a_key_once(
    command_line: CommandLine, ann: Browser, signing_app: Flask
) -> None:
    login = command_line.login
    assert login["verification_url"] == f"{URL}/#/device"
    assert login["verification_url_complete"] == f"{URL}/#/device?code={login['user_code']}"
    assert command_line.poll()["status"] == "pending"

    typed = login["user_code"].lower().replace("-", " ")
    shown: Any = ann.call("GET", "/v2/sign-in/device", query_string={"user_code": typed}).json
    assert (shown["device"], shown["address"]) == ("ann-laptop", "127.0.0.1")
    assert answer(ann, typed) == 204
    assert answer(ann, typed) == 404

    polled = command_line.poll()
    assert (polled["status"], polled["role"], polled["organization"]) == ("completed", "admin", "default")
    found: Any = caller(signing_app, polled["key"]).get("/v2/me").json
    assert (found["role"], found["key"]["name"]) == ("admin", "runyard login on ann-laptop")
    assert one("SELECT created_by, round(extract(epoch FROM expires_at - now()) / 86400) FROM api_key") == (
        "Ann Example <ann@example.com>",
        30,
    )
    created, signed_in = ann.call("GET", "/v2/audit").json["resources"]  # type: ignore[index]
    assert (created["action"], created["subject"]) == ("key.created", "runyard login on ann-laptop")
    assert (created["actor"]["name"], created["address"]) == ("Ann Example <ann@example.com>", "127.0.0.1")
    assert created["detail"] == {"of_key": found["key"]["id"], "role": "admin"}
    assert (signed_in["action"], signed_in["actor"]) == ("user.signed_in", created["actor"])
    again = command_line.poll()
    assert (again["status"], again["key"]) == ("expired", None)


def test_the_name_of_a_machine_is_shown_on_one_line(signing_app: Flask, ann: Browser) -> None:
    client = signing_app.test_client()
    for device, expected in (("ann\n\u202e-laptop", "ann -laptop"), ("\n", device_logins.UNNAMED)):
        login: Any = client.post("/v2/sign-in/device", json={"device": device}).json
        query = {"user_code": login["user_code"]}
        shown: Any = ann.call("GET", "/v2/sign-in/device", query_string=query).json
        assert shown["device"] == expected


def test_two_polls_at_once_get_one_key(command_line: CommandLine, ann: Browser) -> None:
    assert answer(ann, command_line.login["user_code"]) == 204
    with ThreadPoolExecutor(2) as pool:
        polled = list(pool.map(lambda _: command_line.poll(), range(2)))
    assert sorted(one["status"] for one in polled) == ["completed", "expired"]
    assert scalar("SELECT count(*) FROM api_key") == 1


def test_a_client_that_polls_too_early_is_slowed_down(command_line: CommandLine, ann: Browser) -> None:
    assert command_line.poll(wait=False)["status"] == "pending"
    for expected in (10, 15):
        polled = command_line.poll(wait=False)
        assert (polled["status"], polled["interval_seconds"]) == ("slow_down", expected)
    assert answer(ann, command_line.login["user_code"]) == 204
    assert command_line.poll(wait=False)["status"] == "slow_down"
    assert command_line.poll()["status"] == "completed"


def test_a_person_refuses(command_line: CommandLine, ann: Browser) -> None:
    assert answer(ann, command_line.login["user_code"], approve=False) == 204
    assert answer(ann, command_line.login["user_code"]) == 404
    assert command_line.poll()["status"] == "denied"
    assert command_line.poll()["status"] == "expired"
    assert scalar("SELECT count(*) FROM api_key") == 0


def test_codes_expire(command_line: CommandLine, ann: Browser) -> None:
    execute("UPDATE device_login SET expires_at = now() - interval '1 second'")
    assert answer(ann, command_line.login["user_code"]) == 404
    assert command_line.poll()["status"] == "expired"


def test_only_a_signed_in_person_confirms(
    command_line: CommandLine, signing_app: Flask, ann: Browser
) -> None:
    body = {"user_code": command_line.login["user_code"], "approve": True}
    path = "/v2/sign-in/device/answer"
    assert signing_app.test_client().post(path, json=body).status_code == 401
    assert caller(signing_app, ADMIN_KEY).post(path, json=body).status_code == 403
    assert ann.client.post(path, json=body).status_code == 401  # a page of another site
    query = {"user_code": command_line.login["user_code"]}
    assert caller(signing_app, ADMIN_KEY).get("/v2/sign-in/device", query_string=query).status_code == 403
    assert command_line.poll()["status"] == "pending"


def test_codes_cannot_be_guessed_and_hold_back_their_guessers(signing_app: Flask, ann: Browser) -> None:
    limits.start_failures(signing_app)
    statuses = [answer(ann, f"BBBB-BB{a}{b}") for a in "BCDFG" for b in "BCDFG"]
    assert statuses[0] == 404
    assert statuses[-1] == 429
    pending = CommandLine(signing_app.test_client())
    assert answer(ann, pending.login["user_code"]) == 429  # otherwise guessing would only need requests
    limits.start_failures(signing_app)
    assert answer(ann, pending.login["user_code"]) == 204
    client = signing_app.test_client()
    body = {"device_code": "unknown"}
    polls = [client.post("/v2/sign-in/device/token", json=body).status_code for _ in range(22)]
    assert (polls[0], polls[-1]) == (200, 429)


def test_an_address_has_few_logins_at_a_time(signing_app: Flask, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_logins, "MAX_PENDING_OF_ADDRESS", 2)
    client = signing_app.test_client()
    statuses = [client.post("/v2/sign-in/device", json={}).status_code for _ in range(3)]
    assert statuses == [200, 200, 429]
    monkeypatch.setattr(device_logins, "MAX_PENDING", 2)
    other = client.post("/v2/sign-in/device", json={}, environ_base={"REMOTE_ADDR": "192.0.2.9"})
    assert other.status_code == 503
    execute("UPDATE device_login SET expires_at = now() - interval '1 second'")
    assert client.post("/v2/sign-in/device", json={}).status_code == 200
    assert scalar("SELECT count(*) FROM device_login") == 1


def test_codes_are_stored_as_hashes_alone(command_line: CommandLine) -> None:
    stored = str(execute("SELECT * FROM device_login"))
    assert command_line.login["device_code"] not in stored
    assert command_line.login["user_code"] not in stored
    assert command_line.login["user_code"].replace("-", "") not in stored
