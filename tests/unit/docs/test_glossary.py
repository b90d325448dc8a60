"""docs/glossary.md names what is in the code."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

PROJECT = Path(__file__).parents[3]
DEFINED = re.compile(r"^ *(?:async )?(?:def|class) (\w+)", re.MULTILINE)
PICTURES = re.compile(r"(?:^|_)(?:bells?|rings?|rung|tells?|told|retold|whose_turn)(?:_|$)")
ROWS = re.findall(
    r"^\| ([\w ,]+) \| [^|]+ \| (`[^|]+`) \|$", (PROJECT / "docs" / "glossary.md").read_text(), re.MULTILINE
)


def names(tree: ast.AST) -> Iterator[str]:
    """What a module defines, reads or passes by name, and the columns it declares."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield node.name
        elif isinstance(node, ast.Name):
            yield node.id
        elif isinstance(node, ast.Attribute):
            yield node.attr
        elif isinstance(node, ast.arg):
            yield node.arg
        elif isinstance(node, ast.Call) and ast.unparse(node.func) == "column":
            yield from (name.value for name in node.args[:1] if isinstance(name, ast.Constant))


@pytest.fixture(scope="module")
def used() -> set[str]:
    return {
        name
        for package in ("shared", "web", "workers", "cli")
        for path in (PROJECT / package).rglob("*.py")
        for name in names(ast.parse(path.read_text()))
    }


@pytest.mark.parametrize(("word", "examples"), ROWS, ids=[word for word, _ in ROWS])
def test_a_word_is_used_in_the_code(used: set[str], word: str, examples: str) -> None:
    assert [name for name in re.findall(r"`(\w+)`", examples) if name not in used] == []


def test_nothing_is_named_after_a_picture() -> None:
    found = [
        f"{path.relative_to(PROJECT)}: {name}"
        for package in ("shared", "web", "workers", "cli", "tests")
        for path in (PROJECT / package).rglob("*.py")
        if not {"projects", "clients"} & set(path.parts)
        for name in DEFINED.findall(path.read_text())
        if PICTURES.search(name)
    ]
    assert found == []


def test_both_tables_are_read() -> None:
    assert {"deployment", "fence"} <= {word for word, _ in ROWS}
