"""Sign-in with OpenID Connect: the way to a session, and every answer of a provider that is refused."""

from __future__ import annotations

import re
import time
from typing import Any

import pytest
from flask import Flask

import tests.support.factories as make
from shared.infra import egress
from shared.oauth import openid
from tests.contract.conftest import MakeApp
from tests.contract.signing_in import (
    ATTEMPT,
    BROWSER,
    CALLBACK,
    COOKIE,
    URL,
    Browser,
    ann,
    browser,
    provider,
    running_provider,
    signing_app,
)
from tests.contract.statements import execute
from tests.support.oauth_server import SECRET, OAuthServer, ec_key, returned, rsa_key

__all__ = ["ann", "browser", "provider", "running_provider", "signing_app"]


def refusal(browser: Browser, answer: dict[str, str], status: int = 400) -> str:
    """Return the sentence with which the callback refuses an answer. No session has begun."""
    response = browser.come_back(answer, headers={})
    assert response.status_code == status, response.text
    assert browser.cookie() is None
    detail = response.json["detail"]
    return detail if isinstance(detail, str) else detail[0]["msg"]


def test_without_a_provider_nobody_can_sign_in(app: Flask) -> None:
    client = app.test_client()
    assert client.get("/v2/sign-in").json == {"is_configured": False, "label": None, "start_url": None}
    assert client.get("/v2/sign-in/session").json == {"session": None, "ended": None}
    for path in ("/v2/sign-in/start", "/v2/sign-in/callback?state=s&code=c"):
        assert client.get(path).status_code == 404
    assert client.post("/v2/sign-in/device", json={}).status_code == 404


def test_the_sign_in_page_learns_the_provider_s_name(app_with: MakeApp, provider: OAuthServer) -> None:
    configured = provider.openid(CALLBACK)
    found = app_with(url=URL, **configured).test_client().get("/v2/sign-in").json
    assert found == {"is_configured": True, "label": "127.0.0.1", "start_url": f"{URL}/v2/sign-in/start"}
    named = app_with(url=URL, oidc_label="Acme", **configured).test_client()
    assert named.get("/v2/sign-in").json["label"] == "Acme"


def test_a_person_signs_in_and_gets_the_page_that_they_asked_for(browser: Browser) -> None:
    address = browser.start("/d/chat/threads?status=busy")
    sent = returned(address)
    assert sent["scope"] == "openid profile email"
    assert sent["code_challenge_method"] == "S256"
    assert len(sent["state"]) == len(sent["nonce"]) == 43
    assert "ann" not in address

    answer = returned(browser.provider.consent(address))
    response = browser.come_back(answer)
    assert response.status_code == 303
    assert response.headers["Location"] == f"{URL}/#/d/chat/threads?status=busy"
    assert response.headers["Cache-Control"] == "no-store"
    cookies = response.headers.getlist("Set-Cookie")
    assert any(
        re.match(rf"{COOKIE}=ryd_session_[\w-]{{43}}; .*HttpOnly; Path=/; SameSite=Strict$", one)
        for one in cookies
    )
    assert browser.cookie(ATTEMPT) is None
    session = browser.session()
    assert (session["name"], session["role"]) == ("Ann Example <ann@example.com>", "admin")
    assert session["organization"] == "default"
    stored = execute("SELECT id FROM session")
    assert [len(row[0]) for row in stored] == [32]
    assert str(browser.cookie()).encode() not in bytes(stored[0][0])


def test_with_https_the_cookies_are_of_this_host_alone(app_with: MakeApp, provider: OAuthServer) -> None:
    secure = "https://localhost"
    app = app_with(url=secure, **provider.openid(f"{secure}/v2/sign-in/callback"))
    response = app.test_client().get("/v2/sign-in/start", base_url=secure)
    (cookie,) = response.headers.getlist("Set-Cookie")
    assert cookie.startswith(f"__Host-{ATTEMPT}=")
    assert {"Secure", "HttpOnly", "Path=/", "SameSite=Lax"} <= {part.strip() for part in cookie.split(";")}
    assert "Domain" not in cookie


@pytest.mark.parametrize("method", ["client_secret_post", "client_secret_basic", "none"])
def test_the_client_authenticates_as_the_provider_requires(
    app_with: MakeApp, provider: OAuthServer, method: str
) -> None:
    provider.metadata["token_endpoint_auth_methods_supported"] = [method]
    Browser(app_with(url=URL, **provider.openid(CALLBACK, method)), provider).sign_in()
    assert ("client_secret" in provider.asked[0]) == (method == "client_secret_post")


