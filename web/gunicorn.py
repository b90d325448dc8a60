"""gunicorn's settings for the web process: `gunicorn -c web/gunicorn.py`. Each has its reason beside it."""

from __future__ import annotations

import gc
import os
import resource
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import gevent
from gunicorn import glogging
from gunicorn.http import wsgi
from gunicorn.workers.base_async import AsyncWorker
from gunicorn.workers.ggevent import GeventWorker

from shared import logs
from shared.process import close_memory
from shared.settings import Settings

close_memory()  # the arbiter has the same environment as its workers
settings = Settings.from_env(os.environ)


def raise_open_files() -> None:
    """As many descriptors as we may have: each connection needs one."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


raise_open_files()

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
    """An answer that does not tell which server gave it; gunicorn has no setting for that.

    The headers of a stream go out before its first byte is there: clients read from them where to go on.
    """

    def start_response(self, status: str, headers: Any, exc_info: Any = None) -> Any:
        write = super().start_response(status, headers, exc_info)
        if self.chunked:
            self.send_headers()
        return write

    def default_headers(self) -> list[str]:
        return [header for header in super().default_headers() if not header.startswith("Server:")]


class Logger(glogging.Logger):
    """gunicorn's own lines, in the format of all other lines."""

    def setup(self, cfg: Any) -> None:
        super().setup(cfg)
        logs.configure(settings)
        self.error_log.handlers.clear()
        self.error_log.propagate = True


def post_worker_init(worker: Any) -> None:
    """What is loaded by now stays for good: the collector need not look at it again."""
    gc.collect()
    gc.freeze()


wsgi.Response = Response

wsgi_app = "web.wsgi:app"
bind = f"{settings.host}:{settings.port}"
worker_class = Worker
# Requests find room beside the streams; each is a greenlet and a descriptor.
worker_connections = settings.max_streams + 1000
timeout = 60  # of the worker's loop, not of a request
graceful_timeout = 30
keepalive = 75
limit_request_line = 4094
limit_request_fields = 64
limit_request_field_size = 8190
max_requests = 0  # restarting after so many would cut streams
preload_app = False  # connections and greenlets belong to the worker
control_socket_disable = True
logger_class = Logger
loglevel = settings.log_level.lower()
accesslog = None
worker_tmp_dir = "/dev/shm" if Path("/dev/shm").is_dir() else None  # its heartbeat must not wait for a disk
