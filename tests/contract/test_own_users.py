"""Callers of a deployment with its own authorization: its users, the platform's tools, its own code."""

from __future__ import annotations

import logging
from base64 import b64encode
from collections.abc import Callable, Mapping
from typing import Any
from uuid import uuid4

import orjson
import pytest

import tests.support.factories as make
from shared.access.api_keys import DEFAULT_ORGANIZATION_ID
from shared.errors import HostDied, HostError, Unanswered, Unavailable
from shared.user_code import loopback
from shared.user_code import users as cached_users
from tests.contract.conftest import ADMIN_KEY, Api, MakeApp, Users, caller, new_key
from tests.support import user_code
from web.gate import limits

STUDIO = {"x-auth-scheme": "langsmith"}
UNKNOWN = {"detail": "who are you?"}


def search(api: Api, **more: Any) -> Any:
    return api.post("/threads/search", {}, **more)


def test_a_user_needs_no_key_and_who_is_refused_gets_the_projects_message(users: Users) -> None:
    assert search(users.ann).status_code == 200
    response = search(users.nobody)
    assert (response.status_code, response.json) == (401, UNKNOWN)
    assert response.headers["WWW-Authenticate"] == "Basic"
    upgrade = {"Connection": "Upgrade", "Upgrade": "websocket"}
    assert users.nobody.get(f"/threads/{uuid4()}/stream/events", headers=upgrade).json == UNKNOWN


def test_an_unknown_path_is_authenticated_first(users: Users) -> None:
    for path, method in (("/nothing", "GET"), ("/threads/x/y/z", "POST"), ("/assistants", "PUT")):
        assert users.nobody.call(method, path).status_code == 401, path
        assert users.ann.call(method, path).status_code in (404, 405), path


def test_what_users_sign_in_with_is_no_wrong_key_on_open_routes(users: Users) -> None:
    for _ in range(25):  # more failures than an address may have in a minute
        for path in ("/info", "/metrics"):
            assert users.ann.get(path).status_code == 200
    ids = {"project_id", "tenant_id"}
    told: list[Any] = [api.get("/info").json for api in (users.ann, users.owner)]
    assert [ids & info["host"].keys() for info in told] == [set(), ids]


def test_a_path_that_could_climb_is_an_unknown_one(users: Users, subtests: pytest.Subtests) -> None:
    rows: list[Any] = ["/threads%2Fx", "/threads/%2e%2e/ok", "/..", "/threads/..%2F..%2Fok"]
    for path in rows:
        with subtests.test(path=path):
            limits.start_failures(users.owner.client.application)  # reset the count of failed attempts
            for _ in range(25):  # more failures than an address may have in a minute
                assert users.ann.get(path).status_code == 404
            assert users.nobody.get(path).json == UNKNOWN


def test_open_routes_and_preflights_ask_nobody(users: Users) -> None:
    for path in ("/ok", "/info", "/openapi.json", "/docs", "/"):
        assert (path, users.nobody.get(path).status_code) == (path, 200)
    headers = {"Origin": "https://app.example", "Access-Control-Request-Method": "POST"}
    assert users.nobody.call("OPTIONS", "/threads", headers=headers).status_code == 200
    assert users.played.calls == []


def test_the_project_sees_the_request_as_it_was_sent_without_the_prefix(
    app_with: MakeApp, users: Users
) -> None:
    users.ann.get("/threads/count?a=1&a=2", headers={"X-Team": "red"})
    (seen,) = users.played.authenticated
    headers = dict(seen["headers"])
    assert (seen["method"], seen["path"], seen["query"]) == ("GET", "/threads/count", "a=1&a=2")
    assert seen["url"] == "http://localhost/d/chat/threads/count?a=1&a=2"
    assert seen["client"][0] == "127.0.0.1"
    assert (headers["authorization"], headers["x-team"]) == ("Bearer ann", "red")
    assert headers["x-request-id"]

    users.ann.get("/threads/%C3%A9%20?b=%C3%A9%20x&c=")
    app_with(dev_deployment="chat").test_client().get("/threads/x?b=%C3%A9")
    _, named, at_root = [facts["url"] for facts in users.played.authenticated]
    assert named == "http://localhost/d/chat/threads/%C3%A9%20?b=%C3%A9%20x&c="
    assert at_root == "http://localhost/threads/x?b=%C3%A9"


