"""An embedded PostgreSQL primary, and a streaming standby of it."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

import psycopg
from psycopg.conninfo import conninfo_to_dict

from cli.machine import embedded
from tests.support.servers import postgres, running

REPLICATED = ("wal_level=replica", "max_wal_senders=4", "fsync=off", "autovacuum=off")


@contextmanager
def primary(folder: Path, *settings: str) -> Iterator[str]:
    """Run a PostgreSQL that accepts standbys. Yields its URL."""
    with running(_set(postgres(folder), *REPLICATED, *settings)):
        yield embedded.postgres_url(folder)


@contextmanager
def standby(primary_url: str, folder: Path) -> Iterator[str]:
    """Run a standby of the primary. Yields its URL."""
    target = conninfo_to_dict(primary_url)
    copy = [str(embedded.postgres_program("pg_basebackup")), "-D", str(folder / "postgres")]
    copy += ["-h", str(target["host"]), "-U", str(target["user"]), "-R", "-X", "stream", "-c", "fast"]
    folder.mkdir(mode=0o700)
    subprocess.run(copy, check=True, capture_output=True)
    for lock in (folder / "postgres").glob(".s.PGSQL.*.lock"):
        lock.unlink()  # copied from the primary, whose socket is in its own folder
    url = embedded.postgres_url(folder)
    server = replace(_set(embedded.postgres(folder), *REPLICATED), is_ready=lambda pid: _answers(url))
    with running(server):
        yield url


def _answers(url: str) -> bool:
    with suppress(psycopg.OperationalError), psycopg.connect(url, connect_timeout=5):
        return True
    return False


def _set(server: embedded.Server, *settings: str) -> embedded.Server:
    return replace(server, command=[*server.command, *(part for one in settings for part in ("-c", one))])
