"""Calls of user code to its own deployment: what `get_client()` without an address uses, and for whom it calls.

They go over the socket, and the runner makes the request: user code has no key of the platform's. Each names the
user of the run or of the request that it is made in, whom the deployment's authorization is then asked about.

Every request of an SDK client that a run makes, to whatever address, also names the run in the header PARENT_RUN:
the service gives runs that it creates capacity of their own (`shared/runs/nesting.py`).

Why the SDK's module is changed: it looks for the neighbour's server where it would find it, and for a transport that
collects a whole response before it hands on the first byte. The two names it takes these from are its seam.
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
from ..serialization import loads
from .exchanges import Exchange, Exchanges

T = TypeVar("T")

# The neighbour's server, which the SDK would load where a project has it installed.
SERVER = "langgraph_api.server"
# The runner's own: a key among the deployment's variables is for somebody else.
LEFT_OUT = frozenset((b"host", b"connection", b"transfer-encoding", b"accept-encoding", b"x-api-key"))
METHODS = frozenset(("GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS"))
PARENT_RUN = "X-Runyard-Parent-Run"  # as in shared/runs/nesting.py
# What ends an exchange that user code began.
LAST = frozenset((frames.END, frames.FAILED, frames.CLOSE))

current_user: ContextVar[Mapping[str, Any] | None] = ContextVar("current_user", default=None)
_exchanges: Exchanges | None = None
_mount_prefix = ""


@contextmanager
def acting_for(user: Mapping[str, Any] | None) -> Iterator[None]:
    """Calls made inside the block are this user's."""
    token = current_user.set(user)
    try:
        yield
    finally:
        current_user.reset(token)


def install() -> None:
    """Have the SDK's clients without an address use this transport; to be done before user code is loaded."""
    client = sys.modules[langgraph_sdk.get_client.__module__]
    sys.modules[SERVER] = None  # type: ignore[assignment]  # it cannot be imported
    client.__dict__["get_asgi_transport"] = lambda: LoopbackTransport
    client.__dict__["_registered_transports"] = deque(maxlen=0)  # it keeps one for each client ever made
    name_callers()


def name_callers() -> None:
    """Have each SDK client name the run in which it sends a request."""

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
    """The deployment serves, below this path: from now on it can be called."""
    global _exchanges, _mount_prefix
    _exchanges, _mount_prefix = exchanges, quote(mount_prefix, safe="/")


class LoopbackTransport(httpx.AsyncBaseTransport):
    """Sends requests over the host's socket, from whatever loop and thread."""

    def __init__(self, *arguments: Any, **settings: Any) -> None:
        """What the SDK says to its own transport means nothing here."""

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        if _exchanges is None:
            raise httpx.ConnectError("the deployment does not serve yet: it is being loaded", request=request)
        if request.method not in METHODS:
            raise httpx.UnsupportedProtocol(f"no route takes the method {request.method!r}", request=request)
        return await _Outgoing(_exchanges, request).response()


class _Outgoing(httpx.AsyncByteStream):
    """One request and its response, whose body it is."""

    def __init__(self, exchanges: Exchanges, request: httpx.Request) -> None:
        self._request = request
        self._exchanges = exchanges
        self._loop = exchanges.connection.loop
        self._exchange: Exchange | None = None
        self._read_seconds = (request.extensions.get("timeout") or {}).get("read")

    async def response(self) -> httpx.Response:
        """Send the request and return what it is answered with, as soon as that begins."""
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
        """Nobody wants the rest."""
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
        """Do this on the host's own loop."""
        if asyncio.get_running_loop() is self._loop:
            return await work
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, self._loop))


def _reason(data: bytes) -> str:
    return loads(data or b"{}").get("message") or "the deployment's connection was lost"