def test_a_key_in_the_query_is_left_out_of_what_the_project_sees(users: Users) -> None:
    for secret in (ADMIN_KEY, "ryd_12345678_" + "A" * 43):
        escaped = "".join(f"%{byte:02x}" for byte in secret.encode())
        for sent in (
            f"key={secret}",
            f"key={escaped}",
            secret,
            f"{secret}=1",
            f"k=Bearer+{secret}",
            f"k={escaped[:-3]}{secret[-1]}",
        ):
            users.ann.get(f"/threads/x?a=%20&{sent}&b&a=+c")
            facts = users.played.authenticated.pop()
            assert facts["query"] == "a=%20&b&a=+c"
            assert facts["url"].endswith("/threads/x?a=%20&b&a=+c")
    users.ann.get(f"/threads/x?key={ADMIN_KEY}")
    assert users.played.authenticated.pop()["url"].endswith("/threads/x")


def test_the_project_sees_no_key_of_the_platform(users: Users, subtests: pytest.Subtests) -> None:
    for name in ("X-Api-Key", "Authorization", "X-Other"):
        for scheme in ("", "Bearer "):
            with subtests.test(name=name, scheme=scheme):
                limits.start_failures(users.owner.client.application)  # reset the count of failed attempts
                for secret in (ADMIN_KEY, new_key("admin"), "ryd_not_a_key"):
                    search(users.nobody, headers={name: scheme + secret})
                    assert secret not in str(users.played.authenticated.pop())


def test_wherever_in_a_header_a_key_is_the_project_does_not_see_it(
    users: Users, subtests: pytest.Subtests
) -> None:
    rows_0: list[Any] = [
        "{}, mine",
        "mine,{}",
        "mine, {}",
        '"{}"',
        "a=1; key={}; b=2",
        "Bearer {} x",
        "[{}]",
        "x{}",
    ]
    for shape in rows_0:
        for name in ("X-Api-Key", "Authorization", "X-Cookies"):
            with subtests.test(shape=shape, name=name):
                limits.start_failures(users.owner.client.application)  # reset the count of failed attempts
                for secret in (ADMIN_KEY, "ryd_12345678_" + "A" * 43):
                    search(users.nobody, headers={name: shape.format(secret)})
                    assert secret not in str(users.played.authenticated.pop())
                    escaped = "".join(f"%{byte:02x}" for byte in secret.encode())
                    basic = b64encode(f"ann:{secret}".encode()).decode()
                    for hidden in (
                        escaped,
                        escaped.replace("%", "%25"),
                        f"Basic {basic}",
                        f"x, basic {basic.rstrip('=')}",
                    ):
                        search(users.nobody, headers={name: shape.format(hidden)})
                        assert hidden not in str(users.played.authenticated.pop())
                search(users.nobody, headers={name: "hurryd_up ryder"})
                assert "hurryd_up ryder" in str(users.played.authenticated.pop())


def test_the_platforms_tools_come_with_a_key_and_a_header(users: Users) -> None:
    seen = []
    users.played.on(lambda ctx, value: seen.append(ctx.user))
    for role in ("run", "admin"):
        assert (
            search(
                Api(caller(users.owner.client.application, new_key(role)), users.owner.deployment),
                headers=STUDIO,
            ).status_code
            == 200
        )
    assert [user["identity"] for user in seen] == ["langgraph-studio-user"] * 2
    assert (seen[0]["kind"], seen[0]["permissions"]) == ("StudioUser", [])
    assert users.played.authenticated == []


