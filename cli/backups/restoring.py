"""Restoring a backup into an empty database, in one transaction: either all rows are restored, or nothing changes.

Before the transaction, the restore checks that the file is authentic and complete, that the keys decrypt its values,
that this release knows its database version, and that the target is empty and not in use.

Migrations create the tables as the backup's release had them. The file supplies rows only: the restore executes no
statement, name or definition from it.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from psycopg import Error, sql
from redis.exceptions import RedisError
from sqlalchemy import Connection as EngineConnection
from sqlalchemy import text
from sqlalchemy.exc import SQLAlchemyError

from cli.backups import archive, contents, database, keys
from cli.backups.archive import Backup
from cli.backups.database import Connection, scalar
from cli.backups.manifest import Table
from cli.errors import CommandFailed
from shared import migrations, store_vectors
from shared.access.api_keys import DEFAULT_ORGANIZATION_NAME
from shared.infra import encryption, postgres, redis
from shared.infra.database_version import needed, versions
from shared.models import METADATA
from shared.runs import cancel
from shared.settings import Settings
from shared.sql import VIEWS, drop_views

VERSION = "alembic_version"
# Tables in which an empty service has rows: the database version, the first organization, workers, the last backup.
OF_EMPTY_SERVICE = (VERSION, "organization", "worker", "leader", "last_backup")
PAUSED = "restored with --paused"


@dataclass(frozen=True)
class TargetDatabase:
    """The state of the database that a backup is restored into."""

    tables: tuple[str, ...]
    foreign: tuple[str, ...]  # tables that are not the service's
    counts: dict[str, int]
    is_empty: bool
    sessions: int  # open sessions of the service's processes


def open_backup(
    path: Path, settings: Settings, passphrase_file: Path | None
) -> tuple[Backup, tuple[str, ...]]:
    """Return the backup and the encryption keys. Raises CommandFailed if none of the keys has signed it."""
    unverified = archive.read(path)
    encryption_keys = keys.of_backup(settings, unverified.sealed_keys, keys.passphrase(passphrase_file))
    encryption.configure(encryption_keys)
    return unverified.authenticate(encryption_keys), encryption_keys


def check(backup: Backup) -> dict[str, int]:
    """Read a whole backup without a database. Returns the numbers of `encrypted` and `unreadable` values.

    Raises CommandFailed if the backup is damaged, its database version is unknown, or the keys read fewer values than
    when it was made.
    """
    _require_restorable(backup)
    backup.verify()
    readable = contents.read_all(backup)
    manifest = backup.manifest
    if (lost := readable[False] - manifest["unreadable"]) > 0:
        raise CommandFailed(
            f"{lost} of {readable.total()} encrypted values cannot be read with these keys. The backup needs"
            f" {', '.join(manifest['keys'])} (fingerprints; `runyard encryption list` shows those of a list)."
        )
    return {"encrypted": readable.total(), "unreadable": readable[False]}


def _require_restorable(backup: Backup) -> None:
    """Raise CommandFailed unless this release knows the backup's database version and tables."""
    manifest = backup.manifest
    if manifest["migration"] > needed():
        raise CommandFailed(
            f"{backup.path} is of runyard {manifest['version']} with database version {manifest['migration']}, and"
            f" this one knows {needed()} at most: upgrade it first."
        )
    if manifest["migration"] not in versions():
        raise CommandFailed(f"{backup.path}: no release has the database version {manifest['migration']}.")
    contents.require_known({table.name: table.columns for table in backup.tables}, manifest["migration"])
    names = [table.name for table in backup.tables]
    if names != [name for name in contents.KNOWN if name in names]:
        raise CommandFailed(f"{backup.path}: its tables are not in the order in which a backup is made.")


def inspect_target(conn: Connection) -> TargetDatabase:
    """Describe the database of this connection."""
    known = {*METADATA.tables, VERSION, store_vectors.NAME}
    relations = conn.execute(RELATIONS, {"known": list(known), "views": list(VIEWS)})
    tables = tuple(name for (name,) in relations.fetchall())
    foreign = tuple(name for name in tables if name not in known)
    filled = [name for name in tables if name not in (*foreign, *OF_EMPTY_SERVICE) and _has_rows(conn, name)]
    is_used = bool(filled) or _has_other_organizations(conn, tables)
    return TargetDatabase(
        tables=tables,
        foreign=foreign,
        counts=_counts(conn, tables) if is_used else {},
        is_empty=not is_used,
        sessions=scalar(conn, SESSIONS),
    )


