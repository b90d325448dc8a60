"""A network in one thread: wires that can be cut or silenced, TLS ends of the servers, and a balancer before `web`.

A wire connects one machine to one server. Traffic is encrypted from the client to the server's end.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
import struct
import threading
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Any, TypeVar

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]
Connect = Callable[[], Awaitable[Streams]]

HOST = "127.0.0.1"
CHUNK = 64 * 1024
RESET = struct.pack("ii", 1, 0)  # SO_LINGER: closing sends RST instead of FIN
POSTGRES_SSL, POSTGRES_GSS = (struct.pack("!ii", 8, code) for code in (80877103, 80877104))
CHECK_SECONDS = 0.3
CHECK_TIMEOUT_SECONDS = 2.0

T = TypeVar("T")


class Network:
    """An event loop in its own thread. Every end and wire runs in it."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="network", daemon=True)
        self._thread.start()

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(30)

    def call(self, function: Callable[[], None]) -> None:
        """Call a function in the loop and wait for its return."""

        async def called() -> None:
            function()

        self.run(called())

    def close(self) -> None:
        self.run(self._end_all())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _end_all(self) -> None:
        tasks = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


class Port(ABC):
    """A listening TCP port on loopback."""

    def __init__(self, network: Network) -> None:
        self.network = network
        self._server = network.run(asyncio.start_server(self._serve, HOST, 0, limit=CHUNK))
        self.port: int = self._server.sockets[0].getsockname()[1]

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
            await self.serve(reader, writer)
        writer.transport.abort()

    @abstractmethod
    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one connection until it ends."""


async def relay(
    client: Streams, server: Streams, passes: Callable[[], Awaitable[None]] | None = None
) -> None:
    """Relay in both directions until one side closes. Awaits `passes` before each chunk and before the end."""

    async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while data := await reader.read(CHUNK):
                if passes:
                    await passes()
                writer.write(data)
                await writer.drain()
        if passes:
            await passes()

    pumps = [
        asyncio.ensure_future(pump(client[0], server[1])),
        asyncio.ensure_future(pump(server[0], client[1])),
    ]
    try:
        await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in pumps:
            task.cancel()
        for _, writer in (client, server):
            writer.close()


# TLS ends of the servers


class TlsEnd(Port):
    """Terminates TLS in front of a server that listens on a unix socket."""

    def __init__(self, network: Network, path: Path, context: ssl.SSLContext) -> None:
        self._path, self._context = path, context
        super().__init__(network)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ssl.SSLError):
            await self.agree(reader, writer)
            await writer.start_tls(self._context)
            await relay((reader, writer), await asyncio.open_unix_connection(str(self._path)))

    async def agree(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Exchange messages before the TLS handshake. The base class sends none."""


class PostgresTlsEnd(TlsEnd):
    """TLS end of PostgreSQL, whose clients first request TLS. Closes connections that do not."""

    async def agree(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked = await reader.readexactly(8)
        if asked == POSTGRES_GSS:
            writer.write(b"N")
            asked = await reader.readexactly(8)
        if asked != POSTGRES_SSL:
            raise ConnectionRefusedError("a client that does not ask for TLS")
        writer.write(b"S")
        await writer.drain()


# Wires of a machine


class Wire(Port):
    """A machine's way to one port: intact, silent (neither data nor a close passes) or cut (connections are reset)."""

    def __init__(self, network: Network, port: int) -> None:
        self._target = port
        self._flows = asyncio.Event()
        self._flows.set()
        self._is_cut = False
        self._ends: set[asyncio.StreamWriter] = set()
        super().__init__(network)

    @property
    def connections(self) -> int:
        return len(self._ends) // 2

    def cut(self) -> None:
        self.network.call(self._cut)

    def silence(self) -> None:
        """Hold back all data. It is delivered once the wire is mended."""
        self.network.call(self._flows.clear)

    def mend(self) -> None:
        self.network.call(self._mend)

    def _cut(self) -> None:
        self._is_cut = True
        for writer in self._ends:
            reset(writer)

    def _mend(self) -> None:
        self._is_cut = False
        self._flows.set()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await self._flows.wait()
        if self._is_cut:
            reset(writer)
            return
        server = await asyncio.open_connection(HOST, self._target, limit=CHUNK)
        ends = {writer, server[1]}
        self._ends |= ends
        try:
            await relay((reader, writer), server, self._flows_again)
        finally:
            self._ends -= ends

    async def _flows_again(self) -> None:
        await self._flows.wait()


def reset(writer: asyncio.StreamWriter) -> None:
    """Close a connection with RST."""
    with suppress(OSError):
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
    writer.transport.abort()


# Balancer


class Balancer(Port):
    """A reverse proxy without buffering that distributes connections round robin over healthy backends."""

    def __init__(self, network: Network, backends: list[int], path: str) -> None:
        self._backends, self._path = backends, path
        self._well: set[int] = set()
        self._turn = count()
        super().__init__(network)
        self._checks = [
            asyncio.run_coroutine_threadsafe(self._check(port), network._loop) for port in backends
        ]

    @property
    def well(self) -> set[int]:
        return set(self._well)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        chosen = self._well or self._backends  # with no healthy backend, one may still answer
        for _ in self._backends:
            port = self._backends[next(self._turn) % len(self._backends)]
            if port not in chosen:
                continue
            try:
                server = await asyncio.open_connection(HOST, port, limit=CHUNK)
            except OSError:
                continue
            await relay((reader, writer), server)
            return
        writer.write(b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
        await writer.drain()

    async def _check(self, port: int) -> None:
        while True:
            try:
                is_well = await asyncio.wait_for(self._is_well(port), CHECK_TIMEOUT_SECONDS)
            except (TimeoutError, OSError):
                is_well = False
            (self._well.add if is_well else self._well.discard)(port)
            await asyncio.sleep(CHECK_SECONDS)

    async def _is_well(self, port: int) -> bool:
        reader, writer = await asyncio.open_connection(HOST, port)
        try:
            writer.write(f"GET {self._path} HTTP/1.1\r\nHost: {HOST}\r\nConnection: close\r\n\r\n".encode())
            return (await reader.readline()).startswith(b"HTTP/1.1 200")
        finally:
            writer.close()
