"""Requests of user code to its own deployment, which the runner sends on behalf of a graph host."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from uuid import UUID

import gevent
import orjson
import pytest

from shared.errors import HostDied
from shared.user_code import loopback
from tests.support import factories
from tests.support.greened import World, constants, greened, within
from tests.support.user_code_hosts import Scene, scene
from tests.support.waiting import until
from workers.runner import host_requests as requests_of_hosts

MIB = 1024 * 1024


class Service(ThreadingHTTPServer):
    """Echoes each request. GET /…/large returns 4 MiB, GET /…/endless an endless body."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Answer)
        self.seen: list[dict[str, Any]] = []
        self.written = 0
        self.broken = 0


class Answer(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Service

    def do_GET(self) -> None:
        self._note(0)
        if self.path.endswith("/endless"):
            self._pour()
            return
        self._answer(b"x" * 4 * MIB if self.path.endswith("/large") else b"found")

    def do_POST(self) -> None:
        size = 0
        while length := int(self.rfile.readline(), 16):
            size += len(self.rfile.read(length))
            self.rfile.readline()
        self._note(size)
        self._answer(b"made")

    def _note(self, size: int) -> None:
        headers = {name.lower(): value for name, value in self.headers.items()}
        self.server.seen.append({"path": self.path, "headers": headers, "bytes": size})

    def _answer(self, body: bytes) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _pour(self) -> None:
        self.send_response(200)
        self.end_headers()
        try:
            while True:
                self.wfile.write(b"x" * 1024)
                self.server.written += 1024
        except OSError:
            self.server.broken += 1

    def log_message(self, format: str, *args: object) -> None:
        """Log nothing."""


@contextmanager
def served(world: World) -> Iterator[tuple[Scene, Service, UUID]]:
    """Yield graph hosts, the fake service that their requests reach, and the id of their deployment."""
    deployment = factories.deployment(name="own")
    service = Service()
    threading.Thread(target=service.serve_forever, daemon=True).start()
    try:
        with scene(
            world, url="https://public.invalid", internal_url=f"http://127.0.0.1:{service.server_port}"
        ) as s:
            assert deployment.active_revision_id is not None
            s.revision = deployment.active_revision_id
            yield s, service, deployment.id
    finally:
        service.shutdown()
        service.server_close()


def ask(s: Scene, path: str, method: str = "GET", parts: int = 0, **fields: Any) -> dict[str, Any]:
    said = {"query": "", "headers": [], "user": None, "size": 64 * 1024, **fields}
    answer: dict[str, Any] = orjson.loads(s.call("ask itself", path=path, method=method, parts=parts, **said))
    return answer


@greened
def test_a_request_comes_to_its_deployment_with_a_token_for_its_user(world: World) -> None:
    with served(world) as (s, service, deployment_id):
        headers = [
            ["x-mine", "1"],
            ["host", "elsewhere"],
            ["x-runyard-user-code", "forged"],
            ["x-api-key", "k"],
        ]
        answer = ask(s, "/threads", query="a=b", headers=headers, user={"identity": "ann"})

        assert (answer["head"]["status"], answer["bytes"], answer["end"]) == (200, 5, "")
        seen = service.seen[0]
        assert seen["path"] == "/d/own/threads?a=b"
        assert seen["headers"]["x-mine"] == "1"
        assert seen["headers"]["host"] == f"127.0.0.1:{service.server_port}"
        assert "x-api-key" not in seen["headers"]
        token = loopback.read(seen["headers"]["x-runyard-user-code"])
        assert token == loopback.LoopbackToken(deployment_id, {"identity": "ann"})


@greened
def test_large_bodies_pass_both_ways(world: World) -> None:
    with served(world) as (s, service, _):
        made = ask(s, "/runs", "POST", parts=64, headers=[["content-length", "3"]])
        found = ask(s, "/large")

        assert (made["start"], service.seen[0]["bytes"]) == ("made", 4 * MIB)
        assert (found["bytes"], found["end"]) == (4 * MIB, "")


@greened
def test_user_code_that_stops_reading_ends_the_request(world: World) -> None:
    with served(world) as (s, service, _):
        assert ask(s, "/endless", leaves=True)["end"] == "left"
        until(lambda: service.broken == 1)
        until(lambda: not any(host.occupants for host in s.pool.all()))


@within(scene, url="http://127.0.0.1:9")
def test_a_service_that_is_away_fails_the_request_alone(s: Scene) -> None:
    assert "the service does not answer" in ask(s, "/threads")["end"]
    assert s.call("greet")


@greened
def test_a_host_makes_so_many_requests_at_once(world: World) -> None:
    with constants(requests_of_hosts, AT_ONCE=2), served(world) as (s, _, _):
        waiting = [gevent.spawn(ask, s, "/endless", size=1, parts=-2) for _ in range(2)]
        until(lambda: any(len(host.occupants) == 4 for host in s.pool.all()))
        assert "at once" in ask(s, "/threads")["end"]
        gevent.killall(waiting)


@greened
def test_a_host_that_makes_ever_more_of_them_is_killed(world: World) -> None:
    with constants(requests_of_hosts, MOST=2), served(world) as (s, _, _):
        waiting = [gevent.spawn(ask, s, "/endless", size=1, parts=-2) for _ in range(2)]
        until(lambda: any(len(host.occupants) == 4 for host in s.pool.all()))
        with pytest.raises(HostDied, match="2 requests at once"):
            ask(s, "/threads")
        gevent.killall(waiting)


@greened
def test_a_host_that_leaves_its_deployment_is_killed(world: World) -> None:
    with served(world) as (s, service, _):
        with pytest.raises(HostDied, match="a request for"):
            ask(s, "/../other/threads")
        assert service.seen == []
