"""The page of examples/members in a real browser: two people sign in, chat, and do not see each other's threads.

The rows are in `tests/js/members.mjs`.
"""

from __future__ import annotations

import re

import pytest

from cli.machine.procfile import PROJECT
from tests.support.javascript import JS, chromium, outcomes
from tests.support.stack import Stack

ROWS = re.findall(r'^  test\("([^"]+)"', (JS / "members.mjs").read_text(), re.MULTILINE)


@pytest.fixture(scope="module")
def members(stack: Stack) -> str:
    return stack.deploy(PROJECT / "examples" / "members")


@pytest.mark.parametrize("row", ROWS)
def test_the_page_does_what_people_expect(stack: Stack, members: str, row: str) -> None:
    failures = outcomes("browser", "members.mjs", f"{stack.url}/d/{members}", "", TMPDIR=str(chromium()))

    assert row in failures, "it was not run"
    assert failures[row] is None, failures[row]
