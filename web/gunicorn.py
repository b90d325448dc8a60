"""gunicorn's settings for `web`: `gunicorn -c web/gunicorn.py`. Each has its reason beside it."""

from __future__ import annotations

import gc
import os
import shutil
import signal
import tempfile
from pathlib import Path
from typing import Any

from gunicorn import glogging

from shared.infra import collector, logs, schema, system
from shared.infra.hardening import close_memory
from shared.settings import Settings
from web import worker

close_memory()  # the arbiter has the same environment as its workers
settings = Settings.from_env(os.environ)
workers = dict(settings.processes).get("web", 1)
counts = tempfile.mkdtemp(prefix="runyard-web-") if workers > 1 else None
if counts is not None:  # whichever of them is asked for its figures shows those of all
    os.environ.update(PROMETHEUS_MULTIPROC_DIR=counts)  # its library reads it

system.raise_open_files()


class Worker(worker.Worker):
    """The worker with this process's settings."""

    settings = settings


class Logger(glogging.Logger):
    """gunicorn's own lines, in the format of all other lines."""

    def setup(self, cfg: Any) -> None:
        super().setup(cfg)
        logs.configure(settings)
        self.error_log.handlers.clear()
        self.error_log.propagate = True


def on_starting(server: Any) -> None:
    """Before it listens: a database that is not ready for this release is waited for."""
    if settings.database_url:
        logs.configure(settings)
        schema.wait(settings.database_url, ask=schema.applied_by_child)  # gevent patches in the worker only


def post_fork(server: Any, worker: Any) -> None:
    """Prepare a forked worker for loading the app.

    Until the worker installs its own handlers it has the arbiter's, which would only queue a SIGTERM in the worker's
    memory: the arbiter would then wait for its graceful timeout. What the worker loads stays for good, so the garbage
    collector need not scan it.
    """
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    gc.disable()


def post_worker_init(worker: Any) -> None:
    """From here on there is garbage."""
    collector.keep_what_is_loaded()


def child_exit(server: Any, worker: Any) -> None:
    """What it counted stays counted; its streams are gone."""
    if counts is not None:
        from prometheus_client import multiprocess  # the arbiter has no other use for it

        multiprocess.mark_process_dead(worker.pid)


def on_exit(server: Any) -> None:
    """Ignore further signals and remove the counts of this server.

    Python takes its own handlers away when it ends: a signal that is sent once more would then kill the process, and its
    exit code would not be 0.
    """
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGQUIT):
        signal.signal(number, signal.SIG_IGN)
    if counts is not None:
        shutil.rmtree(counts, ignore_errors=True)


wsgi_app = "web.wsgi:app"
proc_name = "web"
bind = f"{settings.listen_host}:{settings.port}"
worker_class = Worker
# Requests find room beside the streams; each is a greenlet and a descriptor.
worker_connections = settings.max_streams + 1000 + worker.SPARE_CONNECTIONS
timeout = 60  # of the worker's loop, not of a request
graceful_timeout = 30
keepalive = 75
limit_request_line = 4094
limit_request_fields = 64
limit_request_field_size = 8190
# By default a client of the same machine may send SCRIPT_NAME: `/d/NAME/v2/keys` with `SCRIPT_NAME: /d/NAME` is then `/v2/keys`.
forwarder_headers = ""
max_requests = 0  # restarting after so many would cut streams
preload_app = False  # connections and greenlets belong to the worker
control_socket_disable = True
logger_class = Logger
loglevel = settings.log_level.lower()
accesslog = None
worker_tmp_dir = "/dev/shm" if Path("/dev/shm").is_dir() else None  # its heartbeat must not wait for a disk
