"""The web process as the Procfile starts it: gunicorn with the service's configuration, over a real socket."""

from __future__ import annotations

import http.client as http_client
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import UUID

import httpx
import psutil
import psycopg
import pytest

from tests.support.waiting import wait_until
from tests.support.web_process import KEY, ROOT, started

# Runs before any other fixture, because the process waits for the tables of its release.
pytestmark = pytest.mark.usefixtures("_engines")


@pytest.fixture(scope="module")
def served(database: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Any, str]]:
    with started(database, tmp_path_factory.mktemp("data")) as running:
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


def test_an_idle_connection_does_not_hold_up_its_end(database: str, tmp_path: Path) -> None:
    with started(database, tmp_path) as (process, base), httpx.Client(base_url=base) as client:
        assert client.get("/ok").status_code == 200
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=15) == 0, "shorter than the graceful time-out"


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
