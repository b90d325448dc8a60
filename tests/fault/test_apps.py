"""A project's own app whose host is killed, or whose client goes away, in the middle of a request."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect

from tests.support.stack import Stack
from tests.support.waiting import wait_until

GUARDED = Path(__file__).parent.parent / "projects" / "guarded"


@pytest.fixture(scope="module")
def stack() -> Iterator[Stack]:
    with Stack() as running:
        yield running


@pytest.fixture(scope="module")
def url(stack: Stack, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The address of a deployment whose app needs no user."""
    folder = tmp_path_factory.mktemp("open")
    shutil.copytree(GUARDED, folder, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__"))
    config = json.loads((GUARDED / "open.json").read_text())
    (folder / "langgraph.json").write_text(json.dumps({**config, "http": {"app": "./front.py:app"}}))
    return f"{stack.url}/d/{stack.deploy(folder, name='open')}"


@pytest.fixture
def http(url: str) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=f"{url}/", timeout=60) as client:
        yield client


def is_served(http: httpx.Client) -> bool:
    return http.get("hello").status_code == 200


def test_a_killed_host_breaks_off_what_it_answered_and_the_next_request_is_served(
    stack: Stack, http: httpx.Client
) -> None:
    with http.stream("GET", "steps?count=1000") as answer:
        lines = answer.iter_lines()
        assert next(lines) == "0"
        stack.kill("host")
        with pytest.raises(httpx.RemoteProtocolError):
            list(lines)
    assert is_served(http)


def test_a_request_that_was_not_answered_is_said_to_be_lost(stack: Stack, http: httpx.Client) -> None:
    assert is_served(http)

    def body() -> Iterator[bytes]:
        yield bytes(100_000)
        stack.kill("host")
        yield bytes(100_000)

    answer = http.post("upload", content=body())
    assert answer.status_code == 502
    assert answer.json() == {"detail": "The deployment's app ended before it had answered"}
    assert is_served(http)


def test_a_socket_of_a_killed_host_is_closed(stack: Stack, url: str, http: httpx.Client) -> None:
    with connect(f"ws{url.removeprefix('http')}/parrot") as socket:
        assert json.loads(socket.recv(60)) == {"user": None}
        stack.kill("host")
        with pytest.raises(ConnectionClosed) as closed:
            socket.recv(60)
    assert closed.value.rcvd is not None
    assert closed.value.rcvd.code == 1011
    assert is_served(http)


def test_a_killed_runner_breaks_off_what_its_hosts_answered(stack: Stack, http: httpx.Client) -> None:
    with http.stream("GET", "steps?count=1000") as answer:
        lines = answer.iter_lines()
        assert next(lines) == "0"
        stack.kill("runner")
        with pytest.raises(httpx.RemoteProtocolError):
            list(lines)
    wait_until(lambda: is_served(http), 60, what="another runner to serve the app")


def test_an_answer_is_broken_off_when_the_event_bus_is_lost(stack: Stack, http: httpx.Client) -> None:
    """It is broken off, and said so: nothing of an answer may be missing unseen."""
    with http.stream("GET", "steps?count=1000") as answer:
        lines = answer.iter_lines()
        assert next(lines) == "0"
        stack.kill("valkey")
        with pytest.raises(httpx.RemoteProtocolError):
            list(lines)
    wait_until(lambda: is_served(http), 60, what="the app to be served again")
