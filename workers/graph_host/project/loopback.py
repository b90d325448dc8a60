"""Calls of user code to its own deployment: the transport of `get_client()` without an address, and the calling user.

Requests go over the socket, and the runner makes them, because user code has no API key of the platform. Each request
names the user of the run or request that it is made in. The deployment's authorization then checks that user.

Every request that a run makes with an SDK client, to any address, also names the run in the header PARENT_RUN. The
service gives runs that such a request creates their own capacity (`shared/runs/nesting.py`).

`install` patches the SDK's module. The SDK would otherwise import LangGraph's own server (`langgraph_api`) where a
project has it installed, and use a transport that collects a whole response before it passes on the first byte. The
patched names are those from which the SDK takes the server and the transport.
"""

from __future__ import annotations

import asyncio
import functools
import sys
from collections import deque
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, TypeVar
from urllib.parse import quote
from uuid import UUID

import httpx
import langgraph_sdk
from langgraph_sdk.client import HttpClient, SyncHttpClient

from .. import frames
from ..output import current_run_id
from ..replays.replay import current_replay
from ..serialization import loads
from .exchanges import Exchange, Exchanges

T = TypeVar("T")

# LangGraph's own server, which the SDK would import if a project has it installed.
SERVER = "langgraph_api.server"
# Headers that the runner sets itself. An API key in the deployment's variables is meant for another service.
LEFT_OUT = frozenset((b"host", b"connection", b"transfer-encoding", b"accept-encoding", b"x-api-key"))
METHODS = frozenset(("GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS"))
PARENT_RUN = "X-Runyard-Parent-Run"  # as in shared/runs/nesting.py
# Parts that end an exchange begun by user code.
LAST = frozenset((frames.END, frames.FAILED, frames.CLOSE))

current_user: ContextVar[Mapping[str, Any] | None] = ContextVar("current_user", default=None)
_exchanges: Exchanges | None = None
_mount_prefix = ""


@contextmanager
def acting_for(user: Mapping[str, Any] | None) -> Iterator[None]:
    """Make calls inside the block on behalf of this user."""
    token = current_user.set(user)
    try:
        yield
    finally:
        current_user.reset(token)


def install() -> None:
    """Make SDK clients without an address use this transport. Must be called before user code is loaded."""
    client = sys.modules[langgraph_sdk.get_client.__module__]
    sys.modules[SERVER] = None  # type: ignore[assignment]  # it cannot be imported
    client.__dict__["get_asgi_transport"] = lambda: LoopbackTransport
    client.__dict__["_registered_transports"] = deque(maxlen=0)  # the SDK would keep one for each client
    name_callers()


def name_callers() -> None:
    """Make each SDK client add the current run's id to its requests."""

    def name(request: httpx.Request) -> None:
        run_id = current_run_id.get()
        if run_id != frames.NOBODY:
            request.headers.setdefault(PARENT_RUN, str(UUID(bytes=run_id)))

    async def name_asynchronously(request: httpx.Request) -> None:
        name(request)

    for kind, hook in ((HttpClient, name_asynchronously), (SyncHttpClient, name)):
        kind.__init__ = _hooked(kind.__init__, hook)  # type: ignore[method-assign]


def _hooked(init: Callable[..., None], hook: Callable[[httpx.Request], Any]) -> Callable[..., None]:
    @functools.wraps(init)
    def __init__(self: Any, client: Any) -> None:
        init(self, client)
        client.event_hooks["request"].append(hook)

    return __init__


def connect(exchanges: Exchanges, mount_prefix: str = "") -> None:
    """Enable calls to the deployment, whose API is mounted below this path prefix."""
    global _exchanges, _mount_prefix
    _exchanges, _mount_prefix = exchanges, quote(mount_prefix, safe="/")


class LoopbackTransport(httpx.AsyncBaseTransport):
    """Sends requests over the host's socket, from any event loop and thread."""

    def __init__(self, *arguments: Any, **settings: Any) -> None:
        """Accept and ignore the arguments that the SDK passes to its own transport."""

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        if _exchanges is None:
            raise httpx.ConnectError("the deployment does not serve yet: it is being loaded", request=request)
        if (replay := current_replay.get()) is not None:
            replay.report_network(f"{request.method} {request.url.path}")
            raise httpx.ConnectError("a replay makes no requests to its deployment", request=request)
        if request.method not in METHODS:
            raise httpx.UnsupportedProtocol(f"no route takes the method {request.method!r}", request=request)
        return await _Outgoing(_exchanges, request).response()


class _Outgoing(httpx.AsyncByteStream):
    """One request, and the stream of its response's body."""

    def __init__(self, exchanges: Exchanges, request: httpx.Request) -> None:
        self._request = request
        self._exchanges = exchanges
        self._loop = exchanges.connection.loop
        self._exchange: Exchange | None = None
        self._read_seconds = (request.extensions.get("timeout") or {}).get("read")

    async def response(self) -> httpx.Response:
        """Send the request and return the response as soon as its head arrives."""
        request = self._request
        path, _, query = request.url.raw_path.partition(b"?")
        head = {
            "type": "http",
            "method": request.method,
            "path": _mount_prefix + path.decode("ascii"),
            "query": query.decode("ascii"),
            "headers": [
                [name.lower().decode("latin-1"), value.decode("latin-1")]
                for name, value in request.headers.raw
                if name.lower() not in LEFT_OUT
            ],
            "user": current_user.get(),
        }
        self._exchange = await self._on_loop(self._opened(head))
        try:
            await self._send_body()
            kind, data = await self._part()
            if kind != frames.HEAD:
                raise httpx.ConnectError(_reason(data), request=request)
        except BaseException:
            await self.aclose()
            raise
        answer = loads(data)
        headers = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in answer["headers"]]
        return httpx.Response(answer["status"], headers=headers, stream=self, request=request)

    async def __aiter__(self) -> AsyncIterator[bytes]:
        while True:
            kind, data = await self._part()
            if kind == frames.BODY:
                yield data
            elif kind == frames.END:
                return
            else:
                raise httpx.ReadError(_reason(data), request=self._request)

    async def aclose(self) -> None:
        """Close the exchange, since the rest of the response is not needed."""
        if self._exchange is not None:
            self._loop.call_soon_threadsafe(self._exchange.finish, frames.CLOSE, {})

    async def _opened(self, head: dict[str, Any]) -> Exchange:
        exchange = self._exchanges.begin(last=LAST)
        exchange.open(head)
        return exchange

    async def _send_body(self) -> None:
        assert self._exchange is not None
        assert isinstance(self._request.stream, httpx.AsyncByteStream)
        async for part in self._request.stream:
            await self._on_loop(self._exchange.send_body(part))
        await self._on_loop(self._exchange.send(frames.END))

    async def _part(self) -> tuple[bytes, bytes]:
        assert self._exchange is not None
        try:
            async with asyncio.timeout(self._read_seconds):
                return await self._on_loop(self._exchange.part())
        except TimeoutError as error:
            raise httpx.ReadTimeout("the deployment did not answer in time", request=self._request) from error

    async def _on_loop(self, work: Coroutine[Any, Any, T]) -> T:
        """Await a coroutine on the host's event loop."""
        if asyncio.get_running_loop() is self._loop:
            return await work
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, self._loop))


def _reason(data: bytes) -> str:
    return loads(data or b"{}").get("message") or "the deployment's connection was lost"
