"""Components of generative UI in a real browser, of a Python and of a JavaScript project, with the public React client.

The rows are in `tests/js/cards.mjs`, the page is `tests/js/browser/cards.jsx`.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.support.javascript import check, chromium, names_of_tests
from tests.support.stack import Stack

CARDS = Path(__file__).parents[1] / "projects" / "cards"


@pytest.fixture(scope="module", params=["python", "javascript"])
def cards(request: pytest.FixtureRequest, stack: Stack, tmp_path_factory: pytest.TempPathFactory) -> str:
    if request.param == "python":
        return stack.deploy(CARDS)
    folder = shutil.copytree(CARDS, tmp_path_factory.mktemp("cards") / "cards-javascript")
    shutil.move(folder / "javascript.json", folder / "langgraph.json")
    return stack.deploy(folder)


@pytest.mark.parametrize("row", names_of_tests("cards.mjs"))
def test_a_page_shows_components_of_a_deployment(stack: Stack, cards: str, row: str) -> None:
    check(
        row, "browser", "cards.mjs", f"{stack.url}/d/{cards}", stack.api_key, TMPDIR=str(chromium())
    )  # fmt: skip
