"""Every migration keeps the previous release working: it only expands the schema and blocks no writer for long.

A migration that removes something states in `CONTRACTS` the release since which nothing uses it.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from shared.infra import database_version

VERSIONS = sorted(database_version.VERSIONS.glob("[0-9]*.py"))
CONTRACTS = "CONTRACTS"

TAKEN_AWAY = {
    "drop_column": "a column that the release before reads or writes",
    "drop_table": "a table that the release before reads or writes",
    "rename_table": "a name that the release before uses",
    "create_unique_constraint": "rows that the release before may write are refused",
    "create_check_constraint": "rows that the release before may write are refused",
    "create_exclude_constraint": "rows that the release before may write are refused",
    "create_foreign_key": "rows that the release before may write are refused, and both tables are locked",
}
ALTERED = {"new_column_name", "type_", "nullable"}
IN_WORDS = re.compile(
    r"\b(DROP\s+(TABLE|COLUMN)|RENAME|ALTER\s+COLUMN\s+\S+\s+(TYPE|SET\s+DATA\s+TYPE|SET\s+NOT\s+NULL)"
    r"|ADD\s+CONSTRAINT|TRUNCATE|CREATE\s+(UNIQUE\s+)?INDEX\s+(?!CONCURRENTLY))",
    re.IGNORECASE,
)
AGAIN = {"if_exists", "if_not_exists"}


def objections(code: str) -> list[str]:
    """Return the operations of a migration that would break the previous release or block concurrent writers."""
    tree = ast.parse(code)
    made = {_text(call.args[0]) for call in _calls(tree, "op", "create_table")}
    found: list[str] = []
    for call in _calls(tree, "op"):
        name = _name(call)
        if name in TAKEN_AWAY:
            found.append(f"{name}: {TAKEN_AWAY[name]}")
        elif name == "alter_column":
            found += [f"alter_column: {word}" for word in sorted(ALTERED & _keywords(call))]
        elif name == "add_column":
            found += _of_column(call)
        elif name == "execute":
            found += _of_words(call)
        elif name == "create_index":
            found += _of_index(call, made)
    return found + _of_repetition(tree, made)


def _calls(tree: ast.AST, owner: str, name: str | None = None) -> Iterator[ast.Call]:
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and isinstance(node.func.value, ast.Name)
            and node.func.value.id == owner
            and name in (None, node.func.attr)
        ):
            yield node


def _name(call: ast.Call) -> str:
    assert isinstance(call.func, ast.Attribute)
    return call.func.attr


def _keywords(call: ast.Call) -> set[str]:
    return {keyword.arg for keyword in call.keywords if keyword.arg}


def _text(node: ast.AST | None) -> str | None:
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else None


def _of_column(call: ast.Call) -> list[str]:
    found = []
    for column in [node for node in ast.walk(call) if isinstance(node, ast.Call) and _is_column(node)]:
        given = {keyword.arg: keyword.value for keyword in column.keywords}
        nullable = given.get("nullable")
        is_required = isinstance(nullable, ast.Constant) and nullable.value is False
        if is_required and "server_default" not in given:
            found.append("add_column: NOT NULL without a default, which the release before does not write")
        if given.get("unique") is not None or given.get("index") is not None:
            found.append("add_column: with an index, which locks the table")
    return found


def _is_column(call: ast.Call) -> bool:
    return isinstance(call.func, ast.Attribute) and call.func.attr == "Column"


def _of_words(call: ast.Call) -> list[str]:
    words = " ".join(filter(None, map(_text, ast.walk(call))))
    found = IN_WORDS.search(words)
    return [f"execute: {found[0]}"] if found else []


def _of_index(call: ast.Call, made: set[str | None]) -> list[str]:
    table = _text(call.args[1]) if len(call.args) > 1 else None
    if table in made:
        return []
    unique = next((keyword.value for keyword in call.keywords if keyword.arg == "unique"), None)
    if isinstance(unique, ast.Constant) and unique.value is True:
        return ["create_index: unique, so that rows which the release before may write are refused"]
    return ["create_index: nobody may write to its table meanwhile; `shared.migrations.create_index` has one"]


def _of_repetition(tree: ast.AST, made: set[str | None]) -> list[str]:
    """Return the operations that cannot be repeated, in a migration that builds an index online.

    Such a migration is not a single transaction, so after a failure it starts from the beginning.
    """
    if not list(_calls(tree, "migrations")):
        return []
    others = [
        call for call in _calls(tree, "op") if _name(call) not in ("f", "get_bind", "get_context", "execute")
    ]
    return [
        f"{_name(call)}: beside an index made online it needs if_exists or if_not_exists"
        for call in others
        if not AGAIN & _keywords(call)
    ]


def contracts(code: str) -> str | None:
    """Return the `CONTRACTS` of a migration, None if it has none."""
    for node in ast.parse(code).body:
        if isinstance(node, ast.Assign) and [getattr(one, "id", None) for one in node.targets] == [CONTRACTS]:
            return _text(node.value)
    return None


@pytest.mark.parametrize("path", VERSIONS, ids=lambda path: path.stem)
def test_a_version_expands_or_says_since_when_nothing_uses_it(path: Path) -> None:
    code = path.read_text()
    found = objections(code)
    reason = contracts(code)
    assert not found or reason, f"{path.name}: {found}"
    assert reason is None or (found and "release" in reason), "CONTRACTS is for what takes something away"


def test_the_versions_follow_each_other() -> None:
    numbers = [path.stem.partition("_")[0] for path in VERSIONS]
    first = int(database_version.FIRST)
    assert numbers == [f"{n:04}" for n in range(first, first + len(VERSIONS))]


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("op.drop_column('run', 'usage')", "drop_column"),
        ("op.drop_table('run')", "drop_table"),
        ("op.rename_table('run', 'runs')", "rename_table"),
        ("op.alter_column('run', 'rings', new_column_name='notifications')", "new_column_name"),
        ("op.alter_column('run', 'a', type_=sa.Text())", "type_"),
        ("op.alter_column('run', 'a', nullable=False)", "nullable"),
        ("op.add_column('run', sa.Column('a', sa.Text(), nullable=False))", "NOT NULL without a default"),
        ("op.add_column('run', sa.Column('a', sa.Text(), unique=True))", "with an index"),
        ("op.create_unique_constraint('a', 'run', ['b'])", "create_unique_constraint"),
        ("op.create_foreign_key('a', 'run', 'thread', ['b'], ['c'])", "both tables are locked"),
        ("op.create_index('a', 'run', ['b'])", "nobody may write to its table"),
        ("op.create_index('a', 'run', ['b'], unique=True)", "unique"),
        ("op.execute('ALTER TABLE run RENAME COLUMN a TO b')", "RENAME"),
        ("op.execute(sa.text('alter table run drop column a'))", "drop column"),
        ("op.execute('ALTER TABLE run ALTER COLUMN a TYPE text')", "TYPE"),
        ("op.execute('CREATE INDEX a ON run (b)')", "CREATE INDEX"),
        (
            "op.add_column('run', sa.Column('a', sa.Text()))\n    migrations.create_index('a', 'run', ['a'])",
            "needs if_exists or if_not_exists",
        ),
    ],
)
def test_what_would_break_a_release_is_found(body: str, expected: str) -> None:
    assert expected in " ".join(objections(f"def upgrade():\n    {body}\n"))


@pytest.mark.parametrize(
    "body",
    [
        "op.add_column('run', sa.Column('a', sa.Text()))",
        "op.add_column('run', sa.Column('a', sa.Text(), nullable=False, server_default=''))",
        "op.drop_index('a', 'run')",
        "op.drop_constraint('a', 'run')",
        "op.create_table('new', sa.Column('a', sa.Text(), nullable=False))\n    op.create_index('i', 'new', ['a'])",
        'op.execute("ALTER TABLE run SET (autovacuum_vacuum_scale_factor = 0.01)")',
        "migrations.create_index('a', 'run', ['b'])",
    ],
)
def test_what_expands_is_let_through(body: str) -> None:
    assert objections(f"def upgrade():\n    {body}\n") == []
