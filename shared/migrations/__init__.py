"""The database's history: `upgrade(url)` brings a database to the newest version of shared/models.

    python -m shared.migrations                 upgrade the database of DATABASE_URL
    python -m shared.migrations new "subject"   write the next version from what the models have changed

Why no alembic.ini: the address is a setting like any other, and the rest never changes.
"""

from __future__ import annotations

from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, Engine, NullPool, create_engine, text

from shared import store_vectors
from shared.access.api_keys import ensure_default_organization
from shared.infra.postgres import driver_url, session_defaults

# Two starters that migrate at once take turns by this advisory lock.
LOCK = 0x72756E79617264
FOLDER = Path(__file__).parent
STATEMENT_TIMEOUT_SECONDS = 30  # of a session that a pooler lends

# What the role may have set for the service's sessions is not for a migration, which takes as long as it takes.
NO_LIMITS = text(
    "SELECT set_config(name, '0', true) FROM unnest(ARRAY['statement_timeout', 'lock_timeout',"
    " 'idle_in_transaction_session_timeout']) AS name"
)


def upgrade(url: str, *, pooler: str = "none") -> None:
    """Apply what is missing, what an extension makes possible, and the default organization; safe to repeat.

    Through a pooler nobody sets anything in a session, so that the role is given what our sessions have set.
    """
    engine = _engine(url)
    with engine.begin() as connection:
        connection.execute(NO_LIMITS)
        connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": LOCK})
        if pooler == "transaction":
            _set_defaults(connection)
        command.upgrade(config(connection), "head")
        store_vectors.prepare(connection)
        ensure_default_organization(connection)


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
        known = len(list(ScriptDirectory.from_config(config()).walk_revisions()))
        command.revision(config(connection), subject, autogenerate=True, rev_id=f"{known + 1:04}")


def is_compared(_: object, name: str | None, kind: str, *__: object) -> bool:
    """Whether a table belongs to shared/models; one that leans on an extension may be missing."""
    return (kind, name) != ("table", store_vectors.NAME)


def config(connection: Connection | None = None) -> Config:
    """Alembic's configuration, for the given connection."""
    made = Config()
    made.set_main_option("script_location", str(FOLDER).replace("%", "%%"))
    made.set_main_option("path_separator", "os")
    made.set_main_option("file_template", "%%(rev)s_%%(slug)s")
    made.attributes["connection"] = connection
    return made
