"""A project's own ASGI app (`http.app`): loading, lifespan and requests."""

from __future__ import annotations

import asyncio
import importlib
import inspect
import logging
from abc import ABC, abstractmethod
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

from .. import frames
from ..loader import LoadFailed, Modules, load_object
from ..output import last_lines, short_traceback
from ..serialization import dumps, loads
from .exchanges import Exchange, Exchanges
from .loopback import current_user
from .users import user_of

log = logging.getLogger("runyard")

Message = dict[str, Any]

KEY = "http.app"
# Timeouts of requests and of the lifespan at shutdown; together less than the runner waits for a host to stop.
END_SECONDS, LEAVE_SECONDS = 1.5, 2.5
# How long a request may continue after its client has disconnected.
GIVE_UP_SECONDS = 5.0
# The only error detail that the caller receives.
FAILED = {"message": "the project's app failed"}
NORMAL, NO_CODE = 1000, 1005
# Names of exceptions that occur in an app after its client has disconnected.
PARTINGS = frozenset({"CancelledError", "ClientDisconnect", "WebSocketDisconnect"})


class App:
    """The app and the requests in progress."""

    def __init__(self, app: Any, exchanges: Exchanges) -> None:
        self.app = app
        self._exchanges = exchanges
        self._lifespan = Lifespan(app)
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        """Enter the app's lifespan. Raises LifespanFailed."""
        await self._lifespan.enter()

    def open(self, id: bytes, head: dict[str, Any]) -> None:
        """Start a task that serves a request or WebSocket."""
        exchange = self._exchanges.begin(id)
        kind = SocketCall if head["type"] == "websocket" else HttpCall
        call = kind(exchange, head)
        loop = self._exchanges.connection.loop
        task = loop.create_task(call.run(self.app, dict(self._lifespan.state)))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        exchange.on_close = lambda: loop.call_later(GIVE_UP_SECONDS, task.cancel)

    async def stop(self) -> None:
        """End the requests in progress, at most END_SECONDS, and leave the lifespan, at most LEAVE_SECONDS."""
        self._exchanges.close_all()
        if self._tasks:
            _, late = await asyncio.wait(self._tasks, timeout=END_SECONDS)
            for task in late:
                task.cancel()
        await self._lifespan.leave(LEAVE_SECONDS)


def load(location: str, modules: Modules) -> Any:
    """Load the project's app. Raises LoadFailed."""
    app = load_object(KEY, location, modules)
    if not _takes_three(app):
        raise LoadFailed(
            f"{KEY}: {location} is no ASGI app, called with scope, receive and send: {type(app).__name__}"
        )
    return app


def _takes_three(value: Any) -> bool:
    if not callable(value):
        return False
    try:
        inspect.signature(value).bind(None, None, None)
    except TypeError:
        return False
    except ValueError:  # implemented in C, without a signature
        return True
    return True


class LifespanFailed(Exception):
    """An app could not start. The message is for the person who deploys."""


