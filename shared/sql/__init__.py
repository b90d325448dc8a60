"""SQL in files: statements called by name, and the views and functions that they use in the database.

A block begins with `-- name: x`, `-- part: x` or `-- install: x`. `statement("claim.notified")` returns the statement
`notified` of claim.sql; its parameters are written `:name`, as psql writes them. A part is SQL that several statements
share. Install blocks define views and functions. The newest migration installs all of them in its transaction
(`install`), so a release that changes one needs a new migration, which may be empty.

The release before keeps running during an upgrade and calls its own functions. A function that Python calls therefore
has a number in its name. A changed one gets the next number, and its file of the release before moves to `previous/` for
one release. A view, or a function without a number, keeps its meaning; a different rule gets a different name.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

from sqlalchemy import Connection

from shared.infra.postgres import Driver, query

FOLDER = Path(__file__).parent
VIEWS = (
    "unblocked_run",
    "listed_deployment",
    "bench",
    "active_bench",
    "pool_load",
    "limited_deployment",
    "limited_key",
    "ended_run_usage",
    "ended_run_detail",
    "assistant_rows",
    "a2a_task",
)
STATEMENTS = 1_000  # cached statements: all of the files, and some of those with parts
_BLOCK = re.compile(r"^-- (name|part|install): (\w+)\n", re.MULTILINE)
# Comments, strings, function bodies and casts are copied. Elsewhere, `:name` is a parameter.
_TOKEN = re.compile(r"(--[^\n]*|'(?:[^']|'')*'|\$\$.*?\$\$|::)|(?<![\w:]):([a-z_][a-z0-9_]*)|%", re.DOTALL)

Conn = Connection | Driver


class Statement:
    """An SQL statement with named parameters, executed on the driver in the connection's current transaction."""

    def __init__(self, text: str) -> None:
        self.text = _TOKEN.sub(_for_driver, text)

    def rows(self, conn: Conn, **parameters: Any) -> list[dict[str, Any]]:
        """Execute the statement and return all rows."""
        return query(conn, self.text, parameters).fetchall()

    def row(self, conn: Conn, **parameters: Any) -> dict[str, Any] | None:
        """Execute the statement and return its first row, or None."""
        return query(conn, self.text, parameters).fetchone()

    def count(self, conn: Conn, **parameters: Any) -> int:
        """Execute the statement and return the number of selected or changed rows."""
        return query(conn, self.text, parameters).rowcount


def _for_driver(token: re.Match[str]) -> str:
    copied, parameter = token.groups()
    if parameter:
        return f"%({parameter})s"
    return copied.replace("%", "%%") if copied else "%%"


@lru_cache(STATEMENTS)
def statement(name: str, **parts: str) -> Statement:
    """Return the statement `file.block`. Raises KeyError if there is none.

    Each of the `parts` replaces `{part}` in the block and in the parts before it. Parts are the SQL that only the
    caller knows: the SELECT list of a `Record`, the condition and order of a search, a `part` of a file. Their values
    are parameters, as everywhere.
    """
    text = _block("name", name)
    for name_of_part, sql in parts.items():
        text = text.replace(f"{{{name_of_part}}}", sql)
    return Statement(text)


def part(name: str) -> str:
    """Return the part `file.block`. Raises KeyError if there is none."""
    return _block("part", name)


def _block(kind: str, name: str) -> str:
    file, _, block = name.partition(".")
    return blocks(FOLDER / f"{file}.sql")[kind, block]


@cache
def blocks(path: Path) -> Mapping[tuple[str, str], str]:
    """Return the blocks of a file by kind and name."""
    _, *parts = _BLOCK.split(path.read_text())
    return {(kind, name): text for kind, name, text in zip(*[iter(parts)] * 3, strict=True)}


def installed() -> dict[str, str]:
    """Return the definitions of all views and functions by name, in the order in which they are created."""
    files = [FOLDER / "rules.sql", *sorted(FOLDER.glob("*.sql")), *sorted(FOLDER.glob("previous/*.sql"))]
    return {name: text for path in files for (kind, name), text in blocks(path).items() if kind == "install"}


def install(connection: Connection) -> None:
    """Create all views and functions, in place of those of the same names."""
    drop_views(connection)
    for text in installed().values():
        connection.exec_driver_sql(text)


def drop_views(conn: Conn) -> None:
    """Drop all views. A migration does this before it drops a column that a view selects."""
    query(conn, f"DROP VIEW IF EXISTS {', '.join(VIEWS)}", {})
