"""A chat page in a real browser, built with the public React hooks; the newer hook uses protocol v2.

The chats are graphs in Python and, with the same behaviour, in TypeScript.
The rows are in `tests/js/browser.mjs`, the page in `tests/js/browser`. All rows of a hook run in one browser.
"""

from __future__ import annotations

import re

import pytest

from tests.support.javascript import CACHE, JS, check, chromium
from tests.support.stack import Stack

ROWS = re.findall(r'^  (row|newer)\("([^"]+)"', (JS / "browser.mjs").read_text(), re.MULTILINE)
TABLE = [
    pytest.param(
        project, hook, row, marks=() if (project, hook) == ("chatroom", "new") else pytest.mark.release
    )
    for project in ("chatroom", "twins")
    for hook in ("old", "new")
    for kind, row in ROWS
    if hook == "new" or kind == "row"
]


@pytest.mark.parametrize(("project", "hook", "row"), TABLE)
def test_a_chat_does_what_people_expect(
    request: pytest.FixtureRequest, stack: Stack, project: str, hook: str, row: str
) -> None:
    place = CACHE / "pages"  # failed rows store a screenshot and the console output here
    check(
        row,
        "browser",
        "browser.mjs",
        f"{stack.url}/d/{request.getfixturevalue(project)}",
        stack.api_key,
        HOOK=hook,
        ARTIFACTS=str(place),
        TMPDIR=str(chromium()),
    )