class Lifespan:
    """The lifespan of one app, entered once. An app that does not support lifespans is served without one."""

    def __init__(self, app: Any) -> None:
        self.state: dict[str, Any] = {}  # the state that the lifespan sets for requests
        self._app = app
        self._inbox: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self._task: asyncio.Task[None] | None = None
        self._error: BaseException | None = None
        self._refusal: str | None = None
        self._is_entered = asyncio.Event()

    async def enter(self) -> None:
        """Wait until the app has started. Raises LifespanFailed."""
        self._inbox.put_nowait({"type": "lifespan.startup"})
        self._task = asyncio.get_running_loop().create_task(self._run())
        await self._is_entered.wait()
        if self._refusal is None:
            if self._error is not None:
                log.info("http.app is served without a lifespan: %r", self._error)
            return
        await asyncio.wait([self._task], timeout=1)
        why = short_traceback(self._error) if self._error else last_lines(self._refusal)
        raise LifespanFailed(f"http.app: its lifespan failed at the start\n{why}".rstrip())

    async def leave(self, seconds: float) -> None:
        """Shut the app down. Waits at most this many seconds."""
        if self._task is None or self._task.done():
            return
        self._inbox.put_nowait({"type": "lifespan.shutdown"})
        _, late = await asyncio.wait([self._task], timeout=seconds)
        if late:
            log.warning("http.app: its lifespan did not end within %s s", seconds)
        elif self._error is not None:
            log.error("http.app: its lifespan failed at the end", exc_info=self._error)

    async def _run(self) -> None:
        scope = {"type": "lifespan", "asgi": {"version": "3.0", "spec_version": "2.0"}, "state": self.state}
        try:
            await self._app(scope, self._inbox.get, self._send)
        except BaseException as error:  # any exception of the app
            self._error = error
        self._is_entered.set()

    async def _send(self, message: dict[str, Any]) -> None:
        if message["type"] in ("lifespan.startup.failed", "lifespan.shutdown.failed"):
            self._refusal = str(message.get("message") or "")
        if message["type"].startswith("lifespan.startup."):
            self._is_entered.set()


class ClientDisconnect(OSError):
    """Raised in an app that sends to a disconnected client, as ASGI specifies."""


class AppCall(ABC):
    """One call of the app."""

    def __init__(self, exchange: Exchange, head: Mapping[str, Any]) -> None:
        self._exchange = exchange
        self._head = head

    async def run(self, app: Any, state: Message) -> None:
        """Call the app and end the exchange. Never raises."""
        current_user.set(self._head.get("user"))
        try:
            scope = {**scope_of(self._head), **self._scope_by_kind(), "state": state}
            await app(scope, self._receive, self._send)
        except BaseException as error:  # any exception of the app
            if type(error).__name__ not in PARTINGS or not self._exchange.is_closed:
                log.error("http.app failed at %s", self._shown_request, exc_info=error)
            self._exchange.finish(frames.FAILED, FAILED)
        else:
            self._returned()

    @abstractmethod
    def _scope_by_kind(self) -> Message:
        """Return the entries of the ASGI scope that only this kind of call has."""

    def _returned(self) -> None:
        if not self._exchange.is_closed:
            log.error("http.app did not answer %s", self._shown_request)
            self._exchange.finish(frames.FAILED, FAILED)

    @property
    def _shown_request(self) -> str:
        return f"{self._head.get('method') or 'WebSocket'} {self._head['path']}"

    @abstractmethod
    async def _receive(self) -> Message:
        """Return the next message for the app (ASGI's `receive`)."""

    @abstractmethod
    async def _send(self, message: Message) -> None:
        """Send a message of the app (ASGI's `send`)."""


class HttpCall(AppCall):
    """An HTTP request."""

    def __init__(self, exchange: Exchange, head: Mapping[str, Any]) -> None:
        super().__init__(exchange, head)
        self._is_read = False  # the request's body
        self._is_begun = False  # the response

    def _scope_by_kind(self) -> Message:
        return {"method": self._head["method"]}

    async def _receive(self) -> Message:
        while True:
            kind, data = await self._exchange.part()
            if kind == frames.BODY and not self._is_read:
                return {"type": "http.request", "body": data, "more_body": True}
            if kind == frames.END and not self._is_read:
                self._is_read = True
                return {"type": "http.request", "body": b"", "more_body": False}
            if kind == frames.CLOSE:
                return {"type": "http.disconnect"}

    async def _send(self, message: Message) -> None:
        if self._exchange.is_closed:  # the client has disconnected; the message is dropped without an error
            await asyncio.sleep(0)
        elif message["type"] == "http.response.start":
            self._is_begun = True
            head = {"status": int(message["status"]), "headers": _texts(message.get("headers") or ())}
            await self._exchange.send(frames.HEAD, dumps(head))
        elif message["type"] == "http.response.body":
            await self._send_body(bytes(message.get("body") or b""), is_last=not message.get("more_body"))

    async def _send_body(self, body: bytes, *, is_last: bool) -> None:
        if not self._is_begun:
            raise RuntimeError("http.response.body was sent before http.response.start")
        await self._exchange.send_body(body)
        if is_last:
            self._exchange.finish(frames.END)


