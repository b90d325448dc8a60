"""Checks of `runyard doctor` for PostgreSQL: server, connection limit, clock, schema, workers, keys and read replica.

Functions import the database layer: other checks report an installation that lacks it.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from cli.doctor.findings import Finding, UnreadableAddress, check_address, fails, masked, ok, warning
from cli.errors import CommandFailed
from cli.machine import embedded, procfile
from shared import __version__
from shared.infra import system
from shared.infra.database_version import (
    CREATE_ANEW,
    ENCODING,
    DevelopmentDatabase,
    needed,
    refuse_development,
)
from shared.setting_values import BadSetting, Formation
from shared.settings import Settings

CONNECT_SECONDS = 5
OLDEST_SERVER = 140000
CLOCK_SECONDS = 5.0
CHECKED_VALUES = 1000  # maximum values decrypted per encrypted column
EXAMPLE = "postgresql://USER:PASSWORD@HOST:5432/NAME"

LOOK = """
SELECT current_setting('server_encoding') AS encoding, current_setting('server_version') AS version, current_setting('server_version_num')::int AS number,
    current_setting('max_connections')::int AS most,
    current_setting('superuser_reserved_connections')::int
        + coalesce(current_setting('reserved_connections', true), '0')::int AS reserved,
    (SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()
        AND application_name NOT LIKE 'runyard%%') AS others,
    pg_is_in_recovery() OR current_setting('default_transaction_read_only') = 'on' AS is_readonly,
    has_schema_privilege(current_schema(), 'CREATE') AS may_create,
    extract(epoch FROM clock_timestamp())::float8 AS time,
    to_regclass('alembic_version') IS NOT NULL AS has_schema
