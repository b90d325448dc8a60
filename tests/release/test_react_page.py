"""The page of examples/react: it builds with the packages of its lock file, and works in a real browser.

The page talks to the example's graph, and to the same graph in TypeScript.
The rows are in `tests/js/react.mjs`.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from cli.machine.procfile import PROJECT
from tests.docs.blocks import blocks
from tests.support import javascript
from tests.support.servers import free_port
from tests.support.stack import Stack
from tests.support.waiting import wait_until

EXAMPLE = PROJECT / "examples" / "react"
PAGE = EXAMPLE / "page"
GUIDE = PROJECT / "docs" / "guides" / "react.md"
BUILD = ("node_modules/typescript/bin/tsc", "node_modules/vite/bin/vite.js build")


@pytest.fixture(scope="module")
def example(stack: Stack) -> str:
    return stack.deploy(EXAMPLE)


@pytest.fixture(scope="module")
def built_page() -> Path:
    for command in BUILD:
        assert javascript.run_script(PAGE, *command.split()) == 0
    return javascript.installed(PAGE)


@pytest.fixture(scope="module", params=["example", "twins"])
def page(request: pytest.FixtureRequest, stack: Stack, built_page: Path) -> Iterator[str]:
    """Address of the built page, which talks to a deployment of the graph."""
    deployment_url = f"{stack.url}/d/{request.getfixturevalue(request.param)}"
    port = free_port()
    server = subprocess.Popen(
        [
            *(javascript.NODE / "node", "node_modules/vite/bin/vite.js", "preview"),
            *("--host", "127.0.0.1", "--port", str(port), "--strictPort"),
        ],
        cwd=built_page,
        env=javascript.environment(DEPLOYMENT_URL=deployment_url, RUNYARD_API_KEY=stack.api_key),
        stdout=subprocess.DEVNULL,
    )
    url = f"http://127.0.0.1:{port}/"
    try:
        wait_until(lambda: _serves(url), 30)
        yield url
    finally:
        server.terminate()
        server.wait(timeout=30)


def _serves(url: str) -> bool:
    try:
        return httpx.get(url).is_success
    except httpx.TransportError:
        return False


@pytest.mark.parametrize("row", javascript.names_of_tests("react.mjs"))
def test_the_page_does_what_people_expect(page: str, row: str) -> None:
    javascript.check(row, "browser", "react.mjs", page, "", TMPDIR=str(javascript.chromium()))


def test_the_guide_shows_the_files_of_the_page() -> None:
    shown = {block.title: block.text for block in blocks(GUIDE) if block.title}
    assert list(shown) == ["my-chat/page/vite.config.ts"]
    for title, text in shown.items():
        assert text == (EXAMPLE / title.removeprefix("my-chat/")).read_text()
