"""Restores a backup into an empty database, in one transaction: it is all there afterwards, or nothing is.

Everything that can be found out beforehand is, before the database is touched: whether the file is whole, whether the
keys read it, whether this version of the code knows it, whether the target is empty and nobody works on it.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from psycopg import Error, sql
from redis.exceptions import RedisError

from cli.backups import archive, contents
from cli.backups.archive import Backup
from cli.backups.database import Connection
from cli.errors import CommandFailed
from shared import migrations
from shared.access.api_keys import DEFAULT_ORGANIZATION_NAME
from shared.infra import encryption, redis
from shared.infra.schema import needed
from shared.models import METADATA, is_live
from shared.store_vectors import NAME as VECTORS

VERSION = "alembic_version"
# Of these an empty service has rows: its version, its first organization, who worked last, when it was backed up.
OF_EMPTY_SERVICE = (VERSION, "organization", "worker", "leader", "last_backup")
PAUSED = "restored with --paused"


@dataclass(frozen=True)
class TargetDatabase:
    """What there is where the backup shall go."""

    tables: tuple[str, ...]
    functions: tuple[str, ...]
    foreign: tuple[str, ...]  # tables of somebody else
    counts: dict[str, int]
    is_empty: bool
    sessions: int  # of the service


def check(backup: Backup, encryption_keys: Sequence[str]) -> dict[str, int]:
    """Read all of it; how many encrypted values there are. Raises CommandFailed for what would not be whole."""
    manifest = backup.manifest
    if manifest["migration"] > needed():
        raise CommandFailed(
            f"{backup.path} is of runyard {manifest['version']} with database version {manifest['migration']}, and"
            f" this one knows {needed()} at most: upgrade it first."
        )
    archive.verify(backup)
    encryption.configure(encryption_keys)
    counted = contents.readable(backup)
    if lost := contents.unread(counted, manifest):
        raise CommandFailed(
            f"{lost} of {counted.total()} encrypted values cannot be read with these keys. The backup needs"
            f" {', '.join(manifest['keys'])} (fingerprints; `runyard encryption list` shows those of a list)."
        )
    return {"encrypted": counted.total(), "unreadable": counted[False]}


def look(conn: Connection) -> TargetDatabase:
    """What the database of this connection holds."""
    tables = _names(conn, RELATIONS)
    known = {*METADATA.tables, VERSION, VECTORS}
    foreign = tuple(name for name in tables if name not in known)
    filled = [name for name in tables if name not in (*foreign, *OF_EMPTY_SERVICE) and _has_rows(conn, name)]
    is_used = bool(filled) or _has_own_organizations(conn, tables)
    sessions = conn.execute(SESSIONS).fetchone()
    return TargetDatabase(
        tables=tables,
        functions=_names(conn, FUNCTIONS),
        foreign=foreign,
        counts=_counts(conn, tables) if is_used else {},
        is_empty=not is_used,
        sessions=sessions[0] if sessions else 0,
    )


NOT_OF_EXTENSION = "NOT EXISTS (SELECT FROM pg_depend d WHERE d.objid = o.oid AND d.deptype = 'e')"
RELATIONS = f"""
SELECT o.relname FROM pg_class o WHERE o.relnamespace = to_regnamespace(current_schema()::text)
    AND o.relkind IN ('r', 'p', 'v', 'm', 'f') AND NOT o.relispartition AND {NOT_OF_EXTENSION} ORDER BY 1
