"""The service's database for a backup or a restore."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
from sqlalchemy import Connection as EngineConnection
from sqlalchemy import NullPool, create_engine

from cli.errors import CommandFailed
from cli.machine import embedded
from cli.machine.embedded import CannotStart
from cli.machine.up import SERVER_SECONDS, locked, without_secrets
from shared.infra.postgres import driver_url
from shared.settings import Settings

APPLICATION = "backup of runyard"  # as PostgreSQL lists the session; the service's own begin with its name
OPTIONS = " ".join(
    f"-c {setting}"
    for setting in (
        "statement_timeout=0",
        "lock_timeout=0",
        "idle_in_transaction_session_timeout=0",
        # A value must read the same on every server. As pg_dump has them.
        "timezone=UTC",
        "datestyle=ISO",
        "intervalstyle=postgres",
        "bytea_output=hex",
        "extra_float_digits=3",
        "row_security=off",  # an error instead of a part of the rows
    )
)
SESSION = {"application_name": APPLICATION, "options": OPTIONS, "connect_timeout": 10}

Connection = psycopg.Connection[Any]


@contextmanager
def of_service(settings: Settings, *, alone: bool = False) -> Iterator[str]:
    """The database's address. An embedded one that does not run is started for the block.

    `alone`: the service must be stopped, and cannot be started within the block where its servers are embedded.
    """
    if settings.database_url is not None:
        yield settings.database_direct_url or settings.database_url
        return
    if not alone and _is_running(settings.data_dir):
        yield embedded.postgres_url(settings.data_dir)
        return
    if not alone:
        _require_cluster(settings.data_dir)
    settings.data_dir.mkdir(parents=True, exist_ok=True)
    settings.data_dir.chmod(0o700)
    with locked(settings.data_dir) as lock, _started(embedded.postgres(settings.data_dir), lock) as url:
        yield url


def _is_running(data_dir: Path) -> bool:
    """Whether `runyard up` has the folder."""
    try:
        with locked(data_dir):
            return False
    except CannotStart:
        return True
    except FileNotFoundError:
        return False


def _require_cluster(data_dir: Path) -> None:
    if not (data_dir / "postgres" / "PG_VERSION").exists():
        raise CommandFailed(
            f"There is no database in {data_dir}. Name the service's folder with RUNYARD_DATA_DIR, or set DATABASE_URL."
        )


@contextmanager
def _started(server: embedded.Server, lock: int) -> Iterator[str]:
    def prepare() -> None:
        if server.before_exec is not None:
            server.before_exec()
        embedded.die_with_parent(server.stop_signal)

    process = subprocess.Popen(
        server.command,
        preexec_fn=prepare,
        env={**without_secrets(os.environ), **server.environment},
        pass_fds=(lock,),
        start_new_session=True,  # Ctrl-C is ours: we stop it
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        _await(server, process)
        yield server.url
    finally:
        process.send_signal(server.stop_signal)
        process.wait()


def _await(server: embedded.Server, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + SERVER_SECONDS
    while not server.is_ready(process.pid):
        if process.poll() is not None:
            raise CannotStart(f"PostgreSQL ended with exit code {process.returncode}.")
        if time.monotonic() > deadline:
            raise CannotStart(f"PostgreSQL did not become ready within {SERVER_SECONDS:g} s.")
        time.sleep(0.05)


@contextmanager
def connected(url: str) -> Iterator[Connection]:
    """A connection outside of any transaction; raises CommandFailed."""
    try:
        connection = psycopg.connect(_plain(url), autocommit=True, **SESSION)
    except psycopg.OperationalError as error:
        raise CommandFailed(f"The database does not answer: {error}") from error
    with connection:
        yield connection


@contextmanager
def transaction(url: str) -> Iterator[tuple[EngineConnection, Connection]]:
    """One transaction, as SQLAlchemy's connection for migrations and as the driver's connection below it."""
    engine = create_engine(
        driver_url(url), poolclass=NullPool, connect_args={"prepare_threshold": None, **SESSION}
    )
    with engine.begin() as connection:
        driver = connection.connection.driver_connection
        assert isinstance(driver, psycopg.Connection)
        yield connection, driver


def message(error: Exception) -> str:
    """Return what PostgreSQL says, as one line. It quotes rows, so control characters are replaced."""
    said = str(getattr(error, "orig", error))  # SQLAlchemy adds the statement
    text = "".join(c if c.isprintable() else " " for c in said)
    return " ".join(text.split())


def _plain(url: str) -> str:
    return driver_url(url).replace("postgresql+psycopg://", "postgresql://", 1)
