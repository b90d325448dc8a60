"""Taking over a connection from the HTTP request that has upgraded it."""

from __future__ import annotations

import errno
from collections.abc import Callable


class HandedOver(ConnectionResetError):
    """Raised by a response that takes over the connection, after duplicating its descriptor.

    The server closes its own descriptor without a log line, then calls `serve` in a new greenlet.
    """

    def __init__(self, serve: Callable[[], None]) -> None:
        super().__init__(errno.ECONNRESET, "the connection was upgraded")
        self.serve = serve
