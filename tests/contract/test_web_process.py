"""The web process as the Procfile starts it: gunicorn with the service's configuration, over real sockets.

Its limits are low: connections, the time for a request's head, and bodies. Bodies are cut off, arrive slowly, are too large
or come twice. Tests check what is stored and what the sender reads.
"""

from __future__ import annotations

import http.client as http_client
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any
from uuid import UUID

import httpx
import psutil
import psycopg
import pytest

from tests.contract.conftest import ControlPlane
from tests.contract.test_uploads import stored
from tests.support.waiting import wait_until
from tests.support.web_process import KEY, ROOT, started

# Runs before any other fixture, because the process waits for the tables of its release.
pytestmark = pytest.mark.usefixtures("_engines")

LARGEST = 3_000_000
CONNECTIONS = 7


@pytest.fixture(scope="module")
def served(database: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Any, str]]:
    """The process with tight limits, and its URL. Only one test calls from its proxy address."""
    bounds = {
        "RUNYARD_MAX_ARCHIVE_BYTES": str(LARGEST),
        "RUNYARD_BODY_SECONDS": "1.0",
        "RUNYARD_CONNECTIONS_PER_ADDRESS": str(CONNECTIONS),
        "RUNYARD_PROXY_ADDRESSES": "127.0.0.9",
        "RUNYARD_MAX_STREAMS": "-990",  # ten connections in total
    }
    with started(database, tmp_path_factory.mktemp("data"), **bounds) as running:
        yield running


@pytest.fixture
def base(served: tuple[Any, str]) -> str:
    return served[1]


@pytest.fixture
def raw(base: str) -> Iterator[socket.socket]:
    """Raw connection to the server."""
    host, port = base.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port))) as connection:
        yield connection


@pytest.fixture
def http(base: str) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=base, headers={"x-api-key": KEY}) as client:
        yield client


def test_it_reaches_the_database_keeps_a_connection_and_does_not_name_its_server(http: httpx.Client) -> None:
    for _ in range(3):
        response = http.get("/ok?check_db=1")
        assert (response.status_code, response.json()) == (200, {"ok": True, "services": {}})
        assert response.headers["connection"] == "keep-alive"
        assert "server" not in response.headers


def test_it_bounds_the_request_line_and_headers(http: httpx.Client) -> None:
    assert http.get("/ok?" + "x" * 5000).status_code in (400, 414)
    assert http.get("/ok", headers={"x-long": "x" * 9000}).status_code in (400, 431)


@pytest.mark.parametrize(
    "path", ["/static/..%2f..%2fapp.py", "/d/chat/threads%2f..", "/static/%2e%2e/app.py"]
)
def test_an_escaped_path_cannot_be_climbed_out_of(raw: socket.socket, path: str) -> None:
    raw.sendall(f"GET {path} HTTP/1.1\r\nHost: x\r\nX-Api-Key: {KEY}\r\n\r\n".encode())
    assert raw.makefile("rb").readline().split()[1] == b"404"


def test_a_header_does_not_make_an_address_another(http: httpx.Client) -> None:
    for name in ("SCRIPT_NAME", "Script-Name", "PATH_INFO"):
        response = http.get("/d/nobody/v2/me", headers={name: "/d/nobody"})
        assert (name, response.status_code) == (name, 404)


def test_a_slow_client_holds_up_nobody_else(raw: socket.socket, http: httpx.Client) -> None:
    raw.sendall(b"POST /d/chat/threads HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{")
    assert http.get("/ok").status_code == 200


WAITING = "SELECT pid FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query ~ 'deployment'"


