"""Contents of a backup: the tables it may hold, their rows, and the encrypted values in them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import LiteralString

from psycopg import sql

from cli.backups.archive import Backup
from cli.backups.database import Connection
from cli.backups.manifest import Table
from cli.errors import CommandFailed
from shared import store_vectors
from shared.infra import encryption
from shared.infra.database_version import needed
from shared.infra.encryption import Undecryptable
from shared.infra.key_rotation import ENCRYPTED
from shared.models import METADATA

# Tables whose rows the processes rewrite every few seconds.
TRANSIENT = ("worker", "leader")
# All tables that a backup can hold, with their columns. A table comes after those that its foreign keys refer to.
KNOWN: Mapping[str, tuple[str, ...]] = {
    **{
        table.name: tuple(column.name for column in table.columns)
        for table in METADATA.sorted_tables
        if table.name not in TRANSIENT
    },
    store_vectors.NAME: store_vectors.COLUMNS,
}
# Tables whose rows are counted in messages, with the plural noun for a row.
COUNTED = {
    "organization": "organizations", "api_key": "API keys", "deployment": "deployments", "revision": "revisions",
    "archive": "archives", "assistant": "assistants", "thread": "threads", "run": "runs", "checkpoint": "checkpoints",
    "store_item": "store items", "cron": "crons", "oauth_provider": "OAuth providers", "secret": "secrets",
}  # fmt: skip


def counts(tables: Iterable[Table]) -> dict[str, int]:
    """Return the number of rows of each counted table."""
    rows = {table.name: table.rows for table in tables}
    return {name: rows[name] for name in COUNTED if name in rows}


def describe(counts: Mapping[str, int]) -> str:
    """Return counts as a phrase, such as `2 deployments, 5 runs`, or `nothing`."""
    return ", ".join(f"{counts[name]} {COUNTED[name]}" for name in COUNTED if counts.get(name)) or "nothing"


def require_known(columns: Mapping[str, Iterable[str]], migration: str) -> None:
    """Raise CommandFailed if the service does not have one of these tables, or one of their columns.

    Columns are checked only for the newest database version. Only migrations know those of older versions: a restore
    compares them with the tables that it creates.
    """
    for table, names in columns.items():
        if table not in KNOWN:
            raise CommandFailed(f"The table {table!r} is not one of runyard's.")
        unknown = [name for name in names if name not in KNOWN[table]]
        if migration == needed() and unknown:
            raise CommandFailed(f"The column {unknown[0]!r} of the table {table!r} is not one of runyard's.")


def require_all(tables: Iterable[str], migration: str) -> None:
    """Raise CommandFailed if a table is missing. Checked only for the newest database version."""
    missing = sorted(KNOWN.keys() - {*tables, store_vectors.NAME})
    if migration == needed() and missing:
        raise CommandFailed(f"The database has no table {missing[0]!r}, so a backup would not be whole.")


def columns(conn: Connection) -> dict[str, tuple[str, ...]]:
    """Return the columns of the service's tables, in the order of KNOWN.

    The tables are those that the session's search_path leads to, as in every statement of the service.
    """
    rows = dict(conn.execute(COLUMNS, {"tables": list(KNOWN)}).fetchall())
    return {name: tuple(rows[name]) for name in KNOWN if name in rows}


COLUMNS = """
SELECT c.relname, array_agg(a.attname::text ORDER BY a.attnum)
FROM pg_attribute AS a JOIN pg_class AS c ON c.oid = a.attrelid
WHERE pg_table_is_visible(c.oid) AND c.relkind = 'r' AND c.relname = ANY(%(tables)s)
    AND a.attnum > 0 AND NOT a.attisdropped AND a.attgenerated = ''
GROUP BY c.relname
"""


def identities(conn: Connection) -> dict[str, int | None]:
    """Return the last number of each identity column, by `table.column`. None: no number was used yet."""
    return dict(conn.execute(IDENTITIES, {"tables": list(KNOWN)}).fetchall())


IDENTITIES = """
SELECT c.relname || '.' || a.attname,
    pg_sequence_last_value(pg_get_serial_sequence(quote_ident(c.relname), a.attname)::regclass)
FROM pg_attribute AS a JOIN pg_class AS c ON c.oid = a.attrelid
WHERE pg_table_is_visible(c.oid) AND c.relkind = 'r' AND c.relname = ANY(%(tables)s)
    AND a.attidentity <> '' AND NOT a.attisdropped
ORDER BY 1
"""


def copy(table: str, columns: Iterable[str], direction: LiteralString) -> sql.Composed:
    """Return `COPY table (columns) FROM STDIN`, or `TO STDOUT`."""
    return sql.SQL("COPY {} ({}) {} (FORMAT text, ENCODING 'UTF8')").format(
        sql.Identifier(table), sql.SQL(", ").join(map(sql.Identifier, columns)), sql.SQL(direction)
    )


# Reading a backup without a database


def read_all(backup: Backup) -> Counter[bool]:
    """Read every row of a backup.

    Returns how many encrypted values the process's keys read (True), and how many they do not (False). Raises
    CommandFailed if a part is damaged or does not hold rows of its table.
    """
    readable: Counter[bool] = Counter()
    for table in backup.tables:
        encrypted = [n for n, column in enumerate(table.columns) if f"{table.name}.{column}" in ENCRYPTED]
        rows = 0
        for row in _rows(backup.blocks(table)):
            values = row.split(b"\t")  # a tab within a value is written as \t
            if len(values) != len(table.columns):
                raise CommandFailed(
                    f"{backup.path}: row {rows + 1} of {table.name} has not as many values as columns."
                )
            rows += 1
            readable.update(_is_readable(values[n]) for n in encrypted if values[n] != b"\\N")
        if rows != table.rows:
            raise CommandFailed(
                f"{backup.path}: {table.name} has {rows} rows, and the manifest says {table.rows}."
            )
    return readable


def _rows(blocks: Iterable[bytes]) -> Iterator[bytes]:
    """Yield the rows of COPY's text format without their line ends."""
    start: list[bytes] = []  # beginning of a row that continues in the next block
    for block in blocks:
        first, *others = block.split(b"\n")
        start.append(first)
        if others:
            yield b"".join(start)
            yield from others[:-1]
            start = [others[-1]]
    if any(start):
        yield b"".join(start)


def _is_readable(value: bytes) -> bool:
    """Return whether the process's keys decrypt a value of a `bytea` column in COPY's text format."""
    try:
        encryption.decrypt(bytes.fromhex(value.removeprefix(b"\\\\x").decode()))
    except (Undecryptable, ValueError):
        return False
    return True
