"""Outgoing calls: refused addresses in every notation, and limits of the response."""

from __future__ import annotations

import ipaddress
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest
from flask import Flask, Response, redirect, request

from shared.errors import AddressRefused, OutsideFailed
from shared.infra import egress
from shared.setting_values import BadSetting
from tests.support.outside import certified, serving

LOOPBACK = ("127.0.0.0/8", "::1")


@pytest.fixture(autouse=True)
def strict() -> Iterator[None]:
    egress.configure()
    yield
    egress.configure()


@pytest.mark.parametrize(
    "address",
    """
    127.0.0.1 127.255.255.254 0.0.0.0 10.0.0.1 100.64.0.1 169.254.169.254 172.16.0.1 172.31.255.255
    192.0.0.192 192.168.1.1 198.18.0.1 203.0.113.9 224.0.0.1 239.255.255.250 240.0.0.1 255.255.255.255
    100.100.100.200 168.63.129.16
    :: ::1 ::127.0.0.1 ::ffff:127.0.0.1 ::ffff:10.0.0.1 ::ffff:0:10.0.0.1 64:ff9b::a00:1 64:ff9b:1::1
    2002:7f00:1:: 2002:a9fe:a9fe:: 2001::1 2001:db8::1 fc00::1 fd00:ec2::254 fe80::1 fec0::1 ff02::1 100::1
    """.split(),
)
def test_what_is_not_public_is_refused(address: str) -> None:
    assert egress.is_refused(ipaddress.ip_address(address))
    host = f"[{address}]" if ":" in address else address
    with pytest.raises(AddressRefused):
        egress.check_url(f"https://{host}/token")
    with pytest.raises(AddressRefused):
        egress.request("GET", f"https://{host}/token")


@pytest.mark.parametrize(
    "address",
    "8.8.8.8 1.1.1.1 172.32.0.1 2606:4700::1111 ::ffff:8.8.8.8 64:ff9b::808:808 2002:808:808::".split(),
)
def test_what_is_public_is_not(address: str) -> None:
    assert not egress.is_refused(ipaddress.ip_address(address))


@pytest.mark.parametrize(
    "host",
    """
    2130706433 0x7f000001 0x7f.0.0.1 017700000001 0177.0.0.1 127.1 127.0.1 0 0x0 127.0.0.1. 2852039166
    localhost LOCALHOST localhost. api.localhost 127.0.0.1.. １２７.0.0.1 ⑫7.0.0.1
    """.split(),
)
def test_loopback_in_disguise_is_refused(host: str) -> None:
    with pytest.raises(AddressRefused):
        egress.check_url(f"https://{host}/")
    with pytest.raises(AddressRefused):
        egress.request("GET", f"https://{host}/")


@pytest.mark.parametrize(
    "url",
    [
        "",
        "string",
        "https://",
        "https:///path",
        "http://example.com/",
        "ftp://example.com/",
        "file:///etc/passwd",
        "javascript:alert(1)",
        "gopher://example.com/",
        "//example.com/",
        "https://user:pass@example.com/",
        "https://example.com@127.0.0.1/",
        "https://example.com/#fragment",
        "https://example.com:22/",
        "https://example.com:1023/",
        "https://example.com:0/",
        "https://example.com:99999/",
        "https://example.com\\@127.0.0.1/",
        "https://exa mple.com/",
        "https://example.com/\r\nHost: x",
        "https://" + "a" * 3000,
        "https://[::1/",
        "https://./",
    ],
)
def test_a_url_that_may_not_be_called_is_refused(url: str) -> None:
    with pytest.raises(AddressRefused):
        egress.check_url(url)


@pytest.mark.parametrize(
    "url",
    [
        "https://example.com/token?a=b",
        "https://example.com:8443/",
        "https://xn--bcher-kva.example/",
        "https://bücher.example/",
    ],
)
def test_a_public_url_is_not(url: str) -> None:
    egress.check_url(url)


def test_a_browser_may_go_to_any_host_by_https() -> None:
    egress.check_browser_url("https://10.0.0.1/authorize")
    for url in ("javascript:alert(1)", "http://example.com/", "data:text/html,x"):
        with pytest.raises(AddressRefused):
            egress.check_browser_url(url)


@pytest.mark.parametrize("allowed", ["10.0.0.0/8", "10.0.0.1", "git.corp", "GIT.corp."])
def test_an_operator_allows_networks_addresses_and_hosts(
    allowed: str, resolver: Callable[..., list[str]]
) -> None:
    resolver("10.0.0.1")
    with pytest.raises(AddressRefused):
        egress.check_host("git.corp", 443)
    egress.configure([allowed])
    assert egress.check_host("git.corp", 443) == ["10.0.0.1"]


@pytest.mark.parametrize("allowed", ["10.0.0.0/33", "a/b", "ü"])
def test_what_cannot_be_allowed_is_refused_by_name(allowed: str) -> None:
    with pytest.raises(BadSetting, match="RUNYARD_ALLOWED_ADDRESSES"):
        egress.configure([allowed])


def test_one_bad_address_among_good_ones_is_enough(resolver: Callable[..., list[str]]) -> None:
    resolver("8.8.8.8", "127.0.0.1")
    with pytest.raises(AddressRefused):
        egress.check_host("both.example", 443)

    asked = resolver("8.8.8.8", then="127.0.0.1")
    with pytest.raises(OutsideFailed):
        egress.request("GET", "https://rebind.example/", timeout_seconds=0.05)
    assert asked == ["rebind.example"]