# The service's tables that the search_path finds, and all other relations in the schema where tables are created, except
# the service's views.
RELATIONS = """
SELECT o.relname FROM pg_class o JOIN pg_namespace n ON n.oid = o.relnamespace
WHERE (n.nspname = current_schema() OR o.relname = ANY(%(known)s)) AND pg_table_is_visible(o.oid)
    AND o.relkind IN ('r', 'p', 'v', 'm', 'f') AND NOT o.relispartition AND o.relname <> ALL(%(views)s)
    AND NOT EXISTS (SELECT FROM pg_depend d WHERE d.objid = o.oid AND d.deptype = 'e')
ORDER BY 1
"""
SESSIONS = b"""
SELECT count(*) FROM pg_stat_activity
WHERE datname = current_database() AND application_name LIKE 'runyard%'
"""


def _has_rows(conn: Connection, table: str) -> bool:
    return scalar(conn, sql.SQL("SELECT EXISTS (SELECT FROM {})").format(sql.Identifier(table)))


def _has_other_organizations(conn: Connection, tables: Sequence[str]) -> bool:
    if "organization" not in tables:
        return False
    query = "SELECT EXISTS (SELECT FROM organization WHERE name <> %s)"
    return scalar(conn, query, (DEFAULT_ORGANIZATION_NAME,))


def _counts(conn: Connection, tables: Sequence[str]) -> dict[str, int]:
    query = sql.SQL("SELECT count(*) FROM {}")
    counted = [table for table in contents.COUNTED if table in tables]
    return {table: scalar(conn, query.format(sql.Identifier(table))) for table in counted}


def require_usable(target: TargetDatabase, *, replace: bool) -> None:
    """Raise CommandFailed unless a backup may be restored into this database."""
    if target.foreign:
        raise CommandFailed(
            f"The database holds tables that are not runyard's: {', '.join(target.foreign[:5])}."
            " Restore into a database of its own."
        )
    if target.sessions:
        raise CommandFailed(
            f"The service is running ({target.sessions} sessions in the database): stop it on every machine first."
        )
    if not target.is_empty and not replace:
        raise CommandFailed(
            f"The database is not empty: it holds {contents.describe(target.counts)}. Restore into an empty one;"
            " --replace removes what is there."
        )


def restore(
    url: str, backup: Backup, *, replace: bool, paused: bool, before_commit: Callable[[], None]
) -> None:
    """Replace the database's content by the backup, migrated to this release's version.

    `replace`: the database need not be empty. `paused`: crons are disabled, webhooks are not sent, and runs that had
    not ended are not eligible. `before_commit` is called just before the commit. Raises CommandFailed; the database is then
    unchanged.
    """
    try:
        with database.transaction(url) as (connection, conn):
            _lock_migrations(conn)
            target = inspect_target(conn)
            require_usable(target, replace=replace)
            _drop(conn, target)
            _create_tables(connection, backup)
            _require_columns(conn, backup)
            for table in backup.tables:
                _load(conn, backup, table)
            _set_identities(conn, backup)
            migrations.upgrade_in_transaction(connection, needed())
            if paused:
                _pause(conn)
            before_commit()
    except (Error, SQLAlchemyError) as error:
        raise CommandFailed(f"Nothing was restored. PostgreSQL says: {database.message(error)}") from error
    with database.connected(url) as conn:
        conn.execute("ANALYZE")


def _lock_migrations(conn: Connection) -> None:
    """Take the lock of migrations until the transaction ends. Raises CommandFailed if another process holds it.

    A migration that starts meanwhile waits for the lock.
    """
    if not scalar(conn, "SELECT pg_try_advisory_xact_lock(%s)", (migrations.LOCK,)):
        raise CommandFailed("Somebody restores or migrates this database at this moment.")


def _create_tables(connection: EngineConnection, backup: Backup) -> None:
    """Create the tables as the backup's release had them, by the migrations of this release."""
    migrations.upgrade_in_transaction(connection, backup.manifest["migration"])
    has_vectors = any(table.name == store_vectors.NAME for table in backup.tables)
    if has_vectors and not store_vectors.prepare(connection):
        raise CommandFailed(
            "Nothing was restored: the backup holds vectors, and this server has no extension `vector` that the"
            " database user may create."
        )


