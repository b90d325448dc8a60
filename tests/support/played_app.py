"""A project's app as the web process sees it, played by a function with real parts and credit but no host or Redis."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import gevent
import orjson
from gevent.lock import Semaphore
from gevent.queue import Empty, Queue
from sqlalchemy import update

from shared.deployments.deployments import DeploymentRef
from shared.errors import Unavailable
from shared.hosts.exchanges import BODY, BYTES, CLOSE, END, FAILED, HEAD, TEXT, Exchange, Lost
from shared.hosts.pending_calls import HostCall
from shared.infra.postgres import connection
from shared.models import REVISION

CREDIT = 16
COSTS = (BODY, TEXT, BYTES)


class Died(Exception):
    """Raised by a played app to let its host die at this point."""


@dataclass
class Side:
    """The app's end of one exchange."""

    head: Mapping[str, Any]
    down: Queue = field(default_factory=Queue)
    up: Queue = field(default_factory=Queue)
    down_credit: Semaphore = field(default_factory=lambda: Semaphore(CREDIT))
    up_credit: Semaphore = field(default_factory=lambda: Semaphore(CREDIT))
    closed: Any = None  # data of the part that closed the exchange
    has_ended: bool = False
    most_waiting: int = 0

    def receive(self) -> tuple[bytes, bytes]:
        kind, data = self.down.get()
        if kind in COSTS:
            self.down_credit.release()
        if kind == CLOSE:
            self.closed = orjson.loads(data) if data else {}
        return kind, data

    def body(self) -> bytes:
        """Read the whole request body."""
        found = b""
        while (part := self.receive())[0] == BODY:
            found += part[1]
        return found

    def send(self, kind: bytes, data: bytes = b"") -> None:
        if kind in COSTS:
            self.up_credit.acquire()
        self.has_ended = self.has_ended or kind in (END, FAILED, CLOSE)
        self.up.put((kind, data))
        self.most_waiting = max(self.most_waiting, self.up.qsize())

    def begin(self, status: int = 200, headers: Sequence[Sequence[str]] = ()) -> None:
        self.send(HEAD, orjson.dumps({"status": status, "headers": [list(pair) for pair in headers]}))

    def answer(self, body: bytes = b"", status: int = 200, headers: Sequence[Sequence[str]] = ()) -> None:
        self.begin(status, headers)
        if body:
            self.send(BODY, body)
        self.send(END)

    def accept(self, subprotocol: str | None = None, headers: Sequence[Sequence[str]] = ()) -> None:
        said = {"accepted": True, "subprotocol": subprotocol, "headers": [list(pair) for pair in headers]}
        self.send(HEAD, orjson.dumps(said))


App = Callable[[Side], None]


class PlayedExchange(Exchange):
    """The web process's end of one exchange."""

    def __init__(self, side: Side) -> None:
        self._side = side
        self.is_lost = False

    def send(self, kind: bytes, data: bytes = b"") -> None:
        if kind in COSTS:
            self._side.down_credit.acquire()
        if self.is_lost:
            raise Lost("the host has died")
        self._side.down.put((kind, data))

    def parts(self, *, timeout_seconds: float | None = None) -> Iterator[tuple[bytes, bytes]]:
        while True:
            try:
                kind, data = self._side.up.get(timeout=timeout_seconds)
            except Empty:
                raise TimeoutError from None
            if kind == b"":
                self.is_lost = True
                raise Lost("the host has died")
            if kind in COSTS:
                self._side.up_credit.release()
            yield kind, data
            if kind in (END, FAILED):
                return


class Stage:
    """Plays an app and keeps the app's end of each exchange."""

    def __init__(self, app: App) -> None:
        self.app = app
        self.sides: list[Side] = []
        self.is_away = False

    @contextmanager
    def open_exchange(self, request: HostCall) -> Iterator[Exchange]:
        if self.is_away:
            raise Unavailable("no graph host of the deployment could be started")
        side = Side(orjson.loads(orjson.dumps(request.document)))
        self.sides.append(side)
        greenlet = gevent.spawn(self._play, side)
        try:
            yield PlayedExchange(side)
        finally:
            if not side.has_ended:
                side.down.put((CLOSE, b""))
            gevent.sleep(0)
            del greenlet

    @property
    def last(self) -> Side:
        return self.sides[-1]

    def _play(self, side: Side) -> None:
        try:
            self.app(side)
        except Died:
            side.up.put((b"", b""))
        except Exception as error:
            side.send(FAILED, orjson.dumps({"message": repr(error)}))


def serve(
    deployment: DeploymentRef,
    *routes: str,
    http: Mapping[str, Any] | None = None,
    auth: Mapping[str, Any] | None = None,
    openapi: Mapping[str, Any] | None = None,
) -> None:
    """Give the serving revision an app with these routes: "GET /x", "WEBSOCKET /ws", "MOUNT /static"."""
    app = {"routes": [_route(route) for route in routes], "openapi": openapi}
    stored = {"app": app if routes or openapi else None, "auth": auth}
    with connection() as conn:
        conn.execute(
            update(REVISION)
            .where(REVISION.c.id == deployment.active_revision_id)
            .values(
                manifest={"http": dict(http or {})},
                user_code=stored if any(stored.values()) else None,
            )
        )


def _route(text: str) -> dict[str, Any]:
    method, path = text.split(" ", 1)
    if method in ("WEBSOCKET", "MOUNT"):
        return {"path": path, "methods": [], "kind": method.lower()}
    return {"path": path, "methods": [] if method == "ANY" else [method], "kind": "http"}
