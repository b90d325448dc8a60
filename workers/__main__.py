"""Starts a worker process: `python -m workers -P gevent …`, with the options of `celery worker`.

Why not the `celery` command: it patches the standard library for gevent only after it has imported a part
of kombu that has taken the real `sleep` by then. Whenever the broker is away, its pauses then stop every
greenlet of the process for seconds: no lease is renewed and no event travels. And it loads all its other commands,
a shell among them: a third of what a worker needs to start.
"""

from __future__ import annotations

import gc

# What is loaded from here on stays (`workers/app.py`): the collector would look through it again and again.
gc.disable()

from gevent import monkey  # noqa: E402

monkey.patch_all()

import os  # noqa: E402  the patch comes before every other import
import sys  # noqa: E402
import warnings  # noqa: E402

from celery.bin.base import CLIContext  # noqa: E402
from celery.bin.worker import worker  # noqa: E402

from shared.settings import Settings  # noqa: E402
from workers.app import app  # noqa: E402

SILENT = (
    "--without-heartbeat"  # what the Procfile says: of Celery's own heartbeats, which only its tools read
)

# Of a service that runs as root: the isolation level, logged at the start, says what that means.
warnings.filterwarnings("ignore", message="You're running the worker with superuser privileges")

if __name__ == "__main__":
    if Settings.from_env(os.environ).celery_control:
        sys.argv = [argument for argument in sys.argv if argument != SILENT]
    worker(obj=CLIContext(app=app, no_color=None, workdir=None, quiet=True), prog_name="python -m workers")