def _require_columns(conn: Connection, backup: Backup) -> None:
    """Raise CommandFailed unless the backup has exactly the tables and columns that the migrations created."""
    expected = contents.columns(conn)
    supplied = {table.name: table.columns for table in backup.tables}
    for name in expected.keys() | supplied.keys():
        if sorted(supplied.get(name, ())) != sorted(expected.get(name, ())):
            raise CommandFailed(
                f"Nothing was restored: {backup.path} does not hold the columns that {name} has in database version"
                f" {backup.manifest['migration']}."
            )
    if contents.identities(conn).keys() != backup.manifest["identities"].keys():
        raise CommandFailed(
            f"Nothing was restored: {backup.path} names other identity columns than there are."
        )


def _load(conn: Connection, backup: Backup, table: Table) -> None:
    with conn.cursor() as cursor:
        with cursor.copy(contents.copy(table.name, table.columns, "FROM STDIN")) as rows:
            for block in backup.blocks(table):
                rows.write(block)
        if cursor.rowcount != table.rows:
            raise CommandFailed(
                f"Nothing was restored: {table.name} has {cursor.rowcount} rows, and the manifest of {backup.path} says"
                f" {table.rows}."
            )


def _set_identities(conn: Connection, backup: Backup) -> None:
    for column, last in backup.manifest["identities"].items():
        if last is not None:
            table, _, name = column.partition(".")
            conn.execute("SELECT setval(pg_get_serial_sequence(%s, %s), %s)", (table, name, last))


def _drop(conn: Connection, target: TargetDatabase) -> None:
    """Drop all tables of the service, and the views on them.

    Without CASCADE, PostgreSQL refuses if a foreign object depends on one of them. Functions stay: migrations replace
    them.
    """
    drop_views(conn)
    if target.tables:
        conn.execute(sql.SQL("DROP TABLE {}").format(sql.SQL(", ").join(map(sql.Identifier, target.tables))))


# Open questions stay open, but send no webhook and do not expire.
PAUSE_QUESTIONS = """
UPDATE question SET webhook_due_at = NULL, expires_at = NULL
WHERE closed_at IS NULL AND (webhook_due_at IS NOT NULL OR expires_at IS NOT NULL)
"""


def _pause(conn: Connection) -> None:
    """Disable crons, end webhook deliveries, pause questions, and request the cancellation of live runs.

    The runs are ended after the migration to this release's version (`end_live_runs`).
    """
    conn.execute("UPDATE cron SET enabled = false WHERE enabled")
    conn.execute(
        "UPDATE webhook_delivery SET ended_at = now(), owner = NULL, failure = %s WHERE ended_at IS NULL",
        (PAUSED,),
    )
    conn.execute(PAUSE_QUESTIONS.encode())
    conn.execute(
        b"UPDATE run SET webhook = NULL, cancel_requested = 'interrupt', cancel_reason = %s"
        b" WHERE is_live(status)",
        (PAUSED,),
    )


def end_live_runs() -> int:
    """Cancel all live runs. Returns their number.

    Cancelling ends a pending run at once; upkeep ends running ones. Pauses the questions that threads ask again.
    Requires a connected process (`local.connected`).
    """
    query = "SELECT deployment_id, thread_id, run_id FROM run WHERE is_live(status) ORDER BY created_seq"
    with postgres.connection() as conn:
        rows = conn.execute(text(query)).all()
    for row in rows:
        with postgres.connection() as conn:
            cancel.cancel_run(conn, row.deployment_id, row.thread_id, row.run_id, reason=PAUSED)
    with postgres.connection() as conn:
        conn.execute(text(PAUSE_QUESTIONS))  # a thread whose answer is cancelled asks again
    return len(rows)


def empty_redis(redis_url: str | None, data_dir: Path) -> list[str]:
    """Delete the service's data in Redis, such as event logs and messages of runs from before the restore.

    Returns an error text for each step that failed.
    """
    if redis_url is None:
        shutil.rmtree(data_dir / "valkey" / "appendonlydir", ignore_errors=True)
        return []
    client = redis.make_client(redis_url, connections=1)
    try:
        for key in client.scan_iter(match=f"{redis.PREFIX}*", count=1000):
            client.delete(key)
    except RedisError as error:
        return [f"Redis does not answer ({error}): empty it before the service starts."]
    finally:
        client.close()
    return []