"""
FUNCTIONS = f"""
SELECT CAST(CAST(o.oid AS regprocedure) AS text) FROM pg_proc o
WHERE o.pronamespace = to_regnamespace(current_schema()::text) AND {NOT_OF_EXTENSION}
"""
SESSIONS = b"""
SELECT count(*) FROM pg_stat_activity
WHERE datname = current_database() AND application_name LIKE 'runyard%'
"""


def _names(conn: Connection, query: str) -> tuple[str, ...]:
    return tuple(row[0] for row in conn.execute(query.encode()).fetchall())


def _has_rows(conn: Connection, table: str) -> bool:
    row = conn.execute(sql.SQL("SELECT EXISTS (SELECT FROM {})").format(sql.Identifier(table))).fetchone()
    return bool(row and row[0])


def _has_own_organizations(conn: Connection, tables: Sequence[str]) -> bool:
    if "organization" not in tables:
        return False
    row = conn.execute(
        "SELECT EXISTS (SELECT FROM organization WHERE name <> %s)", (DEFAULT_ORGANIZATION_NAME,)
    ).fetchone()
    return bool(row and row[0])


def _counts(conn: Connection, tables: Sequence[str]) -> dict[str, int]:
    found = {}
    for table, _ in contents.COUNTED:
        if table in tables:
            row = conn.execute(sql.SQL("SELECT count(*) FROM {}").format(sql.Identifier(table))).fetchone()
            found[table] = row[0] if row else 0
    return found


def require(target: TargetDatabase, *, replace: bool) -> None:
    """Raises CommandFailed unless a backup may go there."""
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
            f"The database is not empty: it holds {contents.in_words(target.counts)}. Restore into an empty one;"
            " --replace removes what is there."
        )


def restore(
    conn: Connection, backup: Backup, target: TargetDatabase, *, paused: bool, at_last: Callable[[], None]
) -> None:
    """Put the backup in the place of what there is; raises CommandFailed, and then nothing has changed.

    `paused`: crons are off, webhooks are not sent, and no run that had not ended is eligible. `at_last` is called
    before the commit.
    """
    try:
        with conn.transaction():
            _take_turn(conn)
            schema = _schema(conn, backup)
            _drop(conn, target)
            if backup.manifest["has_vectors"]:
                conn.execute("CREATE EXTENSION IF NOT EXISTS vector")
            with contents.script(backup) as lines:
                contents.replay(conn, lines)
            conn.execute(sql.SQL("SET search_path TO {}").format(sql.Identifier(schema)))
            _compare(conn, backup)
            if paused:
                _pause(conn)
            at_last()
    except Error as error:
        raise CommandFailed(f"Nothing was restored. PostgreSQL says: {str(error).strip()}") from error
    conn.execute("ANALYZE")


def _take_turn(conn: Connection) -> None:
    """Neither another restore nor a migration beside this one: the latter waits."""
    row = conn.execute("SELECT pg_try_advisory_xact_lock(%s)", (migrations.LOCK,)).fetchone()
    if not (row and row[0]):
        raise CommandFailed("Somebody restores or migrates this database at this moment.")


def _schema(conn: Connection, backup: Backup) -> str:
    row = conn.execute("SELECT current_schema()").fetchone()
    schema = str(row[0]) if row else ""
    if schema != backup.manifest["schema"]:
        raise CommandFailed(
            f"The backup is of the schema {backup.manifest['schema']!r}, and this user's is {schema!r}."
        )
    return schema


def _drop(conn: Connection, target: TargetDatabase) -> None:
    """What is left of an empty service, or what --replace removes."""
    for table in target.tables:
        conn.execute(sql.SQL("DROP TABLE IF EXISTS {} CASCADE").format(sql.Identifier(table)))
    for function in target.functions:
        conn.execute(f"DROP ROUTINE IF EXISTS {function} CASCADE".encode())


def _compare(conn: Connection, backup: Backup) -> None:
    found = contents.counts(conn)
    if found != backup.manifest["counts"]:
        raise CommandFailed(
            f"Nothing was restored: the backup says it holds {contents.in_words(backup.manifest['counts'])}, and it"
            f" holds {contents.in_words(found)}."
        )


def _pause(conn: Connection) -> None:
    """Take away what would begin by itself; the runs are ended when the database is of this version."""
    conn.execute("UPDATE cron SET enabled = false WHERE enabled")
    conn.execute(
        "UPDATE webhook_delivery SET ended_at = now(), owner = NULL, failure = %s WHERE ended_at IS NULL",
        (PAUSED,),
    )
    conn.execute(
        "UPDATE run SET webhook = NULL, cancel_requested = 'interrupt', cancel_reason = %s"
        f" WHERE {is_live()}".encode(),
        (PAUSED,),
    )


def end_live_runs() -> int:
    """End runs that were waiting, by the rule that ends them; running ones are ended by upkeep. How many.

    The process is connected to the database (`local.connected`).
    """
    from sqlalchemy import text

    from shared.infra.postgres import connection
    from shared.runs import cancel

    with connection() as conn:
        rows = conn.execute(
            text(f"SELECT deployment_id, thread_id, run_id FROM run WHERE {is_live()} ORDER BY created_seq")
        ).all()
    for row in rows:
        with connection() as conn:
            cancel.cancel_run(conn, row.deployment_id, row.thread_id, row.run_id, reason=PAUSED)
    return len(rows)


def empty_redis(redis_url: str | None, data_dir: Path) -> list[str]:
    """Remove what Redis knows of another life of these runs: logs that have ended, old messages.

    What could not be done, in sentences.
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
