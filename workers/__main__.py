"""Start a worker process: `python -m workers -P gevent …`, with the options of `celery worker`.

The `celery` command is not used for two reasons. It patches the standard library for gevent only after it has imported
a part of kombu, which keeps the unpatched `sleep`. When the broker is unreachable, kombu's pauses would then block
every greenlet of the process for seconds: no lease is renewed and no event is sent. It also loads all other commands of
Celery, including a shell, which is a third of a worker's startup.
"""

from __future__ import annotations

import gc

# Modules loaded from here on stay in memory (`workers/app.py`). The collector would scan them again and again.
gc.disable()

from gevent import monkey  # noqa: E402

monkey.patch_all()

import os  # noqa: E402  the patch must come before every other import
import sys  # noqa: E402
import warnings  # noqa: E402

from celery.bin.base import CLIContext  # noqa: E402
from celery.bin.worker import worker  # noqa: E402

from shared.settings import Settings  # noqa: E402
from workers.app import app  # noqa: E402

# Set by the Procfile. Disables Celery's own heartbeats, which only its tools read.
SILENT = "--without-heartbeat"

# Celery warns if the service runs as root. The isolation level, logged at startup, already says what that means.
warnings.filterwarnings("ignore", message="You're running the worker with superuser privileges")

if __name__ == "__main__":
    if Settings.from_env(os.environ).celery_control:
        sys.argv = [argument for argument in sys.argv if argument != SILENT]
    # As the `celery` command does.
    worker.params.extend(app.user_options["worker"])  # pyright: ignore[reportOptionalSubscript]
    worker(obj=CLIContext(app=app, no_color=None, workdir=None, quiet=True), prog_name="python -m workers")
