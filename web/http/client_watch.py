"""Detection of clients that disconnect during a long response, also while there is nothing to send.

The client's socket becomes readable when it disconnects. A watcher in gevent's event loop waits for that, so that
thousands of streams need no greenlet each. The watcher only wakes the stream's greenlet, which checks the socket.

A client may also send data meanwhile, such as the next request on the connection. The socket then stays readable, and
the stream checks it with every batch from then on.
"""

from __future__ import annotations

import select
import socket
from collections.abc import Callable
from types import TracebackType
from typing import Any

import gevent
from gevent import monkey

READ = 1  # libev's flag
PEER_CLOSED = getattr(select, "POLLRDHUP", 0)  # set even if bytes are left to read; Linux only
DISCONNECTED = PEER_CLOSED | select.POLLHUP | select.POLLERR | select.POLLNVAL

# gevent's poll() does not support PEER_CLOSED, and select() no descriptor above 1023.
_poll = monkey.get_original("select", "poll")


class ClientWatch:
    """Watches a request's client while entered, or from `start` to `stop`.

    `wake` is called at most once, from gevent's event loop, when the client has disconnected or sent data. `client` is
    None if the server does not expose the socket. A disconnection is not noticed then.
    """

    def __init__(self, client: socket.socket | None, wake: Callable[[], None]) -> None:
        self._client = client
        self._wake = wake
        self._is_readable = False
        self._watcher: Any = None

    def __enter__(self) -> ClientWatch:
        self.start()
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc_val: BaseException | None,
        exc_tb: TracebackType | None,
    ) -> None:
        self.stop()

    def start(self) -> None:
        if self._client is not None:
            self._watcher = gevent.get_hub().loop.io(self._client.fileno(), READ)
            self._watcher.start(self._on_readable)

    def _on_readable(self) -> None:
        self.stop()
        self._is_readable = True
        self._wake()

    def stop(self) -> None:
        watcher, self._watcher = self._watcher, None
        if watcher is not None:
            watcher.stop()
            watcher.close()

    def has_disconnected(self) -> bool:
        return self._client is not None and self._is_readable and _is_closed(self._client)


def is_readable(client: socket.socket) -> bool:
    """Return whether there is data to read, or the client has disconnected."""
    poll = _poll()
    poll.register(client.fileno(), select.POLLIN)
    return bool(poll.poll(0))


def _is_closed(client: socket.socket) -> bool:
    poll = _poll()
    poll.register(client.fileno(), select.POLLIN | PEER_CLOSED)
    events = dict(poll.poll(0)).get(client.fileno(), 0)
    if events & DISCONNECTED or PEER_CLOSED:
        return bool(events & DISCONNECTED)
    try:  # without PEER_CLOSED, only a read tells whether the client has disconnected
        return bool(events) and not client.recv(1, socket.MSG_PEEK)
    except OSError:
        return True
