"""Embedded servers for tests, started as `runyard up` starts them."""

from __future__ import annotations

import atexit
import fcntl
import functools
import hashlib
import os
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from urllib.parse import quote

import psycopg

from cli import PROJECT
from cli.machine import embedded
from tests.support.waiting import wait_until


@functools.cache
def _new_cluster() -> Path:
    """Return a new PostgreSQL cluster to copy. Creating one takes a second of CPU time."""
    folder = Path(tempfile.mkdtemp(prefix="runyard-cluster-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    embedded.postgres(folder)
    return folder / "postgres"


def postgres(folder: Path) -> embedded.Server:
    """Return the embedded PostgreSQL of a data directory. Its cluster is a copy of a new one."""
    if not (folder / "postgres").exists():
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        shutil.copytree(_new_cluster(), folder / "postgres")
    return embedded.postgres(folder)


@contextmanager
def running(server: embedded.Server) -> Iterator[subprocess.Popen[bytes]]:
    """Run the server while the block runs. Yields its process once it is ready."""
    process = subprocess.Popen(
        server.command,
        preexec_fn=functools.partial(_prepare, server),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        wait_until(lambda: server.is_ready(process.pid), what=f"{server.name} to start")
        yield process
    finally:
        process.send_signal(server.stop_signal)
        process.wait(timeout=60)  # the last checkpoint takes long on a busy machine


def _prepare(server: embedded.Server) -> None:
    if server.before_exec:
        server.before_exec()
    embedded.die_with_parent(server.stop_signal)


def copy_prepared_cluster(data_dir: Path) -> None:
    """Give a data directory the files of a PostgreSQL that has all tables, which take two seconds of CPU time to create.

    The original is in `.cache`. It is created again when the code that creates tables has changed.
    """
    files = [
        path for name in ("migrations", "models", "sql") for path in (PROJECT / "shared" / name).rglob("*")
    ]
    sources = [path.read_bytes() for path in sorted(files) if path.suffix in (".py", ".sql")]
    digest = hashlib.sha256(b"".join(sources))
    cache = PROJECT / ".cache" / "clusters"
    cache.mkdir(parents=True, exist_ok=True)
    original = cache / digest.hexdigest()[:12]
    with (cache / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not original.exists():
            for other in filter(Path.is_dir, cache.iterdir()):
                shutil.rmtree(other)
            with tempfile.TemporaryDirectory(prefix="runyard-cluster-") as folder:
                with running(server := embedded.postgres(Path(folder))):
                    command = [sys.executable, "-m", "shared.migrations"]
                    env = {**os.environ, "DATABASE_URL": server.url}
                    subprocess.run(command, cwd=PROJECT, env=env, check=True)
                shutil.copytree(Path(folder) / "postgres", original)
        shutil.copytree(original, data_dir / "postgres")


def valkey_url(data_dir: Path) -> str:
    """Return the URL of the embedded Valkey of this data directory."""
    folder = data_dir / "valkey"
    path = embedded._socket_folder(folder, "valkey.sock", make=False) / "valkey.sock"
    return f"unix://:{(folder / 'password').read_text().strip()}@{quote(str(path))}?db=0"


@contextmanager
def postgres_over_tcp(folder: Path, password: str) -> Iterator[str]:
    """Run a PostgreSQL as an operator has it: on a loopback port, with a password. Yields its URL."""
    server = postgres(folder)
    (folder / "postgres" / "pg_hba.conf").write_text(
        "local all all trust\nhost all all 127.0.0.1/32 scram-sha-256\n"
    )
    port = free_port()
    options = ["-c", "listen_addresses=127.0.0.1", "-c", f"port={port}"]
    with running(replace(server, command=[*server.command, *options])):
        with psycopg.connect(f"{server.url}&port={port}", autocommit=True) as conn:
            conn.execute(f"ALTER ROLE {embedded.ROLE} PASSWORD '{password}'".encode())
        yield f"postgresql://{embedded.ROLE}:{password}@127.0.0.1:{port}/postgres"


def free_port() -> int:
    """Return a TCP port without a listener."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]
