"""gunicorn's worker, request by request, where ours differs: time-outs of sockets, its end, its answers' headers."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import gevent
from gunicorn.http import wsgi
from gunicorn.workers.base_async import AsyncWorker
from gunicorn.workers.ggevent import GeventWorker

# Longest silence of a peer that owes us bytes or does not take ours; streams write at every heartbeat.
SOCKET_SECONDS = 300.0


class Worker(GeventWorker):
    """The gevent worker, with sockets that do not wait for ever, also not for the next request when it stops."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.idle: dict[Any, gevent.Timeout] = {}

    @contextmanager
    def timeout_ctx(self) -> Iterator[None]:  # type: ignore[override]  gunicorn annotates nothing
        """Around the wait for a connection's next request."""
        here = gevent.getcurrent()
        silent: Any = False  # not raised outside of the block
        with gevent.Timeout(self.cfg.keepalive if self.alive else 0, silent) as timeout:
            self.idle[here] = timeout
            try:
                yield
            finally:
                del self.idle[here]

    def handle_exit(self, sig: int, frame: Any) -> None:
        """Idle connections and open streams would hold up the worker's end until the graceful time-out."""
        # Here, since it brings the Redis client along, and with it `ssl`: gevent patches that in the worker only.
        from shared import following

        super().handle_exit(sig, frame)
        gevent.spawn(self.close_idle)
        gevent.spawn(following.hub().close)

    def close_idle(self) -> None:
        for greenlet, timeout in list(self.idle.items()):
            gevent.get_hub().loop.run_callback(greenlet.throw, timeout)

    def handle(self, listener: socket.socket, client: socket.socket, addr: Any) -> None:
        client.settimeout(SOCKET_SECONDS)
        AsyncWorker.handle(self, listener, client, addr)


class Response(wsgi.Response):
    """An answer that does not tell which server gave it; gunicorn has no setting for that."""

    def default_headers(self) -> list[str]:
        return [header for header in super().default_headers() if not header.startswith("Server:")]


wsgi.Response = Response
