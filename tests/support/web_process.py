"""The web process as the Procfile starts it, for tests over a real socket."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx

from shared.infra import encryption
from tests.support.stack import free_port
from tests.support.waiting import wait_until

ROOT = Path(__file__).parents[2]
KEY = "an-operator-key-for-tests"


def answers(base: str) -> bool:
    try:
        return httpx.get(f"{base}/ok").status_code == 200
    except httpx.TransportError:
        return False


@contextmanager
def started(
    database: str, data_dir: Path, *, app: str = "web.wsgi:app", **more: str
) -> Iterator[tuple[subprocess.Popen[bytes], str]]:
    """Run gunicorn and yield its process and URL. Redis is unreachable unless `more` names a server."""
    port = free_port()
    settings = {
        "PATH": os.environ["PATH"],
        "DATABASE_URL": database,
        "REDIS_URL": "redis://127.0.0.1:1/0",
        "RUNYARD_PORT": str(port),
        "RUNYARD_API_KEY": KEY,
        "RUNYARD_ENCRYPTION_KEYS": encryption.new_key(),
        "RUNYARD_DATA_DIR": str(data_dir),
        **more,
    }
    command = [sys.executable, "-m", "gunicorn", "-c", "web/gunicorn.py", app]
    with subprocess.Popen(command, cwd=ROOT, env=settings) as process:
        try:
            wait_until(lambda: answers(f"http://127.0.0.1:{port}"), timeout=120)
            yield process, f"http://127.0.0.1:{port}"
        finally:
            process.terminate()
