"""Limits of a web process over real sockets: its connections, the time for a request's head, and bodies.

Bodies are cut off, arrive slowly, are too large or come twice. Tests check what is stored and what the sender reads.
"""

from __future__ import annotations

import socket
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

import httpx
import pytest

from tests.contract.conftest import ControlPlane
from tests.contract.test_uploads import stored
from tests.support.waiting import wait_until
from tests.support.web_process import KEY, started

# Runs before any other fixture, because the process waits for the tables of its release.
pytestmark = pytest.mark.usefixtures("_engines")

LARGEST = 3_000_000
BODY_SECONDS = 1.0


@pytest.fixture(scope="module")
def served(database: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """URL of a web process with tight limits. No test calls from its proxy address."""
    bounds = {
        "RUNYARD_MAX_ARCHIVE_BYTES": str(LARGEST),
        "RUNYARD_BODY_SECONDS": str(BODY_SECONDS),
        "RUNYARD_CONNECTIONS_PER_ADDRESS": "5",
        "RUNYARD_PROXY_ADDRESSES": "127.0.0.9",
        "RUNYARD_MAX_STREAMS": "-990",  # ten connections in total
    }
    with started(database, tmp_path_factory.mktemp("data"), **bounds) as (_, base):
        yield base


@pytest.fixture
def url(served: str, control: ControlPlane) -> str:
    """Upload URL for an archive."""
    given: Any = control.post(f"/v2/deployments/{control.create()['id']}/upload-url").json
    return given["upload_url"].replace("http://localhost", served)


@contextmanager
def connected(url: str, *headers: str, method: str = "PUT") -> Iterator[socket.socket]:
    """Open a connection and send the head of a request without its body."""
    base, _, path = url.removeprefix("http://").partition("/")
    host, port = base.split(":")
    with socket.create_connection((host, int(port)), timeout=30) as connection:
        head = [f"{method} /{path} HTTP/1.1", f"Host: {base}", *headers]
        connection.sendall("\r\n".join([*head, "", ""]).encode())
        yield connection


def answer(connection: socket.socket) -> int:
    """Return the status of the response."""
    return int(connection.makefile("rb").readline().split()[1])


def everything(connection: socket.socket) -> bytes:
    """Read until the connection ends or is reset."""
    received = b""
    with suppress(ConnectionResetError):
        while some := connection.recv(4096):
            received += some
    return received


def is_usable(url: str) -> bool:
    """Return whether the upload URL still accepts an archive, and the service stores it."""
    answered = httpx.put(url, content=b"whole").status_code == 200
    return answered and list(stored().values()) == [b"whole"]


def test_a_body_that_breaks_off_is_not_taken_for_a_whole(url: str) -> None:
    for header, half in (
        ("Content-Length: 10", b"half "),
        ("Transfer-Encoding: chunked", b"5\r\nhalf \r\n"),
        ("Transfer-Encoding: chunked", b"a\r\nhalf "),
    ):
        with connected(url, header) as connection:
            connection.sendall(half)
            connection.shutdown(socket.SHUT_WR)
            assert (half, answer(connection)) == (half, 400)
        assert stored() == {}, half
    with connected(url, "Transfer-Encoding: chunked") as connection:
        connection.sendall(b"zz\r\n")
        assert b"\r\nConnection: close\r\n" in everything(connection)
    assert is_usable(url)


def test_a_body_that_drips_is_given_up(served: str, url: str) -> None:
    other = f"{served}/v2/deployments"  # a request other than an upload
    for path, method, headers in (
        (url, "PUT", ("Content-Length: 10",)),
        (url, "PUT", ("Transfer-Encoding: chunked",)),
        (other, "POST", (f"X-Api-Key: {KEY}", "Content-Length: 10")),
    ):
        with connected(path, *headers, method=method) as connection:
            connection.sendall(b"1")
            answered = connection.makefile("rb").read()  # until the server closes the connection
            assert (headers, answered.split()[1]) == (headers, b"408")
    assert stored() == {}
    assert is_usable(url)


def put(url: str, size: int) -> tuple[int, str]:
    """Upload zeros as the deploy command does. Returns status and body."""
    request = urllib.request.Request(url, data=b"0" * size, method="PUT")
    request.add_header("Content-Type", "application/gzip")
    try:
        with urllib.request.urlopen(request, timeout=30) as response:
            return response.status, response.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def test_a_client_whose_archive_is_refused_reads_why(served: str, url: str) -> None:
    too_large = f'{{"detail":"The request body is larger than {LARGEST} bytes"}}'
    assert put(url, LARGEST + 2_000_000) == (413, too_large)
    status, told = put(f"{served}/v2/uploads/guessed", LARGEST)
    assert (status, told) == (
        404,
        '{"detail":"This upload URL is not valid, or has expired. Create a new one."}',
    )
    assert put(url, LARGEST)[0] == 200
    assert put(url, LARGEST)[0] == 409


def test_what_follows_a_refused_archive_becomes_no_request(url: str) -> None:
    for size in (LARGEST + 1, 3 * LARGEST):
        with connected(url, f"Content-Length: {size}") as connection:
            connection.sendall(b"0" * size + b"GET /ok HTTP/1.1\r\nHost: x\r\n\r\n")
            answers = everything(connection)
        assert answers.startswith(b"HTTP/1.1 413"), size
        assert b"\r\nConnection: close\r\n" in answers, size
        assert answers.count(b"HTTP/1.1") == 1, size


def test_of_two_uploads_to_one_address_one_is_kept(url: str) -> None:
    with connected(url, "Content-Length: 5") as one, connected(url, "Content-Length: 5") as two:
        one.sendall(b"on")
        two.sendall(b"tw")
        one.sendall(b"one")
        two.sendall(b"two")
        answers = {b"onone": answer(one), b"twtwo": answer(two)}
    assert sorted(answers.values()) == [200, 409]
    [kept] = [content for content, status in answers.items() if status == 200]
    assert list(stored().values()) == [kept]


@pytest.fixture
def address(served: str) -> tuple[str, int]:
    host, port = served.removeprefix("http://").split(":")
    return host, int(port)


def attached(address: tuple[str, int], source: str, sends: bytes = b"GET /ok HT") -> socket.socket:
    connection = socket.create_connection(address, timeout=30, source_address=(source, 0))
    connection.sendall(sends)
    return connection


def status_for(address: tuple[str, int], source: str) -> int:
    """Return the status of a request from this address, or 0 without an answer."""
    with attached(address, source, b"GET /ok HTTP/1.1\r\nHost: x\r\n\r\n") as connection:
        try:
            line = connection.makefile("rb").readline()
        except ConnectionResetError:
            return 0
    return int(line.split()[1]) if line else 0


def test_one_address_has_so_many_connections_and_no_more(address: tuple[str, int]) -> None:
    with ExitStack() as held:
        for _ in range(5):
            held.enter_context(attached(address, "127.0.0.2"))
        assert status_for(address, "127.0.0.2") in (429, 0)
        assert status_for(address, "127.0.0.3") == 200
    wait_until(lambda: status_for(address, "127.0.0.2") == 200)


def test_idle_connections_are_closed_for_new_ones(address: tuple[str, int]) -> None:
    with ExitStack() as held:
        for _ in range(300):
            held.enter_context(attached(address, "127.0.0.9"))
        assert status_for(address, "127.0.0.3") == 200


def test_a_request_s_head_has_a_deadline_that_drops_do_not_move(address: tuple[str, int]) -> None:
    with attached(address, "127.0.0.4", b"GET /ok HTTP/1.1\r\nHost: x\r\n\r\nGET /") as connection:
        connection.settimeout(0.5)
        received = b""
        for _ in range(60):
            try:
                if not (some := connection.recv(4096)):
                    break
                received += some
            except TimeoutError:
                with suppress(BrokenPipeError):
                    connection.sendall(b"x")
            except ConnectionResetError:
                break
        else:
            pytest.fail("it is still open")
        assert received.startswith(b"HTTP/1.1 200")
