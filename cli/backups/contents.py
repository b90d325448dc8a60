"""What a backup holds: how much of everything, its encrypted values, and the script that makes the database again."""

from __future__ import annotations

import subprocess
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, BinaryIO

from cli.backups.archive import Backup
from cli.backups.database import Connection, newest
from cli.errors import CommandFailed
from shared.infra import encryption
from shared.infra.encryption import Undecryptable
from shared.infra.key_rotation import ENCRYPTED

# What is counted at both ends, and says in a sentence what a database holds.
COUNTED = (
    ("organization", "organizations"), ("api_key", "API keys"), ("deployment", "deployments"),
    ("revision", "revisions"), ("archive", "archives"), ("assistant", "assistants"), ("thread", "threads"),
    ("run", "runs"), ("checkpoint", "checkpoints"), ("store_item", "store items"), ("cron", "crons"),
    ("oauth_provider", "OAuth providers"), ("secret", "secrets"),
)  # fmt: skip
# Lines about the schema itself, which is there; for a psql that is not used; a setting that PostgreSQL 16 lacks.
SKIPPED = (
    b"CREATE SCHEMA ",
    b"COMMENT ON SCHEMA ",
    b"\\restrict",
    b"\\unrestrict",
    b"SET transaction_timeout",
)
BATCH_BYTES = 256 * 1024
END_OF_COPY = b"\\.\n"


def counts(conn: Connection) -> dict[str, int]:
    """How many rows each of the counted tables has, in the connection's own snapshot."""
    found = {}
    for table, _ in COUNTED:
        row = conn.execute(f"SELECT count(*) FROM {table}".encode()).fetchone()
        found[table] = row[0] if row else 0
    return found


def in_words(counted: dict[str, int]) -> str:
    """What there is, the larger things first named; `nothing` of an empty database."""
    words = dict(COUNTED)
    return (
        ", ".join(f"{n} {words[table]}" for table, n in counted.items() if n and table in words) or "nothing"
    )


@contextmanager
def script(backup: Backup, *options: str) -> Iterator[BinaryIO]:
    """What pg_restore makes of the dump; raises CommandFailed at the end when it could not read all of it."""
    command = [newest("pg_restore"), "--no-owner", "--no-privileges", *options, "-f", "-"]
    with (
        backup.dump() as dump,
        subprocess.Popen(command, stdin=dump, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process,
    ):
        assert process.stdout is not None
        assert process.stderr is not None
        try:
            yield process.stdout  # type: ignore[misc]  # a buffered reader
        except BaseException:
            process.kill()
            raise
        said = process.stderr.read().decode(errors="replace").strip()
        if process.wait() != 0:
            raise CommandFailed(f"{backup.path} cannot be restored: {said or process.returncode}")


def replay(conn: Connection, lines: BinaryIO) -> None:
    """Carry out pg_restore's script within the connection's transaction.

    Not by psql: this connection speaks TLS wherever the service does, and what is checked afterwards is of the same
    transaction.
    """
    statements: list[bytes] = []
    for line in lines:
        if is_copy(line):
            _execute(conn, statements)
            with conn.cursor() as cursor, cursor.copy(line.rstrip(b";\n")) as copy:
                for data in _batches(rows(lines)):
                    copy.write(data)
        elif not line.startswith(SKIPPED):
            statements.append(line)
    _execute(conn, statements)


def _execute(conn: Connection, statements: list[bytes]) -> None:
    if statements:
        conn.execute(b"".join(statements))
        statements.clear()


def is_copy(line: bytes) -> bool:
    return line.startswith(b"COPY ") and line.endswith(b" FROM stdin;\n")


def rows(lines: Iterable[bytes]) -> Iterator[bytes]:
    """The lines of a COPY up to its end; raises CommandFailed when there is none."""
    for line in lines:
        if line == END_OF_COPY:
            return
        yield line
    raise CommandFailed("The backup ends in the middle of a table.")


def _batches(lines: Iterable[bytes]) -> Iterator[bytes]:
    kept: list[bytes] = []
    size = 0
    for line in lines:
        kept.append(line)
        size += len(line)
        if size >= BATCH_BYTES:
            yield b"".join(kept)
            kept, size = [], 0
    yield b"".join(kept)


# Encrypted values


def readable(backup: Backup) -> Counter[bool]:
    """How many encrypted values of a backup the process's keys read, and how many they do not."""
    found: Counter[bool] = Counter()
    for value in encrypted_values(backup):
        try:
            encryption.decrypt(value)
        except Undecryptable:
            found[False] += 1
        else:
            found[True] += 1
    return found


def encrypted_values(backup: Backup) -> Iterator[bytes]:
    """Those of all columns that are encrypted, read from the file alone."""
    wanted: dict[str, set[str]] = {}
    for name in ENCRYPTED:
        table, _, column = name.partition(".")
        wanted.setdefault(table, set()).add(column)
    tables = [part for table in wanted for part in ("-t", table)]
    with script(backup, "--data-only", *tables) as lines:
        for line in lines:
            if is_copy(line):
                table, columns = _described(line.decode())
                places = [n for n, column in enumerate(columns) if column in wanted.get(table, ())]
                yield from _values(rows(lines), places)


def _described(copy: str) -> tuple[str, list[str]]:
    """The table and the columns of `COPY public.table (a, b) FROM stdin;`."""
    head, _, rest = copy.removeprefix("COPY ").partition(" (")
    columns = rest.partition(")")[0].split(", ")
    return head.rpartition(".")[2], [column.strip('"') for column in columns]


def _values(lines: Iterable[bytes], places: list[int]) -> Iterator[bytes]:
    for line in lines:
        fields = line.rstrip(b"\n").split(b"\t")
        for place in places:
            if fields[place] != b"\\N":
                yield bytes.fromhex(fields[place].removeprefix(b"\\\\x").decode())


def unread(counted: Counter[bool], manifest: dict[str, Any]) -> int:
    """How many values more than at the backup itself cannot be read."""
    return max(counted[False] - int(manifest["unreadable"]), 0)