def test_the_header_of_the_tools_is_worth_nothing_without_a_good_key_and_its_key_nothing_without_it(
    users: Users,
) -> None:
    app, deployment = users.owner.client.application, users.owner.deployment
    foreign = new_key("admin", make.organization())
    assert search(users.nobody, headers=STUDIO).json == UNKNOWN
    assert search(Api(caller(app, foreign), deployment), headers=STUDIO).json == UNKNOWN
    assert search(Api(caller(app, new_key("read")), deployment), headers=STUDIO).json == UNKNOWN
    assert search(Api(caller(app, "ryd_12345678_" + "A" * 43), deployment), headers=STUDIO).json == UNKNOWN

    assert search(users.owner).json == UNKNOWN
    users.played.users[""] = user_code.user("everybody")
    assert search(users.owner).status_code == 200
    assert users.played.pairs() == [("threads", "search")]


def test_a_project_can_refuse_the_tools(users: Users) -> None:
    user_code.protect(users.deployment, disable_studio_auth=True)
    assert search(users.owner, headers=STUDIO).json == UNKNOWN


def test_a_developer_at_their_machine_may_come_as_the_tools_do(app_with: MakeApp, users: Users) -> None:
    client = app_with(dev_deployment="chat").test_client()
    assert client.post("/threads/search", json={}, headers=STUDIO).status_code == 200
    assert client.post("/threads/search", json={}).json == UNKNOWN


def test_without_a_key_a_name_means_the_oldest_deployment_with_an_authorization(users: Users) -> None:
    make.deployment("twin", organization_id=make.organization())  # older, but requires a key
    guarded = make.deployment("twin", organization_id=make.organization())
    younger = make.deployment("twin", organization_id=make.organization())
    for deployment in (guarded, younger):
        user_code.protect(deployment)
    client = users.ann.client
    for headers, expected in (
        ({}, guarded),
        ({"X-Tenant-Id": str(guarded.organization_id)}, guarded),
        ({"X-Tenant-Id": str(younger.organization_id)}, younger),
    ):
        assert client.post("/d/twin/threads/search", json={}, headers=headers).status_code == 200
        assert set(users.played.revisions) == {expected.active_revision_id}
        users.played.forget()
    refused = client.post("/d/twin/threads/search", json={}, headers={"X-Tenant-Id": str(uuid4())})
    assert refused.status_code == 401
    assert "Unknown API key" in refused.text


def test_a_deployment_without_authorization_needs_its_key(users: Users) -> None:
    make.deployment("plain", organization_id=DEFAULT_ORGANIZATION_ID)
    client = users.ann.client
    assert client.post("/d/plain/threads/search", json={}).status_code == 401
    assert users.played.calls == []


# Invalid answers of the authorization


def fails(answer: Any) -> Callable[[Mapping[str, Any]], bytes]:
    def call(document: Mapping[str, Any]) -> bytes:
        if isinstance(answer, Exception):
            raise answer
        return answer if isinstance(answer, bytes) else orjson.dumps(answer)

    return call


BAD_USERS: list[Any] = [
    None, 1, [], {}, {"identity": ""}, {"identity": 1, "permissions": []}, {"identity": "x" * 2000, "permissions": []},
    {"identity": "ann", "permissions": "read"}, {"identity": "ann", "permissions": [1]},
    {"identity": "ann", "permissions": [], "more": "x" * 40_000}, {"identity": "a\0", "permissions": []},
]  # fmt: skip


def test_what_is_no_user_is_refused_and_said_in_the_deployments_log(
    users: Users, subtests: pytest.Subtests
) -> None:
    for bad in BAD_USERS:
        with subtests.test(bad=bad):
            users.played.answer = fails({"user": bad})
            response = search(users.ann)
            assert (response.status_code, response.json) == (500, {"detail": "Internal Server Error"})
            assert "authenticate returned" in users.last_line()


