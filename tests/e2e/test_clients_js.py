"""Every method of the JavaScript client, in both release lines in use, against the whole platform.

The rows are in `tests/js/rows.mjs`. All rows of a release line run in one process.
"""

from __future__ import annotations

import json
import re

import pytest

from tests.support.javascript import JS, LINES, NEWEST, check
from tests.support.stack import Stack

ROWS = re.findall(r'^(row|newer)\("([^"]+)"', (JS / "rows.mjs").read_text(), re.MULTILINE)
TABLE = [
    pytest.param(line, row, marks=() if line == NEWEST else pytest.mark.release)
    for line in LINES
    for kind, row in ROWS
    if line == NEWEST or kind == "row"
]


@pytest.fixture(scope="module")
def deployment(stack: Stack, kitchen: str) -> tuple[str, str]:
    """Return `(address, API key)` of a deployment with one graph per behaviour."""
    return f"{stack.url}/d/{kitchen}", stack.api_key


@pytest.mark.parametrize(("line", "row"), TABLE)
def test_each_method_does_what_it_says(deployment: tuple[str, str], line: str, row: str) -> None:
    check(row, line, "rows.mjs", *deployment)


@pytest.mark.parametrize("line", LINES)
def test_it_is_the_line_that_the_table_names(line: str) -> None:
    package = json.loads((JS / line / "package.json").read_text())
    assert package["dependencies"] == {"@langchain/langgraph-sdk": LINES[line]}
