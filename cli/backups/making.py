"""Makes a backup of the service's database, while the service runs."""

from __future__ import annotations

import subprocess
from collections import Counter
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from psycopg.errors import InsufficientPrivilege, ReadOnlySqlTransaction, UndefinedTable

from cli.backups import archive, contents, database, keys
from cli.backups.archive import Backup, BackupWriter
from cli.backups.database import Connection
from cli.errors import CommandFailed
from shared import __version__
from shared.infra import encryption

SUFFIX = ".backup"
# Who worked and who led at the time: rows that their processes write anew every few seconds.
PASSING = ("worker", "leader")


def place_of(target: Path) -> tuple[Path, Path]:
    """The file to write, and the name it has until it is whole. In a directory it is named after the moment."""
    if target.is_dir():
        made = datetime.now(UTC).strftime("%Y%m%dT%H%M%SZ")
        return target / f"runyard-{made}{SUFFIX}", target / ".runyard.part"
    return target, target.with_name(f".{target.name}.part")


def make(
    url: str, target: Path, encryption_keys: tuple[str, ...], *, passphrase: str | None, replace: bool
) -> tuple[Path, dict[str, Any]]:
    """Write a backup of that database; where, and its manifest. Raises CommandFailed."""
    path, part = place_of(target)
    if path.exists() and not replace:
        raise CommandFailed(f"{path} is there already. --force replaces it.")
    encryption.configure(encryption_keys)
    with database.connected(url) as conn, conn.transaction():
        conn.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY")
        described = _described(conn)
        command, environment = _pg_dump(conn, url, described["schema"])
        with archive.writing(path, part, replace=replace) as writer:
            dumped = _dump(writer, command, environment)
            manifest = {
                **described,
                "dump": dumped,
                "keys": [keys.fingerprint(key) for key in encryption_keys],
                "sealed_keys": None if passphrase is None else keys.seal(encryption_keys, passphrase),
            }
            manifest |= _readable(Backup(part, manifest, archive.BLOCK, dumped["bytes"]), writer)
            writer.add_manifest(manifest)
    with database.connected(url) as conn:
        _note(conn, path)
    return path, manifest


def _note(conn: Connection, path: Path) -> None:
    """For the figure of a backup's age; a user who may only read can make backups as well."""
    with suppress(InsufficientPrivilege, ReadOnlySqlTransaction, UndefinedTable):
        conn.execute(
            "INSERT INTO last_backup (is_last, bytes) VALUES (true, %s)"
            " ON CONFLICT (is_last) DO UPDATE SET made_at = now(), bytes = excluded.bytes",
            (path.stat().st_size,),
        )


def _described(conn: Connection) -> dict[str, Any]:
    """What the manifest says of the database, as the snapshot sees it."""
    exists = conn.execute("SELECT to_regclass('alembic_version'), current_schema()").fetchone()
    if exists is None or exists[0] is None:
        raise CommandFailed("The database holds no service: nothing was ever prepared in it.")
    row = conn.execute("SELECT version_num, to_regclass('store_vector') FROM alembic_version").fetchone()
    if row is None:
        raise CommandFailed("The database holds no service that is whole: it has no version.")
    return {
        "kind": archive.KIND,
        "format": archive.FORMAT,
        "version": __version__,
        "migration": row[0],
        "made_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "postgres": conn.info.server_version // 10000,
        "schema": exists[1],
        "has_vectors": row[1] is not None,
        "counts": contents.counts(conn),
        "live_runs": _live_runs(conn),
    }


def _live_runs(conn: Connection) -> int:
    from shared.models import is_live

    row = conn.execute(f"SELECT count(*) FROM run WHERE {is_live()}".encode()).fetchone()
    return row[0] if row else 0


def _pg_dump(conn: Connection, url: str, schema: str) -> tuple[list[str], dict[str, str]]:
    """The command that dumps what this transaction sees."""
    row = conn.execute("SELECT pg_export_snapshot()").fetchone()
    assert row is not None
    place, environment = database.place(url)
    options = [
        "--format=custom",
        "--no-owner",
        "--no-privileges",
        f"--schema={schema}",
        f"--snapshot={row[0]}",
    ]
    options += [f"--exclude-table-data={schema}.{table}" for table in PASSING]
    return [database.program("pg_dump", conn), *options, f"--dbname={place}"], environment


def _dump(writer: BackupWriter, command: list[str], environment: dict[str, str]) -> dict[str, Any]:
    with subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        try:
            dumped = writer.add_dump(process.stdout)  # type: ignore[arg-type]  # a buffered reader
        except BaseException:
            process.kill()
            raise
        said = process.stderr.read().decode(errors="replace").strip()
        if process.wait() != 0:
            raise CommandFailed(f"pg_dump failed: {said or process.returncode}")
    return dumped


def _readable(backup: Backup, writer: BackupWriter) -> dict[str, int]:
    """How many encrypted values the dump holds, and how many of them no key reads: a restore may not lose more."""
    writer.flush()
    counted: Counter[bool] = contents.readable(backup)
    return {"encrypted": counted.total(), "unreadable": counted[False]}
