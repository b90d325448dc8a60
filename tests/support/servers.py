"""Embedded servers for tests, started as `runyard up` starts them."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from urllib.parse import quote

from cli import embedded
from tests.support.waiting import wait_until


@contextmanager
def running(server: embedded.Server) -> Iterator[subprocess.Popen[bytes]]:
    """The server's process, ready, and stopped at the end of the block."""
    process = subprocess.Popen(
        server.command,
        preexec_fn=partial(_prepare, server),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        wait_until(lambda: server.is_ready(process.pid), what=f"{server.name} to start")
        yield process
    finally:
        process.send_signal(server.stop_signal)
        process.wait(timeout=60)  # its last checkpoint takes long on a busy machine


def _prepare(server: embedded.Server) -> None:
    if server.before_exec:
        server.before_exec()
    embedded.die_with_parent(server.stop_signal)


def valkey_url(data_dir: Path) -> str:
    """Where the embedded Valkey of this data directory listens."""
    folder = data_dir / "valkey"
    path = embedded._socket_folder(folder, "valkey.sock", make=False) / "valkey.sock"
    return f"unix://:{(folder / 'password').read_text().strip()}@{quote(str(path))}?db=0"
