"""A PostgreSQL or Valkey of the installation's wheels, alone in a temporary folder."""

from __future__ import annotations

import subprocess
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Self

from bench.targets import TargetError
from cli.machine import embedded

START_SECONDS, STOP_SECONDS = 30.0, 30.0


class EmbeddedServer:
    """A running server. As a child of this process, its CPU time can count for a target in this process."""

    def __init__(self, make: Callable[[Path], embedded.Server]) -> None:
        """Start the server and wait until it is ready. Raises TargetError."""
        self._folder = tempfile.TemporaryDirectory(prefix="bench-", ignore_cleanup_errors=True)
        try:
            server = make(Path(self._folder.name))
        except embedded.CannotStart as error:
            raise TargetError(str(error)) from error
        self.url, self._stop_signal = server.url, server.stop_signal
        self._process = subprocess.Popen(
            server.command,
            preexec_fn=partial(_prepare, server),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        self.pid = self._process.pid
        ends_at = time.monotonic() + START_SECONDS
        while not server.is_ready(self.pid):
            if self._process.poll() is not None or time.monotonic() > ends_at:
                self.stop()
                raise TargetError(f"the {server.name} of this benchmark did not start")
            time.sleep(0.02)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.stop()

    def stop(self) -> None:
        self._process.send_signal(self._stop_signal)
        try:
            self._process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._folder.cleanup()


def _prepare(server: embedded.Server) -> None:
    if server.before_exec:
        server.before_exec()
    embedded.die_with_parent(server.stop_signal)