class SocketCall(AppCall):
    """A WebSocket, open until either side closes it."""

    def __init__(self, exchange: Exchange, head: Mapping[str, Any]) -> None:
        super().__init__(exchange, head)
        self._is_connected = False
        self._is_accepted = False

    def _scope_by_kind(self) -> Message:
        scheme = "wss" if self._head.get("scheme") in ("https", "wss") else "ws"
        return {"scheme": scheme, "subprotocols": self._head.get("subprotocols") or []}

    def _returned(self) -> None:
        if self._is_accepted:
            self._exchange.finish(frames.CLOSE, {"code": NORMAL, "reason": ""})
        super()._returned()

    async def _receive(self) -> Message:
        if not self._is_connected:
            self._is_connected = True
            return {"type": "websocket.connect"}
        while True:
            kind, data = await self._exchange.part()
            if kind == frames.TEXT:
                return {"type": "websocket.receive", "text": data.decode(), "bytes": None}
            if kind == frames.BYTES:
                return {"type": "websocket.receive", "text": None, "bytes": data}
            if kind == frames.CLOSE:
                closing = loads(data or b"{}")
                code, reason = closing.get("code") or NO_CODE, closing.get("reason") or ""
                return {"type": "websocket.disconnect", "code": code, "reason": reason}

    async def _send(self, message: Message) -> None:
        if self._exchange.is_closed and message["type"] != "websocket.close":
            raise ClientDisconnect  # otherwise an app that sends in an endless loop would block all others
        if message["type"] == "websocket.accept":
            self._is_accepted = True
            headers = _texts(message.get("headers") or ())
            head = {"accepted": True, "subprotocol": message.get("subprotocol"), "headers": headers}
            await self._exchange.send(frames.HEAD, dumps(head))
        elif message["type"] == "websocket.send" and message.get("text") is not None:
            await self._exchange.send(frames.TEXT, message["text"].encode())
        elif message["type"] == "websocket.send":
            await self._exchange.send(frames.BYTES, bytes(message["bytes"]))
        elif message["type"] == "websocket.close":
            code, reason = message.get("code") or NORMAL, message.get("reason") or ""
            self._exchange.finish(frames.CLOSE, {"code": code, "reason": reason})


def scope_of(head: Mapping[str, Any]) -> Message:
    """Return the entries of the ASGI scope that requests and WebSockets share.

    The head's paths do not include their mount, which is `root_path`.
    """
    root_path = head.get("root_path") or ""
    raw_path = head.get("raw_path") or head["path"]
    client, server = head.get("client"), head.get("server")
    return {
        "type": head["type"],
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": head.get("http_version") or "1.1",
        "scheme": head.get("scheme") or "http",
        "path": root_path + head["path"],
        "raw_path": (root_path + raw_path).encode("latin-1", "replace"),
        "root_path": root_path,
        "query_string": (head.get("query") or "").encode("latin-1", "replace"),
        "headers": [
            (name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in head["headers"]
        ],
        "client": tuple(client) if client else None,
        "server": tuple(server) if server else None,
        **_user_scope(head.get("user")),
    }


def _user_scope(user: Mapping[str, Any] | None) -> Message:
    """Return the caller in the form of Starlette's AuthenticationMiddleware: `user` and `auth`."""
    if user is None:
        return {}
    try:
        authentication: Any = importlib.import_module("starlette.authentication")
    except ImportError:
        seen = user_of(user)
        return {"user": seen, "auth": SimpleNamespace(scopes=seen.permissions)}
    seen = user_of(user, authentication.BaseUser)
    return {"user": seen, "auth": authentication.AuthCredentials(seen.permissions)}


def _texts(headers: Any) -> list[list[str]]:
    return [[bytes(name).decode("latin-1"), bytes(value).decode("latin-1")] for name, value in headers]
