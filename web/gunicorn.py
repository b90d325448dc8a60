"""gunicorn's settings for `web`: `gunicorn -c web/gunicorn.py`. Each has its reason beside it."""

from __future__ import annotations

import gc
import importlib
import os
import shutil
import signal
import tempfile
from pathlib import Path
from typing import Any

from gevent import monkey
from gunicorn import glogging

from shared.infra import database_version, logs, system
from shared.infra.system import close_memory
from shared.settings import Settings
from web.http import worker

close_memory()  # the arbiter has the same environment as its workers
settings = Settings.from_env(os.environ)
workers = dict(settings.processes).get("web", 1)
counts = tempfile.mkdtemp(prefix="runyard-web-") if workers > 1 else None
if counts is not None:  # any worker that is asked for metrics returns the sums of all workers
    os.environ.update(PROMETHEUS_MULTIPROC_DIR=counts)  # read by prometheus_client

system.raise_open_files()


class Worker(worker.Worker):
    """The worker class with this process's settings."""

    settings = settings


class Logger(glogging.Logger):
    """Writes gunicorn's own log lines in the format of all other lines."""

    def setup(self, cfg: Any) -> None:
        super().setup(cfg)
        logs.configure(settings)
        self.error_log.handlers.clear()
        self.error_log.propagate = True


def on_starting(server: Any) -> None:
    """Wait until the database is ready for this release, before the server listens.

    A process that gevent has patched loads the app's modules before, so that its workers find them loaded. Elsewhere it
    must not load them: gevent patches only later, in the worker.
    """
    if monkey.is_module_patched("socket"):
        gc.disable()
        importlib.import_module("web.app")
        system.freeze_loaded_objects()  # a collection would write to the memory that the workers share
    if settings.database_url:
        logs.configure(settings)
        sleep = monkey.get_original(
            "time", "sleep"
        )  # gevent's would start its event loop before workers are forked
        database_version.wait(settings.database_url, sleep, ask=database_version.applied_by_fork)


def post_fork(server: Any, worker: Any) -> None:
    """Prepare a forked worker for loading the app.

    Until the worker installs its own signal handlers it has the arbiter's, which would only queue a SIGTERM in the
    worker's memory. The arbiter would then wait for its graceful timeout. Garbage collection is off meanwhile, since
    loaded modules stay for good.
    """
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    gc.disable()


def post_worker_init(worker: Any) -> None:
    """Enable garbage collection, which skips the objects loaded so far."""
    system.freeze_loaded_objects()


def child_exit(server: Any, worker: Any) -> None:
    """Remove the open streams of a dead worker from the metrics. Its counters stay."""
    if counts is not None:
        from prometheus_client import multiprocess  # the arbiter has no other use for it

        multiprocess.mark_process_dead(worker.pid)


def on_exit(server: Any) -> None:
    """Ignore further signals, and remove this server's metric files.

    Python removes its signal handlers when it exits. A repeated signal would then kill the process, and its exit code
    would not be 0.
    """
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGQUIT):
        signal.signal(number, signal.SIG_IGN)
    if counts is not None:
        shutil.rmtree(counts, ignore_errors=True)


wsgi_app = "web.wsgi:app"
proc_name = "web"
bind = settings.bind
worker_class = Worker
# Leaves room for requests beside the streams. Each connection costs a greenlet and a descriptor.
worker_connections = settings.max_streams + 1000 + worker.SPARE_CONNECTIONS
timeout = 60  # of the worker's loop, not of a request
graceful_timeout = 30
keepalive = 75
limit_request_line = 4094
limit_request_fields = 64
limit_request_field_size = 8190
# By default gunicorn accepts SCRIPT_NAME from clients on the same machine. `SCRIPT_NAME: /d/NAME` would turn a request
# for `/d/NAME/v2/keys` into one for `/v2/keys`.
forwarder_headers = ""
max_requests = 0  # a restart after so many requests would cut streams
preload_app = False  # connections and greenlets belong to the worker
control_socket_disable = True
logger_class = Logger
loglevel = settings.log_level.lower()
accesslog = None
worker_tmp_dir = "/dev/shm" if Path("/dev/shm").is_dir() else None  # its heartbeat must not wait for a disk
