"""The page of examples/members in a real browser: two people sign in, chat, and do not see each other's threads.

The rows are in `tests/js/members.mjs`.
"""

from __future__ import annotations

import pytest

from cli.machine.procfile import PROJECT
from tests.support.javascript import check, chromium, names_of_tests
from tests.support.stack import Stack


@pytest.fixture(scope="module")
def members(stack: Stack) -> str:
    return stack.deploy(PROJECT / "examples" / "members")


@pytest.mark.parametrize("row", names_of_tests("members.mjs"))
def test_the_page_does_what_people_expect(stack: Stack, members: str, row: str) -> None:
    check(row, "browser", "members.mjs", f"{stack.url}/d/{members}", "", TMPDIR=str(chromium()))
