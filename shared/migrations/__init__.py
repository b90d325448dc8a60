"""The database's history: `upgrade(url)` brings a database to the newest version of shared/models.

    python -m shared.migrations                 upgrade the database of DATABASE_URL
    python -m shared.migrations new "subject"   write the next version from what the models have changed

Why no alembic.ini: the address is a setting like any other, and the rest never changes.

Processes of the release before go on while it works: each version is a transaction of its own that gives up a table
that it cannot have at once, and is tried again. What a version may change is held by tests/unit/test_expanding.py.
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
from shared.infra import schema
from shared.infra.postgres import driver_url, session_defaults
from shared.migrations import online

log = logging.getLogger(__name__)

# Two starters that migrate at once take turns by this advisory lock.
LOCK = 0x72756E79617264
TRIES, PAUSE_SECONDS = 60, 1.0
FOLDER = Path(__file__).parent
FIRST = "0100"
STATEMENT_TIMEOUT_SECONDS = 30  # of a session that a pooler lends

# Whoever waits for a table keeps all others from it that come after: so no longer than this, and then again. What else
# the role may have set for the service's sessions is not for a migration, which takes as long as it takes.
LIMITS = "SET LOCAL lock_timeout = '3s'; SET LOCAL statement_timeout = 0; SET LOCAL idle_in_transaction_session_timeout = 0"


class DevelopmentDatabase(Exception):
    """The database was made before the first release. Use an empty database, and deploy the projects again."""

    def __init__(self, version: str) -> None:
        super().__init__(f"{self.__doc__} It is at version {version}.")


def upgrade(url: str, *, pooler: str = "none") -> None:
    """Apply missing versions, prepare optional extensions, and create the default organization. Safe to repeat.

    A database that a newer release has prepared is left as it is. Through a transaction pooler, where sessions cannot
    be configured, the role gets the settings of our sessions. Raises DevelopmentDatabase.
    """
    engine = _engine(url)
    event.listen(engine, "begin", lambda connection: connection.exec_driver_sql(LIMITS))
    with _alone(engine), engine.connect() as connection:
        found = _version(connection)
        if found is not None and found > schema.needed():
            log.warning("the database is at version %s, newer than this release's %s", found, schema.needed())
            return
        if found is not None and found < FIRST:
            raise DevelopmentDatabase(found)
        for attempt in range(1, TRIES + 1):
            try:
                command.upgrade(config(connection), "head")
                break
            except OperationalError as error:
                connection.rollback()
                if not isinstance(error.orig, psycopg.errors.LockNotAvailable) or attempt == TRIES:
                    raise
                log.warning("a table is in use: version %s is tried again", _version(connection))
                time.sleep(PAUSE_SECONDS)
        connection.commit()
        with connection.begin():
            if pooler == "transaction":
                _set_defaults(connection)
            store_vectors.prepare(connection)
            ensure_default_organization(connection)


def upgrade_in_transaction(connection: Connection, version: str) -> None:
    """Apply what a version is missing, in the caller's transaction and where nobody else writes to the tables."""
    command.upgrade(config(connection, in_callers_transaction=True), version)


@contextmanager
def _alone(engine: Engine) -> Iterator[None]:
    """While it lasts, nobody else migrates.

    An index that is made concurrently waits for whoever has an older snapshot, as a query has until the next one of
    its transaction: so the lock is asked for and not waited for, and no query is the last of its holder.
    """
    with engine.connect() as holder:
        while not holder.execute(text("SELECT pg_try_advisory_xact_lock(:key)"), {"key": LOCK}).scalar_one():
            holder.rollback()
            time.sleep(PAUSE_SECONDS)
        holder.execute(text("SET LOCAL idle_in_transaction_session_timeout = 0"))
        yield


def _version(connection: Connection) -> str | None:
    """The version the database is at, None before its first."""
    found = MigrationContext.configure(connection).get_current_revision()
    connection.rollback()  # Alembic must not take our transaction for one to work in
    return found


def _engine(url: str) -> Engine:
    """It prepares no statement: one would stay in a pooler's session, under a name that others use too."""
    return create_engine(driver_url(url), poolclass=NullPool, connect_args={"prepare_threshold": None})


def _set_defaults(connection: Connection) -> None:
    """Set for the role, in this database, what our sessions are to begin with."""
    database = connection.execute(text("SELECT quote_ident(current_database())")).scalar_one()
    for name, value in session_defaults(STATEMENT_TIMEOUT_SECONDS).items():
        connection.execute(text(f"ALTER ROLE CURRENT_USER IN DATABASE {database} SET {name} = '{value}'"))


def is_current(url: str) -> bool:
    """Whether nothing is left to apply."""
    engine = _engine(url)
    with engine.connect() as connection:
        applied = MigrationContext.configure(connection).get_current_heads()
    return set(applied) == set(ScriptDirectory.from_config(config()).get_heads())


def write_version(url: str, subject: str) -> None:
    """Write the next version's file from the difference between models and an up-to-date database."""
    engine = _engine(url)
    with engine.connect() as connection:
        number = f"{int(schema.needed()) + 1:04}"
        command.revision(config(connection), subject, autogenerate=True, rev_id=number)


def is_compared(_: object, name: str | None, kind: str, *__: object) -> bool:
    """Whether a table belongs to shared/models; one that leans on an extension may be missing."""
    return (kind, name) != ("table", store_vectors.NAME)


def config(connection: Connection | None = None, *, in_callers_transaction: bool = False) -> Config:
    """Alembic's configuration, for the given connection."""
    made = Config()
    made.set_main_option("script_location", str(FOLDER).replace("%", "%%"))
    made.set_main_option("path_separator", "os")
    made.set_main_option("file_template", "%%(rev)s_%%(slug)s")
    made.attributes["connection"] = connection
    made.attributes[online.IN_CALLERS_TRANSACTION] = in_callers_transaction
    return made
