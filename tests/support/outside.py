"""Servers outside the platform, real ones on loopback ports."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from werkzeug.serving import WSGIRequestHandler, make_server


class _Quiet(WSGIRequestHandler):
    def log(self, type: str, message: str, *args: Any) -> None:
        """A test's server tells nobody whom it served."""


@contextmanager
def serving(app: Any, *, ssl: Any = None, host: str = "127.0.0.1") -> Iterator[int]:
    """A WSGI app on a port of its own, each request on a thread; the port."""
    server = make_server(host, 0, app, threaded=True, request_handler=_Quiet, ssl_context=ssl)
    server.daemon_threads = True  # type: ignore[attr-defined]  a slow answer must not hold up the end
    server.block_on_close = False  # type: ignore[attr-defined]
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield server.port
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
