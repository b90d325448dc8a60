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
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, Engine, NullPool, create_engine, event, text
from sqlalchemy.exc import OperationalError

from shared import store_vectors
from shared.access.api_keys import ensure_default_organization
from shared.infra import database_version
from shared.infra.postgres import driver_url, session_defaults
from shared.migrations import online

log = logging.getLogger(__name__)

# Advisory lock that allows one process at a time to migrate.
LOCK = 0x72756E79617264
TRIES, PAUSE_SECONDS = 60, 1.0
FOLDER = Path(__file__).parent
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
        found = _version(connection)
        if found is not None and found > database_version.needed():
            log.warning(
                "the database is at version %s, newer than this release's %s",
                found,
                database_version.needed(),
            )
            return
        database_version.refuse_development(found)
        for attempt in range(1, TRIES + 1):
            try:
                command.upgrade(config(connection), "head")
                break
            except OperationalError as error:
                connection.rollback()
                if not isinstance(error.orig, psycopg.errors.LockNotAvailable) or attempt == TRIES:
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
    found = MigrationContext.configure(connection).get_current_revision()
    connection.rollback()  # otherwise Alembic would migrate inside this open transaction
    return found


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


def is_current(url: str) -> bool:
    """Return whether the database has all versions."""
    engine = _engine(url)
    with engine.connect() as connection:
        applied = MigrationContext.configure(connection).get_current_heads()
    return set(applied) == set(ScriptDirectory.from_config(config()).get_heads())


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


def config(connection: Connection | None = None, *, in_callers_transaction: bool = False) -> Config:
    """Return Alembic's configuration for the given connection."""
    made = Config()
    made.set_main_option("script_location", str(FOLDER).replace("%", "%%"))
    made.set_main_option("path_separator", "os")
    made.set_main_option("file_template", "%%(rev)s_%%(slug)s")
    made.attributes["connection"] = connection
    made.attributes[online.IN_CALLERS_TRANSACTION] = in_callers_transaction
    return made
