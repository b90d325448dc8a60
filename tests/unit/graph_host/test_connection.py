"""The host's end of the socket to its runner."""

from __future__ import annotations

import asyncio
import socket

from workers.graph_host import frames
from workers.graph_host.connection import Connection


def test_an_error_of_one_frame_does_not_lose_the_next() -> None:
    handled: list[int] = []
    errors: list[object] = []

    def handle(kind: int, id: bytes, body: bytes) -> None:
        handled.append(kind)
        raise ValueError(f"kind {kind}")

    async def receive() -> None:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: errors.append(str(context["exception"])))
        runner, host = socket.socketpair()
        with runner, host:
            Connection(host, loop, handle)
            first, second = (frames.encode(kind, frames.NOBODY, b"") for kind in (frames.RUN, frames.PING))
            runner.sendall(first + second)
            while len(handled) < 2:
                await asyncio.sleep(0)
            loop.remove_reader(host)

    asyncio.run(asyncio.wait_for(receive(), 60))

    assert handled == [frames.RUN, frames.PING]
    assert errors == [f"kind {kind}" for kind in handled]
