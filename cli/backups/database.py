"""The service's database for a backup or a restore, and PostgreSQL's own programs for it."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from cli.errors import CommandFailed
from cli.machine import embedded
from cli.machine.embedded import CannotStart
from cli.machine.up import SERVER_SECONDS, locked, without_secrets
from shared.infra.postgres import driver_url
from shared.settings import Settings

APPLICATION = "backup of runyard"  # as PostgreSQL lists the session; the service's own begin with its name
VERSION = re.compile(r"\(PostgreSQL\) (\d+)")
OPTIONS = "-c statement_timeout=0 -c lock_timeout=0 -c idle_in_transaction_session_timeout=0 -c timezone=UTC"

Connection = psycopg.Connection[Any]


@contextmanager
def of_service(settings: Settings, *, alone: bool = False) -> Iterator[str]:
    """The database's address. An embedded one that does not run is started for the block.

    `alone`: the service must be stopped, and cannot be started within the block where its servers are embedded.
    """
    if settings.database_url is not None:
        yield settings.database_url
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
        connection = psycopg.connect(
            _plain(url), application_name=APPLICATION, options=OPTIONS, connect_timeout=10, autocommit=True
        )
    except psycopg.OperationalError as error:
        raise CommandFailed(f"The database does not answer: {error}") from error
    with connection:
        yield connection


def _plain(url: str) -> str:
    return driver_url(url).replace("postgresql+psycopg://", "postgresql://", 1)


# PostgreSQL's programs


@dataclass(frozen=True)
class ServerProgram:
    path: str
    major: int


def program(name: str, conn: Connection) -> str:
    """A program that can speak with this connection's server. Raises CommandFailed.

    The wheel's knows no TLS: where the connection is encrypted it must not take its place in the clear.
    """
    needed = conn.info.server_version // 10000
    found = [] if conn.pgconn.ssl_in_use else [_of_wheel(name)]
    found += [known] if (known := _of_path(name)) is not None else []
    for each in found:
        if each.major >= needed:
            return each.path
    seen = f"that of PATH is of PostgreSQL {known.major}" if known is not None else "PATH has none"
    kind = " that speaks TLS" if conn.pgconn.ssl_in_use else ""
    raise CommandFailed(
        f"The database is PostgreSQL {needed}: that needs a {name}{kind} of version {needed} or later, and {seen}."
        f" Install the package postgresql-client-{needed}."
    )


def newest(name: str) -> str:
    """A program that reads files and speaks with no server: whoever is newer reads what the others wrote."""
    known = [_of_wheel(name), _of_path(name)]
    return max((each for each in known if each is not None), key=lambda each: each.major).path


def _of_wheel(name: str) -> ServerProgram:
    path = str(embedded.postgres_program(name))
    return ServerProgram(path, _major(path))


def _of_path(name: str) -> ServerProgram | None:
    path = shutil.which(name)
    return None if path is None else ServerProgram(path, _major(path))


def _major(path: str) -> int:
    try:
        said = subprocess.run([path, "--version"], capture_output=True, text=True, check=False).stdout
    except OSError as error:
        raise CommandFailed(f"{path} cannot be started: {error.strerror}.") from error
    found = VERSION.search(said)
    return int(found[1]) if found else 0


def place(url: str) -> tuple[str, dict[str, str]]:
    """The address for a program's arguments, which everybody can read, and the password for its environment."""
    parts = conninfo_to_dict(_plain(url))
    password = parts.pop("password", None)
    environment = without_secrets(os.environ)
    if password:
        environment["PGPASSWORD"] = str(password)
    return make_conninfo("", **parts), environment