@pytest.fixture
def resolver(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[str]]:
    """Return a function that fakes name resolution and returns the list of looked-up names.

    Names resolve to `addresses`, or from the second lookup on to `then` if it is set.
    """

    def answer(*addresses: str, then: str | None = None) -> list[str]:
        asked: list[str] = []

        def getaddrinfo(host: str, port: int, *args: Any, **more: Any) -> list[Any]:
            if egress.literal_address(host):
                return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (host, port))]
            asked.append(host)
            found = (then,) if then and len(asked) > 1 else addresses
            return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port)) for address in found]

        monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
        return asked

    return answer


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    """A server with correct and faulty responses. Yields its base URL."""
    app = Flask("outside")
    held = threading.Event()

    @app.post("/echo")
    def echo() -> dict[str, Any]:
        return {
            "host": request.host,
            "body": request.get_data(as_text=True),
            "agent": request.user_agent.string,
        }

    @app.get("/moved")
    def moved() -> Any:
        return redirect("http://169.254.169.254/latest/meta-data")

    @app.get("/huge")
    def huge() -> Response:
        return Response(b"x" * 65536 for _ in range(64))

    @app.get("/drip")
    def drip() -> Response:
        def body() -> Iterator[bytes]:
            while not held.wait(0.02):
                yield b" "

        return Response(body())

    @app.get("/late")
    def late() -> str:
        held.wait(20)
        return "late"

    with serving(app) as port:
        yield f"http://127.0.0.1:{port}"
        held.set()


@pytest.fixture
def allowed(server: str) -> str:
    egress.configure(LOOPBACK, allow_http=True)
    return server


def test_a_call_carries_its_body_and_the_hosts_name_and_follows_no_redirect(allowed: str) -> None:
    answer = egress.request("POST", f"{allowed}/echo?x=1", body="a=b")
    assert answer.status == 200
    assert answer.json() == {"host": allowed.removeprefix("http://"), "body": "a=b", "agent": "runyard"}

    answer = egress.request("GET", f"{allowed}/moved")
    assert (answer.status, answer.is_success) == (302, False)


@pytest.mark.parametrize(
    ("path", "what"),
    [
        ("/huge", "more than 1048576 bytes"),
        ("/drip", "did not answer within"),
        ("/late", "did not answer within"),
    ],
)
def test_an_answer_is_bounded_in_size_and_time(allowed: str, path: str, what: str) -> None:
    with pytest.raises(OutsideFailed, match=what):
        egress.request("GET", f"{allowed}{path}", timeout_seconds=0.3 if "within" in what else 10)


def resets(connection: socket.socket) -> None:
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


def speaks_another_protocol(connection: socket.socket) -> None:
    connection.sendall(b"220 smtp ready\r\n")


def has_headers_without_end(connection: socket.socket) -> None:
    connection.sendall(b"HTTP/1.1 200 OK\r\n")
    with suppress(OSError):  # until the client gives up
        while True:
            connection.sendall(b"X-More: " + b"y" * 8000 + b"\r\n")


@pytest.mark.parametrize("behave", [resets, speaks_another_protocol, has_headers_without_end])
def test_a_server_that_does_not_speak_http_is_reported(behave: Callable[[socket.socket], None]) -> None:
    egress.configure(LOOPBACK, allow_http=True)
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def answer() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.recv(100)
                behave(connection)

        thread = threading.Thread(target=answer)
        thread.start()
        with pytest.raises(OutsideFailed, match="did not answer with HTTP"):
            egress.request("GET", f"http://127.0.0.1:{listener.getsockname()[1]}/")
        thread.join()


def test_a_server_that_is_down_and_a_resolver_that_hangs_are_reported(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    egress.configure(LOOPBACK, allow_http=True)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]

    with pytest.raises(OutsideFailed, match="cannot be reached"):
        egress.request("GET", f"http://127.0.0.1:{port}/")

    held = threading.Event()
    monkeypatch.setattr(socket, "getaddrinfo", lambda *a, **k: held.wait(20) and [])
    with pytest.raises(OutsideFailed, match="did not answer within"):
        egress.request("GET", "https://slow.example/", timeout_seconds=0.05)
    held.set()


def test_tls_is_checked_against_the_name(allowed: str, tmp_path: Any) -> None:
    """A certificate from an unknown authority is refused, even at an allowed address."""
    with (
        serving(Flask("tls"), ssl=certified(tmp_path)[1]) as port,
        pytest.raises(OutsideFailed, match="cannot be reached"),
    ):
        egress.request("GET", f"https://localhost:{port}/")


def test_tls_speaks_to_the_name_at_the_checked_address(
    allowed: str, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    authority, pair = certified(tmp_path, name="tokens.example")
    monkeypatch.setenv("SSL_CERT_FILE", authority)
    egress._tls.cache_clear()
    lookup = socket.getaddrinfo
    monkeypatch.setattr(socket, "getaddrinfo", lambda host, *a, **k: lookup("127.0.0.1", *a, **k))
    app = Flask("tls")
    app.add_url_rule("/", view_func=lambda: request.host)
    try:
        with serving(app, ssl=pair) as port:
            answer = egress.request("GET", f"https://tokens.example:{port}/")
            assert answer.body.decode() == f"tokens.example:{port}"
            with pytest.raises(OutsideFailed):
                egress.request("GET", f"https://others.example:{port}/")
    finally:
        egress._tls.cache_clear()
