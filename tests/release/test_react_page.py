"""The page of examples/react: it builds with the packages of its lock file, and works in a real browser.

The page talks to the example's graph, and to the same graph in TypeScript.
The rows are in `tests/js/react.mjs`.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from cli.machine.procfile import PROJECT
from tests.docs.blocks import blocks
from tests.support import example_pages, javascript
from tests.support.stack import Stack

EXAMPLE = PROJECT / "examples" / "react"
PAGE = EXAMPLE / "page"
GUIDE = PROJECT / "docs" / "guides" / "react.md"


@pytest.fixture(scope="module")
def example(stack: Stack) -> str:
    return stack.deploy(EXAMPLE)


@pytest.fixture(scope="module")
def built_page() -> Path:
    return example_pages.built(PAGE)


@pytest.fixture(scope="module", params=["example", "twins"])
def page(request: pytest.FixtureRequest, stack: Stack, built_page: Path) -> Iterator[str]:
    """Address of the built page, which talks to a deployment of the graph."""
    deployment_url = f"{stack.url}/d/{request.getfixturevalue(request.param)}"
    with example_pages.served(built_page, deployment_url, stack.api_key) as url:
        yield url


@pytest.mark.parametrize("row", javascript.names_of_tests("react.mjs"))
def test_the_page_does_what_people_expect(page: str, row: str) -> None:
    javascript.check(row, "browser", "react.mjs", page, "", TMPDIR=str(javascript.chromium()))


def test_the_guide_shows_the_files_of_the_page() -> None:
    shown = {block.title: block.text for block in blocks(GUIDE) if block.title}
    assert list(shown) == ["my-chat/page/vite.config.ts"]
    for title, text in shown.items():
        assert text == (EXAMPLE / title.removeprefix("my-chat/")).read_text()
