"""Simulate a full disk for a process."""

from __future__ import annotations

import os
import resource
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from unittest.mock import patch

import psycopg

from cli.machine import embedded
from tests.support.servers import free_port, postgres, running
from workers.isolation import bubblewrap

SANDBOX = bubblewrap.find(None).program  # lets an unprivileged user mount a small disk
DISK_BYTES = 96 * 1024**2


@contextmanager
def largest_file(size: int) -> Iterator[None]:
    """Limit the size in bytes of any file that this process and its children write.

    Also turns off bytecode files: Python before 3.14 keeps a truncated bytecode file, and no process can then import
    the module.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    with patch.object(sys, "dont_write_bytecode", True), patch.dict(os.environ, PYTHONDONTWRITEBYTECODE="1"):
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
        try:
            yield
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@contextmanager
def database_on_a_small_disk(folder: Path) -> Iterator[str]:
    """Run a PostgreSQL on a disk of DISK_BYTES and yield its URL. The disk is in memory, visible only to the server."""
    server = postgres(folder)
    cluster, original = folder / "postgres", folder / "original"
    cluster.rename(original)
    cluster.mkdir(mode=0o700)
    os.chown(cluster, original.stat().st_uid, original.stat().st_gid)
    port = free_port()
    url = f"postgresql://{embedded.ROLE}@127.0.0.1:{port}/postgres"
    begin = f'cp -a "{original}/." "{cluster}" && chmod 700 "{cluster}" && exec "$@"'
    command = [
        str(SANDBOX), "--unshare-user", "--unshare-pid", "--die-with-parent", "--dev-bind", "/", "/",
        "--size", str(DISK_BYTES), "--tmpfs", str(cluster), "--", "/bin/sh", "-c", begin, "sh",
        *server.command, "-c", "fsync=off", "-c", "listen_addresses=127.0.0.1", "-c", f"port={port}",
    ]  # fmt: skip

    def answers(pid: int) -> bool:
        try:
            psycopg.connect(url, connect_timeout=5).close()
            return True
        except psycopg.OperationalError:
            return False

    small = replace(server, command=command, is_ready=answers, stop_signal=signal.SIGKILL)
    with running(small):
        yield url


def fill(url: str) -> None:
    """Insert rows until the database's disk is full. Dropping the table `filler` frees the space."""
    with psycopg.connect(url, autocommit=True) as conn:
        conn.execute("CREATE UNLOGGED TABLE filler (n bigint)")  # needs no space in the write-ahead log
        rows = 1_000_000
        while rows:
            try:
                conn.execute("INSERT INTO filler SELECT generate_series(1, %s)", (rows,))
            except psycopg.errors.DiskFull:
                rows //= 10