def test_a_page_outside_the_console_is_not_a_place_to_go_to(browser: Browser) -> None:
    for place in ("https://evil.example/", "//evil.example\\", "evil", "/a\nb"):
        response = browser.client.get("/v2/sign-in/start", query_string={"next": place})
        assert response.status_code == 422, place
    # A fragment of the console's own address leads nowhere else.
    response = browser.come_back(browser.answer("//evil.example/"))
    assert response.headers["Location"] == f"{URL}/#//evil.example/"


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "issuer": ({"iss": "https://evil.example"}, "its claim iss is missing or wrong"),
    "no issuer": ({"iss": None}, "its claim iss is missing or wrong"),
    "audience": ({"aud": "another"}, "its claim aud is missing or wrong"),
    "audiences": ({"aud": ["another", "third"]}, "its claim aud is missing or wrong"),
    "several audiences": ({"aud": ["runyard", "another"]}, "its claim azp is missing or wrong"),
    "authorized party": ({"azp": "another"}, "its claim azp is missing or wrong"),
    "nonce": ({"nonce": "of another sign-in"}, "its claim nonce is missing or wrong"),
    "no nonce": ({"nonce": None}, "its claim nonce is missing or wrong"),
    "expired": ({"exp": 1_700_000_000}, "it has expired"),
    "no expiry": ({"exp": None}, "its claim exp is missing or wrong"),
    "expiry as text": ({"exp": "never"}, "its claim exp is missing or wrong"),
    "issued in the future": ({"iat": 9_999_999_999}, "its claim iat is missing or wrong"),
    "no subject": ({"sub": None}, "its claim sub is missing or wrong"),
    "a subject that is a number": ({"sub": 1}, "its claim sub is missing or wrong"),
    "empty subject": ({"sub": ""}, "its claim sub is"),
    "long subject": ({"sub": "s" * 256}, "its claim sub is empty, too long or not printable"),
    "a subject with a NUL": ({"sub": "ann\0"}, "its claim sub is empty, too long or not printable"),
    "access token": ({"at_hash": "of-another-token"}, "its claim at_hash is missing or wrong"),
}


def test_an_id_token_with_a_wrong_claim_is_refused(browser: Browser) -> None:
    for what, (claims, sentence) in WRONG.items():
        browser.provider.claims = claims
        assert sentence in refusal(browser, browser.answer()), what


def test_an_id_token_that_no_key_of_the_provider_signed_is_refused(browser: Browser) -> None:
    signed_by_nobody = "no key of the provider has signed it"
    browser.provider.signs_with = rsa_key("second")
    assert signed_by_nobody in refusal(browser, browser.answer())
    stolen_name = type(rsa_key("third")).generate_key(2048, {"kid": "first"})
    browser.provider.signs_with = stolen_name
    assert signed_by_nobody in refusal(browser, browser.answer())


def test_a_shared_secret_and_no_signature_sign_nothing(browser: Browser) -> None:
    public = browser.provider.keys[0].as_pem(private=False).decode()
    for secret in (SECRET, public):
        browser.provider.secret = secret
        assert "its algorithm is not one of the provider's" in refusal(browser, browser.answer())
    browser.provider.metadata["id_token_signing_alg_values_supported"] = ["HS256", "none"]
    openid.forget()
    response = browser.client.get("/v2/sign-in/start")
    assert (response.status_code, "no supported algorithm" in response.text) == (502, True)


