"""Connections to the service's database for a backup or a restore."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
from psycopg.abc import Params, QueryNoTemplate
from sqlalchemy import Connection as EngineConnection
from sqlalchemy import NullPool, create_engine

from cli.errors import CannotStart, CommandFailed
from cli.machine import embedded
from cli.machine.up import SERVER_SECONDS, locked, without_secrets
from shared.infra.postgres import driver_url
from shared.settings import Settings

# The session's name in pg_stat_activity. It must not begin with `runyard`, as the names of the service's sessions do.
APPLICATION = "backup of runyard"
OPTIONS = " ".join(
    f"-c {setting}"
    for setting in (
        "statement_timeout=0",
        "lock_timeout=0",
        "idle_in_transaction_session_timeout=0",
        # The settings of pg_dump: each value then has the same text on every server.
        "timezone=UTC",
        "datestyle=ISO",
        "intervalstyle=postgres",
        "bytea_output=hex",
        "extra_float_digits=3",
        "row_security=off",  # raises an error where a policy would hide rows
    )
)
SESSION = {"application_name": APPLICATION, "options": OPTIONS, "connect_timeout": 10}

Connection = psycopg.Connection[Any]


@contextmanager
def service_url(settings: Settings, *, is_stopped: bool = False) -> Iterator[str]:
    """Yield the database's URL. Start an embedded PostgreSQL for the block if it is not running.

    `is_stopped`: the service must be stopped, and one with embedded servers cannot be started during the block.
    Raises CannotStart, and CommandFailed if there is no database.
    """
    folder = settings.data_dir
    if settings.database_url is not None:
        yield settings.database_direct_url or settings.database_url
        return
    if not is_stopped and _is_running(folder):
        yield embedded.postgres_url(folder)
        return
    if not is_stopped and not embedded.has_cluster(folder):
        raise CommandFailed(
            f"There is no database in {folder}. Name the service's folder with RUNYARD_DATA_DIR, or set DATABASE_URL."
        )
    folder.mkdir(parents=True, exist_ok=True)
    folder.chmod(0o700)
    with locked(folder) as lock, _start(embedded.postgres(folder), lock) as url:
        yield url


def _is_running(data_dir: Path) -> bool:
    """Return whether another process, such as `runyard up`, holds the data directory's lock."""
    try:
        with locked(data_dir):
            return False
    except CannotStart:
        return True
    except FileNotFoundError:
        return False


@contextmanager
def _start(server: embedded.Server, lock: int) -> Iterator[str]:
    def prepare() -> None:
        if server.before_exec is not None:
            server.before_exec()
        embedded.die_with_parent(server.stop_signal)

    process = subprocess.Popen(
        server.command,
        preexec_fn=prepare,
        env={**without_secrets(os.environ), **server.environment},
        pass_fds=(lock,),
        start_new_session=True,  # Ctrl-C must not reach PostgreSQL: this process stops it in good order
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        _wait_until_ready(server, process)
        yield server.url
    finally:
        process.send_signal(server.stop_signal)
        process.wait()


def _wait_until_ready(server: embedded.Server, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + SERVER_SECONDS
    while not server.is_ready(process.pid):
        if process.poll() is not None:
            raise CannotStart(f"PostgreSQL ended with exit code {process.returncode}.")
        if time.monotonic() > deadline:
            raise CannotStart(f"PostgreSQL did not become ready within {SERVER_SECONDS:g} s.")
        time.sleep(0.05)


@contextmanager
def connected(url: str) -> Iterator[Connection]:
    """Open a connection in autocommit mode. Raises CommandFailed."""
    plain_url = driver_url(url).replace("postgresql+psycopg://", "postgresql://", 1)
    try:
        connection = psycopg.connect(plain_url, autocommit=True, **SESSION)
    except psycopg.OperationalError as error:
        raise CommandFailed(f"The database does not answer: {error}") from error
    with connection:
        yield connection


@contextmanager
def transaction(url: str) -> Iterator[tuple[EngineConnection, Connection]]:
    """Open one transaction. Yields SQLAlchemy's connection, for migrations, and the psycopg connection that it uses."""
    engine = create_engine(
        driver_url(url), poolclass=NullPool, connect_args={"prepare_threshold": None, **SESSION}
    )
    with engine.begin() as connection:
        driver = connection.connection.driver_connection
        assert isinstance(driver, psycopg.Connection)
        yield connection, driver


def scalar(conn: Connection, query: QueryNoTemplate, parameters: Params | None = None) -> Any:
    """Return the first value of a query's first row. None: there is no row."""
    row = conn.execute(query, parameters).fetchone()
    return row[0] if row else None


def message(error: Exception) -> str:
    """Return PostgreSQL's error message as one line. It may quote rows, so unprintable characters become spaces."""
    text = str(getattr(error, "orig", error))  # the text of SQLAlchemy's own error includes the statement
    return " ".join("".join(c if c.isprintable() else " " for c in text).split())
