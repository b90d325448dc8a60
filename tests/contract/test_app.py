"""A project's own app at its deployment's address: forwarded requests and returned answers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gevent
import pytest
from flask.testing import FlaskClient

import tests.support.factories as make
from shared.hosts import exchanges
from shared.user_code import loopback
from tests.contract.conftest import ADMIN_KEY, Api, MakeApp
from tests.support import user_code
from tests.support.played_app import BODY, CLOSE, END, Side, Stage, serve
from web.deployment_api.user_app import waiting
from web.gate import limits
from web.gate.deployments import forget as forget_deployments

Played = Callable[..., Stage]
SHARED, OWN = "http://localhost/d/chat/x", "http://chat.apps.localhost/x"


@pytest.fixture
def played(api: Api, monkeypatch: pytest.MonkeyPatch) -> Played:
    """Function that plays the app of the deployment `chat`."""

    def play(app: Callable[[Side], None], *routes: str, **more: Any) -> Stage:
        stage = Stage(app)
        monkeypatch.setattr(exchanges, "open_exchange", stage.open_exchange)
        serve(api.deployment, *routes, **more)
        forget_deployments()
        return stage

    return play


def hello(side: Side) -> None:
    side.body()
    side.answer(b"hello", headers=[("content-type", "text/plain"), ("content-length", "5")])


def test_a_route_of_the_app_needs_no_key(played: Played, anonymous: FlaskClient) -> None:
    stage = played(hello, "GET /hello/{name}")
    response = anonymous.get(f"/d/chat/hello/ann?x=1&key={ADMIN_KEY}&x=2")
    assert (response.status_code, response.data) == (200, b"hello")
    assert response.headers["Content-Type"] == "text/plain"
    head = stage.last.head
    expected = {
        "type": "http",
        "method": "GET",
        "path": "/hello/ann",
        "raw_path": "/hello/ann",
        "query": "x=1&x=2",
        "root_path": "/d/chat",
        "user": None,
    }
    assert {name: head[name] for name in expected} == expected


def test_which_requests_are_the_apps(played: Played, api: Api, subtests: pytest.Subtests) -> None:
    stage = played(hello)
    rows: list[tuple[list[str], str, str, bool]] = [
        (["GET /a/{x}"], "GET", "/a/b", True),
        (["GET /a/{x}"], "GET", "/a/b/c", False),
        (["GET /a/{x}"], "HEAD", "/a/b", True),
        (["GET /a/{x:path}"], "GET", "/a/b/c", True),
        (["GET /a/{x:int}"], "GET", "/a/12", True),
        (["GET /a/{x:int}"], "GET", "/a/x", False),
        (["GET /a/{x:float}"], "GET", "/a/1.5", True),
        (["GET /a/{x:uuid}"], "GET", "/a/6e1bc2a2-94ce-4e4e-9b8c-4a6f4f9d9b1e", True),
        (["GET /a/{x:uuid}"], "GET", "/a/6e1bc2a2", False),
        (["GET /a.b"], "GET", "/axb", False),
        (["GET /a/{x}.json"], "GET", "/a/b.json", True),
        (["ANY /a"], "DELETE", "/a", True),
        (["MOUNT /static"], "GET", "/static/x/y.css", True),
        (["MOUNT /static"], "GET", "/statics", False),
        (["POST /a"], "GET", "/a", True),  # the app answers 405
        (["GET /a/"], "GET", "/a", True),  # the app redirects
        (["GET /threads/{id}"], "GET", "/threads/x", True),
        (["GET /threads/{id}"], "PATCH", "/threads/x", False),
        (["GET /info"], "GET", "/info", True),
        (["GET /ok"], "GET", "/ok", False),
        (["GET /docs"], "GET", "/docs", False),
        (["GET /openapi.json"], "GET", "/openapi.json", False),
        (["GET /a"], "GET", "/a\n", False),
        (["MOUNT "], "GET", "/anything", True),
        (["MOUNT "], "GET", "/threads/x", False),
        (["GET /{path:path}"], "GET", "/anything/else", True),
        (["GET /{path:path}"], "GET", "/assistants/x", False),
    ]
    for number, (routes, method, path, is_apps) in enumerate(rows):
        with subtests.test(routes=routes, method=method, path=path):
            organization_id = api.deployment.organization_id
            deployment = make.deployment(f"app-{number}", organization_id=organization_id)
            serve(deployment, *routes)
            before = len(stage.sides)
            api.client.open(f"/d/{deployment.name}" + path.replace("\n", "%0A"), method=method)
            assert len(stage.sides) - before == is_apps


def test_with_meta_off_the_app_has_these_pages_too(played: Played, anonymous: FlaskClient) -> None:
    stage = played(hello, "GET /ok", "GET /docs", "GET /openapi.json", http={"disable_meta": True})
    for path in ("/ok", "/docs", "/openapi.json"):
        assert anonymous.get(f"/d/chat{path}").data == b"hello"
    assert len(stage.sides) == 3


def test_another_deployment_of_the_name_keeps_its_own(played: Played, neighbour: Api) -> None:
    stage = played(hello, "GET /assistants/{id}")
    assert neighbour.get("/assistants/agent").json["assistant_id"]  # type: ignore[index]
    assert stage.sides == []


def test_keys_and_what_belongs_to_the_connection_stay_here(played: Played, api: Api) -> None:
    stage = played(hello, "GET /hello")
    api.client.set_cookie("a", "1")
    api.get(
        "/hello",
        headers={
            "Authorization": f"Bearer {ADMIN_KEY}",
            "X-Other": "ryd_12345678_secret",
            "X-Plain": "yes",
            "Connection": "x-named, host, keep-alive",
            "X-Named": "1",
            "Keep-Alive": "5",
            "TE": "trailers",
            "Upgrade": "h2c",
            "Proxy-Authorization": "Basic x",
            "X-Forwarded-Prefix": "/evil",
            "X-Runyard-User-Code": "token",
        },
        environ_base={"REMOTE_ADDR": "192.0.2.7"},
    )
    sent = dict(stage.last.head["headers"])
    assert sent.pop("x-request-id")
    sent.pop("user-agent", None)
    assert sent == {
        "host": "localhost",
        "x-plain": "yes",
        "cookie": "a=1",
        "x-forwarded-for": "192.0.2.7",
        "x-forwarded-host": "localhost",
        "x-forwarded-proto": "http",
        "x-forwarded-prefix": "/d/chat",
    }


def test_only_a_proxy_says_for_whom_it_asks(played: Played, api: Api) -> None:
    stage = played(hello, "GET /hello")
    said = {"X-Forwarded-For": "203.0.113.9"}
    api.get("/hello", headers=said, environ_base={"REMOTE_ADDR": "127.0.0.1"})
    assert stage.last.head["client"][0] == "203.0.113.9"
    assert dict(stage.last.head["headers"])["x-forwarded-for"] == "203.0.113.9, 127.0.0.1"
    api.get("/hello", headers=said, environ_base={"REMOTE_ADDR": "192.0.2.7"})
    assert stage.last.head["client"][0] == "192.0.2.7"
    assert dict(stage.last.head["headers"])["x-forwarded-for"] == "192.0.2.7"


def test_the_app_knows_what_is_before_its_paths(app_with: MakeApp, played: Played) -> None:
    stage = played(hello, "GET /hello")
    for changes, url, root_path in (
        ({}, "http://localhost/d/chat/hello", "/d/chat"),
        ({}, "http://localhost/api-host/d/chat/hello", "/api-host/d/chat"),
        ({"app_domain": "apps.localhost"}, "http://chat.apps.localhost/hello", ""),
        ({"dev_deployment": "chat"}, "http://localhost/hello", ""),
    ):
        assert app_with(**changes).test_client().get(url).data == b"hello", url
        assert (url, stage.last.head["path"], stage.last.head["root_path"]) == (url, "/hello", root_path)


def test_at_the_root_the_app_has_what_the_control_plane_does_not_know(
    app_with: MakeApp, played: Played
) -> None:
    stage = played(hello, "GET /v1/models", "GET /v2/deployments", "GET /{path:path}")
    client = app_with(dev_deployment="chat").test_client()
    assert client.get("/v1/models").data == b"hello"
    assert (stage.last.head["path"], stage.last.head["root_path"]) == ("/v1/models", "")
    assert client.get("/v2/deployments").json is not None  # answered by the control plane itself
    assert client.get("/v2/unknown").status_code == 401
    assert client.get("/d/chat/v2/deployments").data == b"hello"


def test_a_body_up_to_the_limit_goes_to_the_app(played: Played, api: Api) -> None:
    def echo(side: Side) -> None:
        side.answer(side.body())

    stage = played(echo, "POST /echo")
    sizes = (0, 10, 65536, 65537, 1_000_000)
    for size in sizes:
        body = bytes(size)
        assert api.client.post("/d/chat/echo", data=body).data == body
    api.client.application.config["MAX_CONTENT_LENGTH"] = 100_000
    refused = api.client.post("/d/chat/echo", data=bytes(100_001))
    assert refused.status_code == 413
    assert refused.json == {"detail": "The request body is larger than 100000 bytes"}
    assert len(stage.sides) == len(sizes)


def test_the_answer_comes_as_the_app_sends_it(played: Played, api: Api) -> None:
    order: list[str] = []

    def steps(side: Side) -> None:
        side.begin(headers=[("content-type", "text/event-stream")])
        for n in range(3):
            order.append(f"sent {n}")
            side.send(BODY, b"%d" % n)
            gevent.sleep(0)
        side.send(END)

    played(steps, "GET /steps")
    response = api.client.get("/d/chat/steps", buffered=False)
    for piece in response.iter_encoded():
        if piece:
            order.append(f"got {piece.decode()}")
    assert [line for line in order if line.startswith("got")] == ["got 0", "got 1", "got 2"]
    assert order.index("got 0") < order.index("sent 2")


def test_a_slow_reader_holds_back_the_app(played: Played, api: Api) -> None:
    def flood(side: Side) -> None:
        side.begin()
        for _ in range(200):
            side.send(BODY, bytes(1000))
        side.send(END)

    stage = played(flood, "GET /flood")
    response = api.client.get("/d/chat/flood", buffered=False)
    pieces = response.iter_encoded()
    next(pieces)
    gevent.sleep(0)
    assert stage.last.most_waiting <= 17
    assert sum(map(len, pieces)) == 200_000
    assert stage.last.most_waiting <= 17


def test_an_answer_without_a_body_has_none(played: Played, api: Api) -> None:
    for status in (204, 304):
        played(
            lambda side, status=status: side.answer(b"", status, [("etag", '"1"'), ("last-modified", "x")]),
            "GET /none",
        )
        response = api.client.get("/d/chat/none")
        assert (response.status_code, response.data) == (status, b"")
        assert (response.headers["ETag"], response.headers["Last-Modified"]) == ('"1"', "x")
        assert "Content-Type" not in response.headers
    stage = played(hello, "GET /none")
    response = api.client.head("/d/chat/none")
    assert (response.status_code, response.data, response.headers["Content-Length"]) == (200, b"", "5")
    assert stage.last.head["method"] == "HEAD"


def test_a_body_that_a_browser_would_take_for_the_next_response_is_dropped(
    played: Played, api: Api, subtests: pytest.Subtests
) -> None:
    for headers in ([], [("content-length", "4")], [("transfer-encoding", "chunked")]):
        for status in (204, 205, 304):
            with subtests.test(headers=headers, status=status):
                played(
                    lambda side, status=status, headers=headers: side.answer(b"HTTP", status, headers),
                    "GET /none",
                )
                response = api.client.get("/d/chat/none", buffered=False)
                assert (response.status_code, list(response.iter_encoded())) == (status, [])
                if status == 205:
                    assert response.headers.getlist("Content-Length") == ["0"]


def test_headers_of_the_connection_are_dropped_and_others_left(played: Played, api: Api) -> None:
    sent = [
        ("Location", "/elsewhere"),
        ("X-Twice", "1"),
        ("X-Twice", "2"),
        ("Connection", "X-Mine, close"),
        ("X-Mine", "1"),
        ("Keep-Alive", "timeout=5"),
        ("Transfer-Encoding", "chunked"),
        ("Content-Length", "99"),
        ("Upgrade", "x"),
        ("Server", "x"),
        ("X-Request-Id", "x"),
    ]
    played(lambda side: side.answer(b"x", 302, sent), "GET /x")
    response = api.client.get("/d/chat/x")
    assert (response.status_code, response.headers["Location"]) == (302, "/elsewhere")
    assert response.headers.getlist("X-Twice") == ["1", "2"]
    for name in ("X-Mine", "Keep-Alive", "Transfer-Encoding", "Content-Length", "Upgrade", "Server"):
        assert name not in response.headers
    assert response.headers["x-request-id"] != "x"


def test_a_cookie_stays_with_its_deployment(played: Played, api: Api, subtests: pytest.Subtests) -> None:
    rows: list[Any] = [
        ("a=1; Path=/; HttpOnly", "a=1; HttpOnly; Path=/d/chat"),
        ("a=1", "a=1; Path=/d/chat"),
        ("a=1; Path=/admin", "a=1; Path=/d/chat/admin"),
        ("a=1; path=/d/chat/x; Secure", "a=1; Secure; Path=/d/chat/x"),
        ("a=1; path=/d/chatter", "a=1; Path=/d/chat/d/chatter"),
        (f"a=1; Path=/{1100 * 'a'}", "a=1; Path=/d/chat"),
        (f"a=1; Path=/d/chat/{1100 * 'a'}", "a=1; Path=/d/chat"),
        ("a=1; Domain=localhost", "a=1; Domain=localhost; Path=/d/chat"),
        ("a=1; Domain=.example.com", None),
        ("a=1; Domain=localhost; domain=example.com", None),
    ]
    for cookie, expected in rows:
        with subtests.test(cookie=cookie, expected=expected):
            played(lambda side, cookie=cookie: side.answer(b"", headers=[("set-cookie", cookie)]), "GET /x")
            found = api.client.get("/d/chat/x").headers.getlist("Set-Cookie")
            assert found == ([] if expected is None else [expected])


def test_headers_that_bind_a_whole_origin_are_left_at_an_address_of_the_apps_own_alone(
    app_with: MakeApp, played: Played
) -> None:
    origins = ("Clear-Site-Data", "Service-Worker-Allowed", "Set-Login", "Accept-CH", "Use-As-Dictionary")
    proxies = ("X-Accel-Redirect", "X-Sendfile")  # dropped everywhere, because proxies obey them
    sent = [
        ("Set-Cookie", "a=1; Path=/"),
        *((name, "x") for name in ("X-Accel-Buffering", *origins, *proxies)),
    ]
    played(lambda side: side.answer(b"", headers=sent), "GET /x")
    client = app_with(app_domain="apps.localhost").test_client()
    own, shared = (client.get(url).headers for url in (OWN, SHARED))
    assert [name for name, _ in sent if name in own] == ["Set-Cookie", "X-Accel-Buffering", *origins]
    assert [name for name, _ in sent if name in shared] == ["Set-Cookie", "X-Accel-Buffering"]
    assert own["Set-Cookie"] == "a=1; Path=/"
    assert "Content-Security-Policy" not in own
    assert shared["Content-Security-Policy"].startswith("sandbox ")


def test_a_page_of_ours_runs_nothing_that_the_app_answers(
    app_with: MakeApp, played: Played, subtests: pytest.Subtests
) -> None:
    rows: list[Any] = [
        (SHARED, "same-origin", "script", 403),
        (SHARED, "same-origin", "worker", 403),
        (SHARED, "same-origin", "style", 403),
        (SHARED, "same-origin", "document", 200),
        (SHARED, "same-origin", "empty", 200),
        (SHARED, "cross-site", "script", 200),  # from a page in the sandbox
        (SHARED, "none", "document", 200),
        (OWN, "same-origin", "script", 200),
    ]
    for url, site, destination, status in rows:
        with subtests.test(url=url, site=site, destination=destination, status=status):
            stage = played(hello, "GET /x")
            client = app_with(app_domain="apps.localhost").test_client()
            fetch = {"Sec-Fetch-Site": site, "Sec-Fetch-Dest": destination}
            assert client.get(url, headers=fetch).status_code == status
            assert len(stage.sides) == (status == 200)


def test_no_app_has_a_service_worker_at_the_console_s_address(app_with: MakeApp, played: Played) -> None:
    played(hello, "GET /x")
    worker = {"Service-Worker": "script", "Sec-Fetch-Site": "same-origin", "Sec-Fetch-Dest": "serviceworker"}
    for changes, url, status in (
        ({}, SHARED, 403),
        ({"dev_deployment": "chat"}, "http://localhost/x", 403),
        ({"app_domain": "apps.localhost"}, OWN, 200),
    ):
        response = app_with(**changes).test_client().get(url, headers=worker)
        assert (url, response.status_code) == (url, status)


def test_an_answer_with_an_impossible_head_is_none(
    played: Played, api: Api, subtests: pytest.Subtests
) -> None:
    rows: list[tuple[int, list[tuple[str, str]]]] = [
        (200, [("x", "a\r\nSet-Cookie: b=1")]),
        (200, [("x\r\ny", "a")]),
        (200, [("x y", "a")]),
        (200, [("", "a")]),
        (200, [("x", "\u0100")]),
        (200, [("content-length", "-1")]),
        (200, [("content-length", "1")] * 2),
        (101, []),
        (600, []),
    ]
    for status, headers in rows:
        with subtests.test(status=status, headers=headers):
            played(lambda side, status=status, headers=headers: side.answer(b"x", status, headers), "GET /x")
            response = api.client.get("/d/chat/x")
            assert (response.status_code, response.json) == (502, {"detail": waiting.NO_ANSWER})


def test_a_body_of_another_length_than_said_is_cut_off(played: Played, api: Api) -> None:
    for length in ("4", "6"):
        played(
            lambda side, length=length: side.answer(b"hello", headers=[("content-length", length)]), "GET /x"
        )
        with pytest.raises(ConnectionResetError):
            api.client.get("/d/chat/x", buffered=True)


def test_an_app_that_raises_is_a_500_or_breaks_off_the_answer_it_has_begun(played: Played, api: Api) -> None:
    def fails(side: Side) -> None:
        raise ValueError("secret")

    def fails_later(side: Side) -> None:
        side.begin()
        side.send(BODY, b"one")
        fails(side)

    played(fails, "GET /x")
    response = api.client.get("/d/chat/x")
    assert (response.status_code, response.json) == (500, {"detail": "Internal Server Error"})
    played(fails_later, "GET /x")
    with pytest.raises(ConnectionResetError):
        api.client.get("/d/chat/x", buffered=True)


def test_without_a_host_it_is_unavailable(played: Played, api: Api) -> None:
    stage = played(hello, "GET /x")
    stage.is_away = True
    response = api.client.get("/d/chat/x")
    assert response.status_code == 503
    assert response.headers["Retry-After"]


def test_an_app_that_says_nothing_is_given_up(
    played: Played, api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("web.deployment_api.user_app.proxy.ANSWER_SECONDS", 0.05)
    seen: list[bytes] = []

    def silent(side: Side) -> None:
        side.body()
        seen.append(side.receive()[0])

    played(silent, "GET /x")
    assert api.client.get("/d/chat/x").status_code == 504
    assert seen == [CLOSE]


def test_each_address_has_its_streams(played: Played, api: Api) -> None:
    def forever(side: Side) -> None:
        side.begin()
        side.receive()
        side.receive()

    api.set(streams_per_key=2)
    limits.start(api.client.application)
    played(forever, "GET /x")
    anonymous = api.client.application.test_client()

    def ask(address: str) -> Any:
        return anonymous.get("/d/chat/x", buffered=False, environ_base={"REMOTE_ADDR": address})

    opened = [ask("192.0.2.1"), ask("192.0.2.1")]
    assert [response.status_code for response in opened] == [200, 200]
    refused = ask("192.0.2.1")
    assert (refused.status_code, refused.json) == (
        429,
        {"detail": "This caller has 2 open streams, the maximum: close one first"},
    )
    opened.append(ask("192.0.2.2"))
    assert opened[-1].status_code == 200
    opened.pop(0).close()
    again = ask("192.0.2.1")
    assert again.status_code == 200
    for response in [*opened, again]:
        response.close()


def test_own_code_means_its_own_deployment_whatever_else_has_the_name(
    played: Played, api: Api, neighbour: Api, own_key: None
) -> None:
    """Otherwise one project's authorization would name the caller, and another organization's app would trust it."""
    guarded: dict[str, Any] = {
        "auth": {"parameters": ["headers"], "handlers": user_code.EVERYTHING},
        "http": {"enable_custom_route_auth": True},
    }
    stage = played(hello, "GET /a", "GET /older", **guarded)
    serve(neighbour.deployment, "GET /a", "GET /younger", **guarded)
    forget_deployments()
    ann = user_code.user("ann")
    token = {loopback.HEADER: loopback.make(neighbour.deployment.id, ann)}
    client = api.client.application.test_client()
    tenant = {"X-Tenant-Id": str(api.deployment.organization_id)}
    assert client.get("/d/chat/older", headers=token).status_code == 404
    assert client.get("/d/chat/older", headers={**token, **tenant}).status_code == 404
    assert stage.sides == []
    assert client.get("/d/chat/younger", headers={**token, **tenant}).data == b"hello"
    assert stage.last.head["user"] == ann
    assert client.get("/d/chat/a", headers={loopback.HEADER: "no token"}).status_code == 401
