"""`runyard health`: liveness and readiness probes of this machine's processes.

Supervisors call it every few seconds, so it imports as little as possible. `cli/__main__.py` calls this module without
loading the other commands.
"""

from __future__ import annotations

import os
import socket
import sys
import time
from collections.abc import Sequence

from shared.infra import health_socket
from shared.infra.health_socket import NoHealthAnswer
from shared.setting_values import BadSetting
from shared.settings import Settings

DATABASE = "database"
KINDS = ("web", "runner", "builder", "beat", DATABASE)
ANSWER_SECONDS = 4.0
RETRY_SECONDS = 1.0
UNHEALTHY = 1


class Unhealthy(Exception):
    """A process is unhealthy or does not exist; the message names it and the reason."""


def quick(arguments: Sequence[str]) -> int | None:
    """Run `runyard health ARGUMENTS` and return the exit code. None if typer has to parse the arguments."""
    match list(arguments):
        case [kind]:
            is_ready, pid = False, None
        case [kind, "--ready"] | ["--ready", kind]:
            is_ready, pid = True, None
        case _:
            return None
    return report(kind, is_ready=is_ready, pid=pid) if kind in KINDS else None


def report(kind: str, *, is_ready: bool, pid: int | None, wait_seconds: float = 0) -> int:
    """Check until the processes are healthy or `wait_seconds` have passed; print one line. Returns the exit code."""
    until = time.monotonic() + wait_seconds
    while True:
        try:
            print(check(Settings.from_env(os.environ), kind, is_ready=is_ready, pid=pid))
            return 0
        except BadSetting as error:
            print(error, file=sys.stderr)
            return UNHEALTHY
        except Unhealthy as error:
            if time.monotonic() + RETRY_SECONDS > until:
                print(error, file=sys.stderr)
                return UNHEALTHY
            time.sleep(RETRY_SECONDS)


def check(settings: Settings, kind: str, *, is_ready: bool, pid: int | None = None) -> str:
    """Check all processes of a kind, or only the process `pid`, and return a report line. Raises Unhealthy."""
    if kind == "web":
        return check_web(settings, "/ok?ready=1" if is_ready else "/ok")
    if kind == DATABASE:
        return _check_database(settings)
    addresses = [
        address
        for address in health_socket.addresses(settings.runtime_dir, kind)
        if pid in (None, address.pid)
    ]
    if not addresses:
        which = f"with the process id {pid} " if pid is not None else ""
        raise Unhealthy(f"No {kind} {which}answers in {settings.runtime_dir}.")
    for address in addresses:
        try:
            answer = health_socket.ask(address, ANSWER_SECONDS)
        except NoHealthAnswer as error:
            raise Unhealthy(f"{kind} {address.pid} {error}.") from error
        if is_ready and answer != health_socket.READY:
            raise Unhealthy(f"{kind} {address.pid} is not ready: {answer}.")
    return (
        f"{kind} is {'ready' if is_ready else 'live'}: {', '.join(str(address.pid) for address in addresses)}"
    )


def check_web(settings: Settings, path: str, *, timeout_seconds: float = ANSWER_SECONDS) -> str:
    """Check that web answers this path with 200 and return a report line. Raises Unhealthy."""
    where = (settings.local_host, settings.port)
    request = f"GET {path} HTTP/1.0\r\nHost: {settings.bind}\r\n\r\n"
    try:
        with socket.create_connection(where, timeout_seconds) as connection:
            connection.sendall(request.encode())
            status = connection.makefile("rb").readline(100).split()[1:2]
    except OSError as error:
        raise Unhealthy(f"web does not answer at {where[0]}:{where[1]}: {error}.") from error
    if status != [b"200"]:
        answer = status[0].decode("ascii", "replace") if status else "nothing"
        raise Unhealthy(f"web answers {path} with {answer}.")
    return f"web answers {path}"


def _check_database(settings: Settings) -> str:
    from shared.infra import database_version  # imported here: the other kinds do not need it

    if settings.database_url is None:
        raise Unhealthy("DATABASE_URL does not say which database.")
    try:
        version = database_version.applied(settings.database_url)
        database_version.refuse_development(version)
    except ModuleNotFoundError as error:
        raise Unhealthy(
            f"The package {error.name} is not installed: install runyard with its extra `server`."
        ) from error
    except (database_version.NotUtf8, database_version.DevelopmentDatabase) as error:
        raise Unhealthy(str(error)) from error
    except database_version.NoDatabase as error:
        raise Unhealthy(
            f"The database does not answer: {str(error).strip().partition(chr(10))[0]}"
        ) from error
    if not database_version.is_enough(version):
        raise Unhealthy("The database lacks tables of this release: run its migrations.")
    return f"the database has the tables of version {database_version.needed()}"