"""
SCHEMA = "SELECT version_num FROM alembic_version"
WORKERS = """
SELECT kind, version, count(*) AS number, min(isolation) AS isolation FROM worker
WHERE NOT {silent} GROUP BY kind, version ORDER BY kind, version
"""


@dataclass(frozen=True)
class Database:
    """The state of a PostgreSQL server, read once."""

    encoding: str
    version: str
    number: int
    most: int
    reserved: int
    others: int
    is_readonly: bool
    may_create: bool
    behind_seconds: float  # how far this machine's clock is behind the database's
    schema: str | None
    workers: list[dict[str, Any]]

    @property
    def usable(self) -> int:
        """Connections available to unprivileged roles."""
        return self.most - self.reserved


class CannotLook(Exception):
    """The database cannot be examined; the finding gives the reason."""

    def __init__(self, finding: Finding) -> None:
        super().__init__(finding.found)
        self.finding = finding


def check(settings: Settings) -> Iterator[Finding]:
    """Yield the findings about PostgreSQL, the schema, the workers and the encryption keys."""
    url = settings.database_url
    where = "PostgreSQL"
    if url is None:
        running = (settings.data_dir / "postgres" / "postmaster.pid").exists()
        if not running:
            yield _not_started(settings)
            yield _keys_without_database(settings)
            return
        url, where = embedded.postgres_url(settings.data_dir), "PostgreSQL (embedded)"
    try:
        database = _read_state(url, is_embedded=settings.database_url is None)
    except CannotLook as error:
        yield error.finding
        yield _keys_without_database(settings)
        return
    started = settings.processes
    if settings.database_url is None:
        started = procfile.formation_of(settings, system.processors())
    yield from judge(database, where, is_pooled=settings.database_pooler != "none", started=started)
    if settings.database_read_url is not None:
        yield _replica(settings.database_read_url)
    yield schema(database)
    yield from _workers(database)
    yield _keys(settings, url, database)


def _not_started(settings: Settings) -> Finding:
    name = "PostgreSQL"
    try:
        embedded.check(settings.data_dir)
        version = embedded.version(embedded.postgres_program("postgres"))
    except embedded.CannotStart as error:
        return fails(
            name, str(error), "Run as an ordinary user, or set DATABASE_URL to a server of your own."
        )
    return ok(name, f"{version} embedded, not started: `runyard up` starts it in the data directory")


def _read_state(url: str, *, is_embedded: bool) -> Database:
    """Read the state of the database. Raises CannotLook."""
    import psycopg  # imported here: it takes as long as a whole other command, and no other command needs it
    from psycopg.rows import dict_row

    try:
        check_address(url, ("postgresql", "postgres"))
    except UnreadableAddress as error:
        advice = f"Write it as {EXAMPLE}, with %40 for an @ in the password and %2F for a /."
        raise CannotLook(fails("DATABASE_URL", "cannot be read as an address", advice)) from error
    try:
        with psycopg.Connection[dict[str, Any]].connect(
            url,
            connect_timeout=CONNECT_SECONDS,
            application_name="runyard doctor",
            client_encoding="UTF8",  # with SQL_ASCII the driver would return bytes
            row_factory=dict_row,  # type: ignore[arg-type]
        ) as conn:
            conn.read_only = True
            row = conn.execute(LOOK).fetchone() or {}
            now = time.time()
            version = conn.execute(SCHEMA).fetchone() if row["has_schema"] else None
            workers = (
                conn.execute(_workers_query()).fetchall() if row["has_schema"] and _has_workers(conn) else []
            )
    except psycopg.ProgrammingError as error:
        if error.sqlstate is not None:
            raise CannotLook(fails("DATABASE_URL", masked(str(error), url), _advice(None))) from error
        advice = f"Write it as {EXAMPLE}."
        raise CannotLook(fails("DATABASE_URL", "cannot be read as an address", advice)) from error
    except psycopg.Error as error:
        if is_embedded:
            advice = "It is starting or was killed: `runyard up` starts it again."
            raise CannotLook(
                warning("PostgreSQL", "embedded, and does not answer: is it stopped?", advice)
            ) from error
        raise CannotLook(fails("DATABASE_URL", masked(str(error), url), _advice(error.sqlstate))) from error
    row.pop("has_schema")
    schema = version["version_num"] if version else None
    behind_seconds = row.pop("time") - now
    return Database(**row, behind_seconds=behind_seconds, schema=schema, workers=workers)


def _replica(url: str) -> Finding:
    """Check the read replica. An unreachable one is only a warning, because reads fall back to the primary."""
    import psycopg

    name = "DATABASE_READ_URL"
    advice = "Name a streaming standby, or leave it out: the primary is read meanwhile."
    try:
        check_address(url, ("postgresql", "postgres"))
        with psycopg.connect(url, connect_timeout=CONNECT_SECONDS, application_name="runyard doctor") as conn:
            row = conn.execute("SELECT pg_is_in_recovery(), current_setting('server_version')").fetchone()
    except UnreadableAddress:
        return fails(name, "cannot be read as an address", f"Write it as {EXAMPLE}.")
    except psycopg.Error as error:
        return warning(name, masked(str(error), url), advice)
    is_standby, version = row or (False, "")
    return ok(name, f"a standby, {version}") if is_standby else warning(name, "no standby", advice)


def _workers_query() -> bytes:
    from shared.models import is_silent  # imported here: it loads SQLAlchemy, which few commands need

    return WORKERS.format(silent=is_silent()).encode()  # psycopg's types accept `str` only as a literal


def _has_workers(conn: Any) -> bool:
    """Whether the `worker` table exists and this role may read it."""
    cursor = conn.execute(
        "SELECT coalesce(has_table_privilege(to_regclass('worker'), 'SELECT'), false) AS may"
    )
    return cursor.fetchone()["may"]


def _advice(state: str | None) -> str:
    known = {
        "28P01": "Check user and password in DATABASE_URL.",
        "28000": "Check the user in DATABASE_URL and the server's pg_hba.conf.",
        "3D000": "Create the database, or name another one in DATABASE_URL.",
        "53300": "Raise max_connections of the server, or stop what uses it.",
    }
    return known.get(state or "", "Check host, port, user and password in DATABASE_URL, and that it runs.")


# Judging the state of the database


def judge(database: Database, where: str, *, is_pooled: bool, started: Formation = ()) -> Iterator[Finding]:
    """Yield the findings about a server that answers."""
    if database.number < OLDEST_SERVER:
        yield fails(where, database.version, "PostgreSQL 14 or newer is needed: upgrade the server.")
    elif database.is_readonly:
        advice = "Name the primary server in DATABASE_URL: a standby takes no writes."
        yield fails(where, f"{database.version}, and takes no writes", advice)
    elif database.encoding != ENCODING:
        text = f"{database.version}, and the database has the encoding {database.encoding}"
        yield fails(where, text, CREATE_ANEW)
    else:
        yield ok(where, database.version)
    if is_pooled:
        yield ok("max_connections", f"{database.usable} usable of {database.most}, shared out by PgBouncer")
    else:
        yield connections(database, started)
    yield _clock(database)


def connections(database: Database, started: Formation = ()) -> Finding:
    """Compare `max_connections` with the maximum that the processes may open.

    Counts at least one process of each kind, those that `runyard up` starts here, or the running workers if they are
    more.
    """
    from shared.infra.postgres import MOST_CONNECTIONS  # imported here: it loads SQLAlchemy

    counted = {"web": 1, "runner": 1, "builder": 1, **dict(started)}
    for kind in ("runner", "builder"):
        counted[kind] = max(
            counted[kind], sum(row["number"] for row in database.workers if row["kind"] == kind)
        )
    need = sum(MOST_CONNECTIONS[kind] * number for kind, number in counted.items())
    processes = ", ".join(f"{number} {kind}" for kind, number in counted.items())
    text = f"{database.usable} usable of {database.most}; {processes} may take {need}"
    if database.others:
        text += f", others have {database.others}"
    name = "max_connections"
    advice = "Raise max_connections of PostgreSQL (a restart), or put PgBouncer before it."
    if database.usable < need:
        return fails(name, text, advice)
    if database.usable < need + database.others:
        return warning(name, text, advice)
    return ok(name, text)


def _clock(database: Database) -> Finding:
    away = database.behind_seconds
    if abs(away) < CLOCK_SECONDS:
        return ok("clock", f"within {CLOCK_SECONDS:g} s of the database's")
    relation = "behind" if away > 0 else "ahead of"
    return warning(
        "clock",
        f"{abs(away):.0f} s {relation} the database's",
        "Set this machine's clock by NTP: stamps in logs are wrong, leases are the database's and are not.",
    )


def schema(database: Database) -> Finding:
    """Compare the applied migrations with those of this release."""
    newest, applied = needed(), database.schema
    if applied == newest:
        return ok("schema", f"version {applied}, as the code's")
    if applied is not None and applied > newest:
        advice = f"An older release works on it; upgrade this one ({__version__}) when the others are."
        return warning("schema", f"version {applied}, the code's is {newest}", advice)
    text = f"version {applied}, the code's is {newest}" if applied else "not there yet"
    try:
        refuse_development(applied)
    except DevelopmentDatabase as error:
        return fails("schema", text, str(error))
    if not database.may_create:
        advice = "Let the role of DATABASE_URL create tables: GRANT CREATE ON SCHEMA public."
        return fails("schema", f"{text}, and this role may not create tables", advice)
    return warning("schema", text, "`runyard up` or `runyard process release` brings it up to date.")


def _workers(database: Database) -> Iterator[Finding]:
    if not database.workers:
        return
    text = ", ".join(f"{row['number']} {row['kind']} {row['version']}" for row in database.workers)
    if any(row["version"] != __version__ for row in database.workers):
        advice = "Upgrade all of them when the rolling upgrade is done."
        yield warning("workers", f"{text}; here is {__version__}", advice)
    else:
        yield ok("workers", f"{text}, isolation level {min(row['isolation'] for row in database.workers)}")


# Keys


def _keys_without_database(settings: Settings) -> Finding:
    if bad := _configure(settings):
        return bad
    if _has_keys(settings):
        return ok("encryption keys", f"{_origin(settings)}; nothing can be read to try them")
    return ok("encryption keys", "none yet: `runyard up` makes one, other processes need one set")


def _keys(settings: Settings, url: str, database: Database) -> Finding:
    name = "encryption keys"
    if not _has_keys(settings):
        advice = "Set RUNYARD_ENCRYPTION_KEYS as the other processes have it (`runyard encryption new-key`)."
        return warning(name, "none: `runyard up` would make one, no other process starts without", advice)
    if bad := _configure(settings):
        return bad
    if database.schema != needed():
        return ok(name, f"{_origin(settings)}; tried when the schema is this code's")
    return _try_keys(settings, url)


def _try_keys(settings: Settings, url: str) -> Finding:
    from sqlalchemy.exc import SQLAlchemyError

    from cli.machine import local  # imported here: it loads SQLAlchemy
    from shared.infra import key_rotation

    name = "encryption keys"
    try:
        with local.connected(settings):
            counts = key_rotation.check(CHECKED_VALUES)
    except (CommandFailed, SQLAlchemyError) as error:
        return warning(
            name,
            f"what is stored cannot be read: {masked(str(getattr(error, 'orig', error)), url)}",
            "Let the role of DATABASE_URL read all tables.",
        )
    if counts[key_rotation.UNREADABLE]:
        return fails(
            name,
            f"{counts[key_rotation.UNREADABLE]} of {counts.total()} stored values are read by none of them",
            "Add the key that is missing to RUNYARD_ENCRYPTION_KEYS.",
        )
    if counts[key_rotation.ROTATED]:
        return warning(
            name,
            f"{counts[key_rotation.ROTATED]} of {counts.total()} stored values need an older key",
            "`runyard encryption rotate` encrypts them with the first key.",
        )
    return ok(name, f"{_origin(settings)}; they read what is stored ({counts.total()} values)")


def _configure(settings: Settings) -> Finding | None:
    """Configure the encryption keys. Returns a finding if they are invalid."""
    from shared.infra import encryption

    try:
        encryption.configure(settings.encryption_keys or _kept(settings))
    except (BadSetting, OSError) as error:
        advice = "`runyard encryption new-key` shows how one looks; keep those that were in use."
        return fails("encryption keys", str(error), advice)
    return None


def _has_keys(settings: Settings) -> bool:
    return bool(settings.encryption_keys) or embedded.key_file(settings.data_dir).exists()


def _kept(settings: Settings) -> tuple[str, ...]:
    path = embedded.key_file(settings.data_dir)
    return embedded.read_keys(path) if path.exists() else ()


def _origin(settings: Settings) -> str:
    if settings.encryption_keys:
        return f"{len(settings.encryption_keys)} in RUNYARD_ENCRYPTION_KEYS"
    return f"{len(_kept(settings))} in {embedded.key_file(settings.data_dir).name}"
