"""Making a backup of the service's database while the service runs."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from psycopg import Error, sql
from psycopg.errors import InsufficientPrivilege, ReadOnlySqlTransaction, UndefinedTable

from cli.backups import archive, contents, database, keys
from cli.backups.archive import Backup, BackupWriter
from cli.backups.database import Connection, scalar
from cli.backups.manifest import KIND, Table
from cli.errors import CommandFailed
from shared import __version__
from shared.infra import encryption
from shared.infra.database_version import needed

SUFFIX = ".backup"


def make(
    url: str, target: Path, encryption_keys: tuple[str, ...], *, passphrase: str | None, replace: bool
) -> tuple[Path, dict[str, Any]]:
    """Write a backup of the database. Returns its path and its manifest. Raises CommandFailed.

    If `target` is a directory, the backup's name contains the current time.
    """
    if target.is_dir():
        path = target / f"runyard-{datetime.now(UTC):%Y%m%dT%H%M%SZ}{SUFFIX}"
        part = target / ".runyard.part"
    else:
        path, part = target, target.with_name(f".{target.name}.part")
    if path.exists() and not path.is_file():
        raise CommandFailed(f"{path} is no regular file.")
    if path.exists() and not replace:
        raise CommandFailed(f"{path} is there already. --force replaces it.")
    encryption.configure(encryption_keys)
    with database.connected(url) as conn:
        with archive.writing(path, part, replace=replace) as writer:
            manifest = _write_tables(conn, writer, encryption_keys, passphrase)
            writer.flush()
            readable = contents.read_all(Backup(part, manifest))
            manifest |= {"encrypted": readable.total(), "unreadable": readable[False]}
            writer.add_manifest(manifest, encryption_keys[0])
        _record_backup(conn, path)
    return path, manifest


def _record_backup(conn: Connection, path: Path) -> None:
    """Record the time and size of the backup for the metric of its age. Skipped for a read-only database user."""
    with suppress(InsufficientPrivilege, ReadOnlySqlTransaction, UndefinedTable):
        conn.execute(
            "INSERT INTO last_backup (is_last, bytes) VALUES (true, %s)"
            " ON CONFLICT (is_last) DO UPDATE SET made_at = now(), bytes = excluded.bytes",
            (path.stat().st_size,),
        )


def _write_tables(
    conn: Connection, writer: BackupWriter, encryption_keys: tuple[str, ...], passphrase: str | None
) -> dict[str, Any]:
    """Write the rows of all tables as of one moment. Returns the manifest."""
    try:
        tables = contents.columns(conn)
        with conn.transaction():
            conn.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY")
            _lock(conn, tables)
            migration, columns = _migration(conn), contents.columns(conn)
            contents.require_known(columns, migration)
            contents.require_all(columns, migration)
            if columns.keys() != tables.keys():
                raise CommandFailed("The database was migrated at this moment. Make the backup again.")
            return {
                "kind": KIND,
                "version": __version__,
                "migration": migration,
                "made_at": datetime.now(UTC).isoformat(timespec="seconds"),
                "postgres": conn.info.server_version // 10000,
                "tables": tuple(_copy(conn, writer, name, columns[name]) for name in columns),
                "identities": contents.identities(conn),
                "live_runs": scalar(conn, b"SELECT count(*) FROM run WHERE is_live(status)"),
                "keys": [keys.fingerprint(key) for key in encryption_keys],
                "sealed_keys": None if passphrase is None else keys.seal(encryption_keys, passphrase),
            }
    except Error as error:
        raise CommandFailed(f"The backup failed. PostgreSQL says: {database.message(error)}") from error


def _lock(conn: Connection, tables: Iterable[str]) -> None:
    """Block migrations of the tables before the transaction takes its snapshot.

    If a migration rewrote a table after the snapshot, the table would be empty to this transaction.
    """
    for table in tables:
        conn.execute(sql.SQL("LOCK TABLE {} IN ACCESS SHARE MODE").format(sql.Identifier(table)))


def _migration(conn: Connection) -> str:
    """Return the version of the database's schema. Raises CommandFailed if this release cannot back it up."""
    exists = scalar(conn, "SELECT to_regclass('alembic_version') IS NOT NULL")
    migration = scalar(conn, "SELECT version_num FROM alembic_version") if exists else None
    if migration is None:
        raise CommandFailed("The database holds no service: nothing was ever prepared in it.")
    if migration > needed():
        raise CommandFailed(
            f"The database has version {migration}, and this release knows {needed()} at most. Make the backup with the"
            " release that the service has."
        )
    return migration


def _copy(conn: Connection, writer: BackupWriter, table: str, columns: tuple[str, ...]) -> Table:
    with conn.cursor() as cursor:
        with cursor.copy(contents.copy(table, columns, "TO STDOUT")) as rows:
            written = writer.add_table(bytes(row) for row in rows)
        return Table(table, columns, cursor.rowcount, **written)