def test_a_statement_that_waits_holds_up_nobody_else(database: str, http: httpx.Client) -> None:
    def is_overtaken() -> bool:
        reading = threading.Thread(target=lambda: http.get("/v2/deployments", timeout=60))
        reading.start()
        with psycopg.connect(database, autocommit=True) as looking:
            wait_until(lambda: looking.execute(WAITING).fetchone(), what="a statement to wait")
            assert http.get("/ok", timeout=60).status_code == 200
            still_waits = looking.execute(WAITING).fetchone() is not None
        reading.join()
        return still_waits

    with psycopg.connect(database) as locking:
        locking.execute("LOCK TABLE deployment IN ACCESS EXCLUSIVE MODE")
        wait_until(is_overtaken, 60, what="an answer while a statement waits for its lock")


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (b"GET /ok\r\n\r\n", 400),
        (b"GET /ok HTTP/1.1\r\nHost: x\r\nno colon\r\n\r\n", 400),
        (b"GET /" + b"x" * 5000 + b" HTTP/1.1\r\n\r\n", 414),
        (b"GET /ok HTTP/1.1\r\nHost: x\r\nExpect: tea\r\n\r\n", 417),
        (b"GET /ok HTTP/1.1\r\nX-Long: " + b"x" * 9000 + b"\r\n\r\n", 431),
        (b"POST /ok HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: odd\r\n\r\n", 501),
    ],
)
def test_what_the_server_itself_refuses_is_answered_as_all_else(
    raw: socket.socket, sent: bytes, status: int
) -> None:
    raw.sendall(sent)
    answer = http_client.HTTPResponse(raw)
    answer.begin()
    assert answer.status == status
    assert answer.getheader("Content-Type") == "application/json"
    assert answer.getheader("Server") is None
    told = json.loads(answer.read())
    assert told["detail"]
    assert str(UUID(told["request_id"])) == answer.getheader("x-request-id")


@pytest.mark.parametrize("key", [KEY, "none"])
def test_a_malformed_chunk_is_the_callers_fault(raw: socket.socket, key: str) -> None:
    head = f"POST /v2/deployments HTTP/1.1\r\nHost: x\r\nX-Api-Key: {key}\r\n"
    raw.sendall(f"{head}Transfer-Encoding: chunked\r\n\r\nzz\r\nx\r\n0\r\n\r\n".encode())
    assert raw.makefile("rb").readline().split()[1] == (b"400" if key == KEY else b"401")


@pytest.mark.parametrize(("key", "length", "status"), [(KEY, 99_999_999_999, 413), ("none", 15, 401)])
def test_a_refusal_does_not_wait_for_the_body(raw: socket.socket, key: str, length: int, status: int) -> None:
    raw.settimeout(20)  # shorter than the time limit for a body
    head = f"POST /v2/deployments HTTP/1.1\r\nHost: x\r\nX-Api-Key: {key}\r\nContent-Length: {length}\r\n\r\n"
    raw.sendall(head.encode())
    assert int(raw.makefile("rb").readline().split()[1]) == status


def test_another_process_of_the_user_cannot_look_into_it(served: tuple[Any, str]) -> None:
    [worker] = psutil.Process(served[0].pid).children()
    # the kernel assigns /proc files of a protected process to root
    assert Path(f"/proc/{worker.pid}/environ").stat().st_uid == 0


@pytest.mark.parametrize("start", ["import web.wsgi", "from workers import app; app.prepare()"])
def test_it_does_not_start_without_a_key_for_secrets(start: str) -> None:
    environment = {
        "PATH": os.environ["PATH"],
        "DATABASE_URL": "postgresql:///none",
        "REDIS_URL": "redis://none",
    }
    ended = subprocess.run(
        [sys.executable, "-c", start], cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    assert ended.returncode == 1
    assert "RUNYARD_ENCRYPTION_KEYS" in ended.stderr


# Bodies and connections


@pytest.fixture
def url(base: str, control: ControlPlane) -> str:
    """Upload URL for an archive."""
    given: Any = control.post(f"/v2/deployments/{control.create()['id']}/upload-url").json
    return given["upload_url"].replace("http://localhost", base)


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


def test_a_body_that_drips_is_given_up(base: str, url: str) -> None:
    other = f"{base}/v2/deployments"  # a request other than an upload
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


def test_a_client_whose_archive_is_refused_reads_why(base: str, url: str) -> None:
    too_large = f'{{"detail":"The request body is larger than {LARGEST} bytes"}}'
    assert put(url, LARGEST + 2_000_000) == (413, too_large)
    status, told = put(f"{base}/v2/uploads/guessed", LARGEST)
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
def address(base: str) -> tuple[str, int]:
    host, port = base.removeprefix("http://").split(":")
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
        for _ in range(CONNECTIONS):
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


def test_an_idle_connection_does_not_hold_up_its_end(served: tuple[Any, str]) -> None:
    """The last test of the process."""
    process, base = served
    with httpx.Client(base_url=base) as client:
        assert client.get("/ok").status_code == 200
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=15) == 0, "shorter than the graceful time-out"