def test_no_answer_is_a_refusal(
    users: Users, caplog: pytest.LogCaptureFixture, subtests: pytest.Subtests
) -> None:
    rows: list[Any] = [
        (Unanswered(), 504),
        (Unavailable("no host"), 503),
        (HostDied("SIGKILL"), 503),
        (HostError("nonsense"), 500),
        (b"nonsense", 500),
        ([], 500),
        ({}, 500),
        ({"failed": "ValueError: open sesame"}, 500),
        ({"denied": {"status": 302, "detail": "elsewhere", "headers": {}}}, 500),
        ({"denied": {"status": "401"}}, 500),
        ({"denied": "no"}, 500),
        ({"denied": {"status": 500, "detail": "open sesame", "headers": {}}}, 500),
        ({"denied": {"status": 429, "detail": "slowly", "headers": {"Retry-After": "3"}}}, 429),
        ({"denied": {"status": 418, "detail": {"why": [1]}, "headers": {}}}, 418),
        ({"denied": {"status": 499, "detail": None, "headers": None}}, 499),
    ]
    for answer, status in rows:
        with subtests.test(answer=answer, status=status):
            users.played.answer = fails(answer)
            with caplog.at_level(logging.INFO):
                response = search(users.ann)
            assert response.status_code == status
            assert "sesame" not in response.text
            assert "Bearer ann" not in caplog.text
            assert "sesame" not in caplog.text
            if status == 503:
                assert response.headers["Retry-After"]
            if status == 429:
                assert (response.json, response.headers["Retry-After"]) == ({"detail": "slowly"}, "3")
            if status == 418:
                assert response.json == {"detail": {"why": [1]}}


def test_a_refusal_has_no_headers_that_are_the_servers_or_bind_its_origin(
    users: Users, subtests: pytest.Subtests
) -> None:
    rows: list[Any] = [
        ("Set-Cookie", "session=eve; Path=/"),
        ("Content-Security-Policy", "default-src *"),
        ("X-Content-Type-Options", "sniff"),
        ("Clear-Site-Data", '"*"'),
        ("Service-Worker-Allowed", "/"),
        ("Strict-Transport-Security", "max-age=0"),
        ("X-Accel-Redirect", "/inside"),
        ("X-Bad", "a\r\nSet-Cookie: b=c"),
        ("Content-Length", "3"),
        ("Content-Type", "text/html"),
    ]
    for name, value in rows:
        with subtests.test(name=name, value=value):
            refusal = {"status": 401, "detail": "no", "headers": {name: value, "X-Why": "so"}}
            users.played.answer = fails({"denied": refusal})
            response = search(users.ann)
            assert (response.json, response.headers["X-Why"]) == ({"detail": "no"}, "so")
            assert response.headers["Content-Type"] == "application/json"
            assert response.headers.get(name) != value
            assert "Set-Cookie" not in response.headers


def test_failures_are_limited_by_address_and_users_as_a_key_is(users: Users) -> None:
    statuses = [search(users.nobody).status_code for _ in range(22)]
    assert statuses == [401] * 20 + [429] * 2
    assert search(users.ann).status_code == 200

    users.owner.set(requests_per_second=0.001, requests_burst=3)
    limits.start(users.owner.client.application)
    addresses = iter(f"10.0.0.{n}" for n in range(9))
    statuses = [
        [search(api, environ_base={"REMOTE_ADDR": next(addresses)}).status_code for _ in range(4)]
        for api in (users.ann, users.bob)
    ]
    assert statuses == [[200, 200, 200, 429]] * 2


# Cached users


def test_where_only_the_credentials_decide_a_user_is_asked_about_once_and_a_refusal_again(
    users: Users,
) -> None:
    user_code.protect(users.deployment, parameters=["authorization"])
    for _ in range(3):
        assert search(users.ann).status_code == 200
        assert search(users.bob).status_code == 200
    assert len(users.played.authenticated) == 2

    late = users.of("late")
    assert search(late).status_code == 401
    users.played.users["late"] = user_code.user("late")
    assert search(late).status_code == 200


