"""A chat in a real browser, driven by the hooks that people build pages with: the newer one speaks protocol v2.

The rows are in `tests/js/browser.mjs`, the page in `tests/js/browser`; all of a hook run in one browser.
"""

from __future__ import annotations

import re

import pytest

from tests.support.javascript import CACHE, JS, check, chromium
from tests.support.stack import Stack

ROWS = re.findall(r'^  (row|newer)\("([^"]+)"', (JS / "browser.mjs").read_text(), re.MULTILINE)
TABLE = [
    pytest.param(hook, row, marks=pytest.mark.release if hook == "old" else ())
    for hook in ("old", "new")
    for kind, row in ROWS
    if hook == "new" or kind == "row"
]


@pytest.mark.parametrize(("hook", "row"), TABLE)
def test_a_chat_does_what_people_expect(stack: Stack, chatroom: str, hook: str, row: str) -> None:
    place = CACHE / "pages"  # what a failed row leaves: a screenshot, and what its console said
    check(
        row,
        "browser",
        "browser.mjs",
        f"{stack.url}/d/{chatroom}",
        stack.api_key,
        HOOK=hook,
        ARTIFACTS=str(place),
        TMPDIR=str(chromium()),
    )
