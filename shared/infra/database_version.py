"""Database versions: the version this code needs, the version of the database, and waiting for it.

A release works with its own version and every newer one: a migration first expands the schema, and a later one removes
what no release uses (docs/operating/upgrading.md). With an older version some statements would fail, so a process does not start.

Importing this module loads neither SQLAlchemy nor the driver: the fork server and the command line load it.
"""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sqlalchemy import Connection

log = logging.getLogger(__name__)

FIRST = "0100"  # version of the first release; migrations begin there
VERSIONS = Path(__file__).parents[1] / "migrations" / "versions"
FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 0.05, 1.0
QUIET_SECONDS, MENTION_SECONDS = 5.0, 30.0  # until the wait is logged, and between later log lines

ENCODING = "UTF8"
CREATE_ANEW = f"Create the database anew: CREATE DATABASE name ENCODING '{ENCODING}' TEMPLATE template0."
NOT_UTF8_CODE = 3  # exit code of the child


class NoDatabase(Exception):
    """The database is unreachable."""


class DevelopmentDatabase(Exception):
    """The database was made before the first release. Use an empty database, and deploy the projects again."""

    def __init__(self, version: str) -> None:
        super().__init__(f"{self.__doc__} It is at version {version}.")


class NotUtf8(NoDatabase):
    """The database has another encoding than UTF8; the message says what to do."""


def versions() -> set[str]:
    """Return the numbers of all migrations: their files' names begin with them."""
    return {path.stem.partition("_")[0] for path in VERSIONS.glob("[0-9]*.py")}


def needed() -> str:
    """Return the number of the newest migration."""
    return max(versions())


def applied(url: str) -> str | None:
    """Return the database's version, or None before the first migration. Raises NoDatabase and NotUtf8.

    Uses only the driver, because importing Alembic is slow.
    """
    import psycopg  # imported here: the import takes as long as a whole command of the CLI

    try:
        with psycopg.connect(url, connect_timeout=5) as connection:
            encoding = connection.info.parameter_status("server_encoding")
            if encoding not in (None, ENCODING):
                raise NotUtf8(f"The database of DATABASE_URL has the encoding {encoding}. {CREATE_ANEW}")
            row = connection.execute("SELECT version_num FROM alembic_version").fetchone()
    except psycopg.errors.UndefinedTable:
        return None
    except psycopg.Error as error:
        raise NoDatabase(str(error)) from error
    return row[0] if row else None


def applied_by_child(url: str) -> str | None:
    """Return the database's version without importing the driver into this process.

    A child process runs the query. psycopg decides at import how it waits for the server. If gevent patches the process
    after that import, each statement would block every greenlet. Raises NoDatabase and NotUtf8.
    """
    path = os.pathsep.join(filter(None, sys.path))
    done = subprocess.run(
        [sys.executable, "-m", __name__],
        input=url,
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": path, "PYTHONSAFEPATH": "1"},
    )
    return _read_answer(done.returncode, done.stdout or done.stderr)


def applied_by_fork(url: str) -> str | None:
    """Return the database's version as `applied_by_child` does, from a fork of this process, which starts sooner.

    Only for a process with a single Python thread. Raises NoDatabase and NotUtf8.
    """
    from gevent import monkey  # imported here: the command line does without gevent

    # gevent's functions would start its event loop in this process. `os.close` is one of them, but not `close` of a file.
    fork, waitpid = monkey.get_original("os", "fork"), monkey.get_original("os", "waitpid")
    reader, writer = os.pipe()
    with open(reader) as answers, open(writer, "w") as output:
        pid = fork()
        if pid == 0:
            code = 1
            try:
                code, answer = _answer(url)
                output.write(answer)
                output.flush()
            finally:
                os._exit(code)  # whatever happens, or the fork would go on as this process does
        output.close()
        answer = answers.read()
    return _read_answer(os.waitstatus_to_exitcode(waitpid(pid, 0)[1]), answer)


def _answer(url: str) -> tuple[int, str]:
    """Return the exit code of a child, and its answer: the version, or an error text."""
    try:
        return 0, applied(url) or ""
    except NoDatabase as error:
        return NOT_UTF8_CODE if isinstance(error, NotUtf8) else 1, str(error)


def _read_answer(code: int, answer: str) -> str | None:
    """Return the version in a child's answer. Raises NoDatabase and NotUtf8."""
    if code == NOT_UTF8_CODE:
        raise NotUtf8(answer.strip())
    if code != 0:
        raise NoDatabase(answer)
    return answer.strip() or None


def is_enough(version: str | None) -> bool:
    """Whether this code works with that database version, its own or a newer one."""
    return version is not None and version >= needed()


def refuse_development(version: str | None) -> None:
    """Raise DevelopmentDatabase if the version is older than the first release: no migration upgrades it."""
    if version is not None and version < FIRST:
        raise DevelopmentDatabase(version)


def is_current(conn: Connection) -> bool:
    """Whether the connected database has a version that this code works with."""
    if not conn.exec_driver_sql("SELECT to_regclass('alembic_version') IS NOT NULL").scalar_one():
        return False
    return is_enough(conn.exec_driver_sql("SELECT max(version_num) FROM alembic_version").scalar_one())


def wait(
    url: str,
    sleep: Callable[[float], object] = time.sleep,
    *,
    ask: Callable[[str], str | None] = applied,
) -> None:
    """Wait until the database has a sufficient version, and log what is missing.

    Raises SystemExit if its encoding is not UTF8 or it was made before the first release.

    Returns at once if the database is unreachable: processes can start without it and use it when it is back.
    """
    waited, mention_at, pause = 0.0, QUIET_SECONDS, FIRST_PAUSE_SECONDS
    while True:
        try:
            version = ask(url)
            refuse_development(version)
        except (NotUtf8, DevelopmentDatabase) as error:
            raise SystemExit(str(error)) from error
        except NoDatabase:
            return
        if is_enough(version):
            return
        if waited >= mention_at:
            state = f"is at version {version}" if version else "has no tables"
            log.warning(
                "the database %s, and this release needs %s: waiting for `python -m shared.migrations`",
                state,
                needed(),
            )
            mention_at = waited + MENTION_SECONDS
        sleep(pause)
        waited += pause
        pause = min(2 * pause, LONGEST_PAUSE_SECONDS)


if __name__ == "__main__":  # the child of `applied_by_child`, which writes the URL to its input
    exit_code, text = _answer(sys.stdin.read())
    sys.stdout.write(text)
    sys.exit(exit_code)