@pytest.mark.parametrize(
    "auth",
    [
        {"parameters": ["authorization", "path"]},
        {"parameters": []},
        {"parameters": ["authorization"], "cache_seconds": 0},
    ],
    ids=str,
)
def test_a_user_is_asked_about_each_time_where_more_decides(users: Users, auth: dict[str, Any]) -> None:
    user_code.protect(users.deployment, **auth)
    for _ in range(2):
        search(users.ann)
    assert len(users.played.authenticated) == 2


def test_the_project_names_the_headers_that_decide(users: Users) -> None:
    user_code.protect(users.deployment, cache_keys=["authorization", "x-team"], cache_seconds=60)
    for team in ("red", "blue", "red"):
        search(users.ann, headers={"X-Team": team})
    assert len(users.played.authenticated) == 2


def test_no_more_users_are_kept_than_the_project_says(users: Users) -> None:
    user_code.protect(users.deployment, parameters=["authorization"], cache_size=1)
    for api in (users.ann, users.bob, users.ann):
        search(api)
    assert len(users.played.authenticated) == 3


def test_a_new_revision_knows_nobody(users: Users) -> None:
    user_code.protect(users.deployment, parameters=["authorization"], cache_seconds=60)
    search(users.ann)
    newer = make.deployment("newer", organization_id=DEFAULT_ORGANIZATION_ID)
    assert set(cached_users._revisions) == {users.deployment.active_revision_id}
    assert newer.active_revision_id not in cached_users._revisions


# The deployment's own code


@pytest.fixture
def token(own_key: None, users: Users) -> Callable[..., dict[str, str]]:
    def made(deployment: Any = None, user: Any = None) -> dict[str, str]:
        deployment = deployment or users.deployment
        return {loopback.HEADER: loopback.make(deployment.id, user)}

    return made


def test_own_code_is_its_user_and_the_handlers_are_asked(users: Users, token: Any) -> None:
    seen: list[Any] = []
    users.played.on(lambda ctx, value: seen.append(ctx.user))
    assert search(users.nobody, headers=token(user=user_code.user("ann", team="red"))).status_code == 200
    assert [(user["identity"], user["team"]) for user in seen] == [("ann", "red")]
    assert users.played.authenticated == []


def test_a_token_opens_its_deployment_alone(users: Users, token: Any) -> None:
    other = make.deployment("other", organization_id=DEFAULT_ORGANIZATION_ID)
    refused = search(users.nobody, headers=token(other, user_code.user("ann")))
    assert (refused.status_code, users.played.calls) == (401, [])
    client = users.nobody.client
    assert client.post("/d/other/threads/search", json={}, headers=token(other)).status_code == 200


def test_a_bad_or_old_token_is_no_ordinary_request(
    users: Users, token: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    for bad in ("nonsense", ""):
        assert search(users.ann, headers={loopback.HEADER: bad}).status_code == 401
    monkeypatch.setattr(loopback, "VALID_SECONDS", -1.0)
    assert search(users.nobody, headers=token(user=user_code.user("ann"))).status_code == 401
    assert users.played.calls == []


def test_code_that_works_for_nobody_may_say_who_it_is_as_anybody_may(users: Users, token: Any) -> None:
    seen: list[Any] = []
    users.played.on(lambda ctx, value: seen.append(ctx.identity))
    assert search(users.nobody, headers=token(user=None)).status_code == 401
    assert users.played.calls == []
    assert search(users.ann, headers=token(user=None)).status_code == 200
    assert seen == ["ann"]
    assert loopback.HEADER.lower() not in dict(users.played.authenticated[0]["headers"])
    assert search(users.of("unknown"), headers=token(user=None)).json == UNKNOWN
    assert search(users.ann, headers=token(user=user_code.user("bob"))).status_code == 200
    assert seen[-1] == "bob"  # the token's user takes precedence over other credentials
