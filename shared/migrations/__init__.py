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
from sqlalchemy import Connection, NullPool, create_engine, text

from shared import store_vectors
from shared.access.api_keys import ensure_default_organization
from shared.infra.postgres import driver_url

# Two starters that migrate at once take turns by this advisory lock.
LOCK = 0x72756E79617264
FOLDER = Path(__file__).parent


def upgrade(url: str) -> None:
    """Apply what is missing, what an extension makes possible, and the default organization; safe to repeat."""
    engine = create_engine(driver_url(url), poolclass=NullPool)
    with engine.begin() as connection:
        connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": LOCK})
        command.upgrade(config(connection), "head")
        store_vectors.prepare(connection)
        ensure_default_organization(connection)


def is_current(url: str) -> bool:
    """Whether nothing is left to apply."""
    engine = create_engine(driver_url(url), poolclass=NullPool)
    with engine.connect() as connection:
        applied = MigrationContext.configure(connection).get_current_heads()
    return set(applied) == set(ScriptDirectory.from_config(config()).get_heads())


def write_version(url: str, subject: str) -> None:
    """Write the next version's file from the difference between models and an up-to-date database."""
    engine = create_engine(driver_url(url), poolclass=NullPool)
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
