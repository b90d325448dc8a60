"""How a connection that is HTTP's no longer is taken over from the request that has upgraded it."""

from __future__ import annotations

import errno
from collections.abc import Callable


class HandedOver(ConnectionResetError):
    """The server is done with the connection, of which whoever raises this has a descriptor of its own.

    It closes its own one on this and logs nothing; then it calls `serve`, in a new greenlet.
    """

    def __init__(self, serve: Callable[[], None]) -> None:
        super().__init__(errno.ECONNRESET, "the connection was upgraded")
        self.serve = serve
