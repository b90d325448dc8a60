"""Database migrations: `upgrade(url)` upgrades a database to the newest version of shared/models.

    python -m shared.migrations                 upgrade the database of DATABASE_URL
    python -m shared.migrations new "subject"   write the next version from the changes of the models

There is no alembic.ini: the database URL is a setting of the service, and all other options are fixed.

Processes of the previous release keep running during an upgrade. Each version is applied in a separate transaction. If
the transaction cannot lock a table within seconds, it is rolled back and tried again. tests/unit/test_expanding.py
checks which changes a version may contain.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
from alembic import command, context, op
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from sqlalchemy import Connection, Engine, NullPool, create_engine, event, text
from sqlalchemy.exc import OperationalError

from shared import store_vectors
from shared.access.api_keys import ensure_default_organization
from shared.infra import database_version
from shared.infra.postgres import driver_url, session_defaults

log = logging.getLogger(__name__)

# Advisory lock that allows one process at a time to migrate.
LOCK = 0x72756E79617264
TRIES, PAUSE_SECONDS = 60, 1.0
IN_USE = (psycopg.errors.LockNotAvailable, psycopg.errors.DeadlockDetected)
FOLDER = Path(__file__).parent
IN_CALLERS_TRANSACTION = "in_callers_transaction"  # attribute of Alembic's configuration
STATEMENT_TIMEOUT_SECONDS = 30  # for sessions of a transaction pooler

# A transaction that waits for a table's lock blocks all later queries on the table, so it waits for 3 seconds at most
# and is then tried again. Other timeouts, which the role may have for the service's sessions, are disabled: a migration
# may take long.
LIMITS = "SET LOCAL lock_timeout = '3s'; SET LOCAL statement_timeout = 0; SET LOCAL idle_in_transaction_session_timeout = 0"


def upgrade(url: str, *, pooler: str = "none") -> None:
    """Apply missing versions, prepare optional extensions, and create the default organization. Safe to repeat.

    Leaves a database of a newer release unchanged. A transaction pooler does not allow settings per session, so with
    `pooler="transaction"` the role gets the service's session settings as defaults. Raises database_version.DevelopmentDatabase.
    """
    engine = _engine(url)
    event.listen(engine, "begin", lambda connection: connection.exec_driver_sql(LIMITS))
    with _alone(engine), engine.connect() as connection:
        version = _version(connection)
        if version is not None and version > database_version.needed():
            log.warning(
                "the database is at version %s, newer than this release's %s",
                version,
                database_version.needed(),
            )
            return
        database_version.refuse_development(version)
        for attempt in range(1, TRIES + 1):
            try:
                command.upgrade(config(connection), "head")
                break
            except OperationalError as error:
                connection.rollback()
                if not isinstance(error.orig, IN_USE) or attempt == TRIES:
                    raise
                log.warning("a table is in use: retrying version %s", _version(connection))
                time.sleep(PAUSE_SECONDS)
        connection.commit()
        with connection.begin():
            if pooler == "transaction":
                _set_defaults(connection)
            store_vectors.prepare(connection)
            ensure_default_organization(connection)


def upgrade_in_transaction(connection: Connection, version: str) -> None:
    """Apply missing versions up to `version` in the caller's transaction. No other process may write to the tables."""
    command.upgrade(config(connection, in_callers_transaction=True), version)


@contextmanager
def _alone(engine: Engine) -> Iterator[None]:
    """Keep other processes from migrating during the block.

    CREATE INDEX CONCURRENTLY waits for all transactions with an older snapshot. A query keeps its snapshot until the
    next statement of its transaction. Processes therefore poll for the lock instead of waiting for it in a query, and
    the holder's last statement is a SET, which takes no snapshot.
    """
    with engine.connect() as holder:
        while not holder.execute(text("SELECT pg_try_advisory_xact_lock(:key)"), {"key": LOCK}).scalar_one():
            holder.rollback()
            time.sleep(PAUSE_SECONDS)
        holder.execute(text("SET LOCAL idle_in_transaction_session_timeout = 0"))
        yield


def _version(connection: Connection) -> str | None:
    """Return the version of the database, or None before the first version."""
    version = MigrationContext.configure(connection).get_current_revision()
    connection.rollback()  # otherwise Alembic would migrate inside this open transaction
    return version


def _engine(url: str) -> Engine:
    """Return an engine that prepares no statements.

    A prepared statement would stay in a pooler's session, under a name that other clients of the pooler use, too.
    """
    return create_engine(driver_url(url), poolclass=NullPool, connect_args={"prepare_threshold": None})


def _set_defaults(connection: Connection) -> None:
    """Store the service's session settings as the role's defaults in this database."""
    database = connection.execute(text("SELECT quote_ident(current_database())")).scalar_one()
    for name, value in session_defaults(STATEMENT_TIMEOUT_SECONDS).items():
        connection.execute(text(f"ALTER ROLE CURRENT_USER IN DATABASE {database} SET {name} = '{value}'"))


def write_version(url: str, subject: str) -> None:
    """Write the file of the next version from the difference between the models and an up-to-date database."""
    engine = _engine(url)
    with engine.connect() as connection:
        number = f"{int(database_version.needed()) + 1:04}"
        command.revision(config(connection), subject, autogenerate=True, rev_id=number)


def is_compared(_: object, name: str | None, kind: str, *__: object) -> bool:
    """Return whether Alembic compares an object with shared/models.

    Excludes the table of store vectors, which does not exist without an optional extension.
    """
    return (kind, name) != ("table", store_vectors.NAME)


def config(connection: Connection, *, in_callers_transaction: bool = False) -> Config:
    """Return Alembic's configuration for the given connection."""
    settings = Config()
    settings.set_main_option("script_location", str(FOLDER).replace("%", "%%"))
    settings.set_main_option("path_separator", "os")
    settings.set_main_option("file_template", "%%(rev)s_%%(slug)s")
    settings.attributes["connection"] = connection
    settings.attributes[IN_CALLERS_TRANSACTION] = in_callers_transaction
    return settings


# Schema changes that do not block writers, for versions.

# CREATE INDEX CONCURRENTLY waits for older transactions. The timeout ends the wait for one that does not end.
WAIT, AS_BEFORE = (
    "SET lock_timeout = '60s'; SET statement_timeout = 0",
    "RESET lock_timeout; RESET statement_timeout",
)


def create_index(name: str, table: str, columns: Sequence[Any], **options: Any) -> None:
    """Create an index while rows are written. Replaces the invalid index of an interrupted attempt.

    Runs outside the migration's transaction. A failed migration is executed again from its beginning, so all its other
    operations must use `if_not_exists` or `if_exists`.
    """
    with _beside_writers() as concurrently:
        op.drop_index(name, table, if_exists=True, postgresql_concurrently=concurrently)
        op.create_index(name, table, columns, postgresql_concurrently=concurrently, **options)


def drop_index(name: str, table: str) -> None:
    """Drop an index while rows are written."""
    with _beside_writers() as concurrently:
        op.drop_index(name, table, if_exists=True, postgresql_concurrently=concurrently)


@contextmanager
def _beside_writers() -> Iterator[bool]:
    """Leave the migration's transaction for the block. Yields whether an index can be changed concurrently.

    In a transaction of the caller (`upgrade_in_transaction`) it cannot, but no other process writes to the
    tables then.
    """
    if context.config.attributes[IN_CALLERS_TRANSACTION]:
        yield False
        return
    with op.get_context().autocommit_block():
        op.execute(WAIT)
        yield True
        op.execute(AS_BEFORE)