def test_an_unsigned_token_is_refused(browser: Browser, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(browser.provider, "id_token", lambda code: "eyJhbGciOiJub25lIn0.e30.", raising=False)
    assert "was refused" in refusal(browser, browser.answer())
    monkeypatch.setattr(browser.provider, "id_token", lambda code: "not a token", raising=False)
    assert "it cannot be read" in refusal(browser, browser.answer())
    monkeypatch.setattr(browser.provider, "id_token", lambda code: None, raising=False)
    assert "it is missing" in refusal(browser, browser.answer())


def test_keys_that_the_provider_has_rotated_are_fetched_again_and_not_for_every_token(
    browser: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    browser.sign_in()
    assert browser.provider.key_requests == 1
    browser.client.delete_cookie(COOKIE)
    browser.provider.keys = [rsa_key("first"), ec_key("next")]
    browser.provider.algorithm = "ES256"
    assert "no key of the provider" in refusal(browser, browser.answer())  # within a minute of the last fetch
    assert browser.provider.key_requests == 1
    monkeypatch.setattr(openid, "RETRY_SECONDS", 0.0)
    browser.sign_in()
    assert browser.provider.key_requests == 2


def test_an_algorithm_that_the_provider_has_rotated_is_read_from_its_metadata_again(
    browser: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(openid, "RETRY_SECONDS", 0.0)
    server = browser.provider
    server.metadata = {"id_token_signing_alg_values_supported": ["RS256"]}
    browser.sign_in()
    server.metadata = {"id_token_signing_alg_values_supported": ["ES256"]}
    server.keys, server.algorithm = [ec_key("next")], "ES256"
    browser.sign_in()


def test_a_small_difference_of_the_clocks_is_accepted(browser: Browser) -> None:
    now = int(time.time())
    browser.provider.claims = {"iat": now + 40, "nbf": now + 40, "exp": now + 300}
    browser.sign_in()
    browser.provider.claims = {"iat": now - 300, "exp": now - 40}
    browser.sign_in()


def test_sign_ins_of_two_tabs_succeed_in_any_order(browser: Browser) -> None:
    first, second = browser.answer("/keys"), browser.answer("/workers")
    stolen = {"state": "of a link on another page", "code": "c"}
    assert "not started in this browser" in refusal(browser, stolen)
    for answer, place in ((second, "/workers"), (first, "/keys")):
        response = browser.come_back(answer)
        assert response.headers["Location"] == f"{URL}/#{place}"
    assert browser.cookie(ATTEMPT) is None


def test_the_cookie_holds_a_limited_number_of_sign_ins(browser: Browser) -> None:
    answers = [browser.answer() for _ in range(6)]
    assert "not started in this browser" in refusal(browser, answers[0])
    assert browser.come_back(answers[1]).status_code == 303
    for place in ("/" + "x" * 2047, "/" + "y" * 2047):
        last = browser.answer(place)
        assert len(str(browser.cookie(ATTEMPT))) < 4000
    assert browser.come_back(last).headers["Location"] == f"{URL}/#/{'y' * 2047}"


def test_a_refused_answer_ends_its_sign_in(browser: Browser) -> None:
    answer = browser.answer()
    assert "another provider" in refusal(browser, {**answer, "iss": "https://evil.example"})
    assert "not started in this browser" in refusal(browser, answer)


def test_a_state_that_this_browser_did_not_get_is_refused(browser: Browser, signing_app: Flask) -> None:
    answer = browser.answer()
    attacker = Browser(signing_app, browser.provider)
    not_started = "not started in this browser"
    assert not_started in refusal(attacker, answer)  # without a cookie
    stolen = attacker.answer()
    assert not_started in refusal(browser, stolen)  # the attacker's answer in the victim's browser
    assert not_started in refusal(browser, {**browser.answer(), "state": ""})


def test_an_answer_that_is_sent_again_is_refused(browser: Browser) -> None:
    answer = browser.answer()
    kept = browser.cookie(ATTEMPT)
    assert browser.come_back(answer).status_code == 303
    browser.client.delete_cookie(COOKIE)
    assert "not started in this browser" in refusal(browser, answer)
    assert kept is not None
    browser.client.set_cookie(ATTEMPT, kept)  # the provider issues tokens for a code once
    assert "the provider refused the code" in refusal(browser, answer)


def test_a_sign_in_that_took_too_long_is_refused(browser: Browser, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("web.control_plane.sign_in.SIGN_IN_SECONDS", -1)
    address = browser.client.get("/v2/sign-in/start").headers
    value = address["Set-Cookie"].partition("=")[2].partition(";")[0]
    answer = returned(browser.provider.consent(address["Location"]))
    browser.client.set_cookie(ATTEMPT, value)
    assert "has expired" in refusal(browser, answer)


def test_a_cookie_that_the_service_did_not_make_is_refused(browser: Browser) -> None:
    answer = browser.answer()
    for value in ("x", str(browser.cookie(ATTEMPT))[:-4], '{"state": "s"}'):
        browser.client.set_cookie(ATTEMPT, value)
        assert "not started in this browser" in refusal(browser, answer)


def test_an_answer_of_another_provider_is_refused(browser: Browser) -> None:
    assert "another provider" in refusal(browser, {**browser.answer(), "iss": "https://evil.example"})
    answer = browser.answer()
    del answer["iss"]  # the metadata says that it is always sent
    assert "another provider" in refusal(browser, answer)


def test_a_wrong_code_and_a_refused_consent_are_refused(browser: Browser) -> None:
    assert "the provider refused the code" in refusal(browser, {**browser.answer(), "code": "wrong"})
    browser.provider.denies = True
    assert "the provider answered access_denied" in refusal(browser, browser.answer())
    answer = {**browser.answer(), "error": "<script>"}
    assert "the provider answered an error" in refusal(browser, answer)
    answer = browser.answer()
    browser.provider.denies = False
    no_code = {name: value for name, value in browser.answer().items() if name != "code"}
    assert "no code" in refusal(browser, no_code)


def test_a_browser_gets_a_page_that_says_why(browser: Browser) -> None:
    response = browser.come_back({**browser.answer(), "code": "wrong"})
    assert response.status_code == 400
    assert response.mimetype == "text/html"
    assert "The provider refused the code." in response.text
    assert f'<a href="{URL}/">' in response.text
    assert "script-src" not in response.headers["Content-Security-Policy"]
    assert browser.client.head("/v2/sign-in/callback?state=s").status_code == 405


def test_only_people_with_a_role_get_in(browser: Browser, app_with: MakeApp) -> None:
    for claims in (
        {"roles": ["guests"]},
        {"roles": None},
        {"roles": []},
        {"roles": {"platform": True}},
        {"roles": 7},
    ):
        browser.provider.claims = claims
        assert "may not use this service" in refusal(browser, browser.answer(), 403), claims
    assert execute("SELECT count(*) FROM session")[0][0] == 0
    configured = browser.provider.openid(CALLBACK)
    known = Browser(app_with(url=URL, **configured, oidc_default_role="read"), browser.provider)
    known.sign_in()
    assert known.session()["role"] == "read"


@pytest.mark.parametrize(
    ("claims", "path", "role"),
    [
        ({"roles": "staff"}, "roles", "run"),
        ({"roles": ["staff", "platform", "others"]}, "roles", "admin"),
        ({"realm_access": {"roles": ["staff"]}}, "realm_access.roles", "run"),
        ({"https://acme.example/roles": ["owners"]}, "https://acme.example/roles", "operator"),
    ],
)
def test_a_role_comes_from_a_claim(
    app_with: MakeApp, provider: OAuthServer, claims: dict[str, Any], path: str, role: str
) -> None:
    provider.claims = {"roles": None, **claims}
    browser = Browser(app_with(url=URL, **provider.openid(CALLBACK), oidc_role_claim=path), provider)
    browser.sign_in()
    assert browser.session()["role"] == role


def test_claims_come_from_the_userinfo_endpoint_if_the_id_token_lacks_them(browser: Browser) -> None:
    browser.provider.claims = {"roles": None, "name": None, "email": None}
    browser.provider.userinfo = {"roles": ["staff"], "preferred_username": "ann"}
    browser.sign_in()
    session = browser.session()
    assert (session["name"], session["role"]) == ("ann", "run")
    browser.client.delete_cookie(COOKIE)
    browser.provider.userinfo = {"roles": ["owners"], "sub": "bob-2"}
    assert "describes another person" in refusal(browser, browser.answer())


def test_an_organization_comes_from_a_claim(app_with: MakeApp, provider: OAuthServer) -> None:
    make.organization("acme")
    app = app_with(url=URL, **provider.openid(CALLBACK), oidc_organization_claim="org")
    browser = Browser(app, provider)
    provider.claims = {"org": "acme"}
    browser.sign_in()
    assert browser.session()["organization"] == "acme"
    browser.client.delete_cookie(COOKIE)
    for org in (None, "elsewhere", "a\0b"):
        provider.claims = {"org": org}
        assert "names no organization" in refusal(browser, browser.answer(), 403)
    provider.claims = {"org": "acme", "roles": ["owners"]}
    browser.sign_in()
    assert browser.session()["organization"] == "default"  # operators act for all of them


def test_a_provider_that_cannot_be_used_is_an_error_that_says_so(browser: Browser) -> None:
    server = browser.provider
    for metadata, sentence in (
        ({"issuer": "https://evil.example"}, "another issuer"),
        ({"jwks_uri": None}, "has no jwks_uri"),
        ({"token_endpoint": "ftp://x"}, "token_endpoint of the provider must be"),
        ({"code_challenge_methods_supported": ["plain"]}, "does not support PKCE"),
    ):
        server.metadata = metadata
        openid.forget()
        response = browser.client.get("/v2/sign-in/start")
        assert (response.status_code, sentence in response.text) == (502, True), response.text
    server.metadata = {}
    egress.configure()
    openid.forget()
    assert browser.client.get("/v2/sign-in/start", headers=BROWSER).status_code == 502


def test_names_are_shown_on_one_line_and_an_unverified_address_is_not(browser: Browser) -> None:
    browser.provider.claims = {"name": "Ann\n\u202eExample " + "x" * 300, "email_verified": False}
    browser.sign_in()
    name = browser.session()["name"]
    assert name.startswith("Ann Example x")
    assert len(name) <= 255
    assert "@" not in name


def test_a_new_sign_in_updates_the_person_and_makes_another_session(ann: Browser) -> None:
    first = ann.cookie()
    ann.provider.claims = {"name": "Ann Other"}
    ann.sign_in()
    assert ann.cookie() != first
    assert execute("SELECT name FROM account") == [("Ann Other <ann@example.com>",)]
    assert execute("SELECT count(*) FROM session") == [(2,)]
