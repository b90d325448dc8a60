"""Every page does what it says: its files are written and its code is executed against a running service.

Each page has a working folder and an organization of its own. `RUNYARD_API_KEY` is a key of that organization with the
role `admin`.
"""

from __future__ import annotations

import json
import tempfile
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import yaml

from tests.docs.blocks import EXECUTED, NEEDS, SHOWN, Block, blocks
from tests.docs.sessions import PageSession
from tests.support.shared_stack import SharedStack

pytestmark = pytest.mark.release

PROJECT = Path(__file__).parents[2]
SAMPLE = Path(__file__).with_name("sample.md")
# Pages that a reader follows from top to bottom. Other pages have parts of commands, and commands for a whole machine.
PAGES = [
    SAMPLE,
    PROJECT / "README.md",
    *(PROJECT / "docs").glob("*.md"),
    *sorted((PROJECT / "docs" / "guides").glob("*.md")),
]
PARSERS = {".json": json.loads, ".yaml": yaml.safe_load, ".yml": yaml.safe_load, ".toml": tomllib.loads}


def name_of(page: Path) -> str:
    return page.relative_to(PROJECT).with_suffix("").as_posix().removeprefix("docs/")


each_page = pytest.mark.parametrize("page", PAGES, ids=name_of)


@contextmanager
def key_for(stack: SharedStack, page: Path) -> Iterator[str]:
    """Yield a key for a page, and delete the organization with all it has afterwards."""
    organization = stack.client.post(
        "/v2/organizations", json={"name": name_of(page).replace("/", "-").lower()}
    )
    organization.raise_for_status()
    address = f"/v2/organizations/{organization.json()['id']}"
    try:
        headers = {"X-Tenant-Id": organization.json()["id"]}
        key = stack.client.post("/v2/keys", json={"name": "page", "role": "admin"}, headers=headers)
        key.raise_for_status()
        yield key.json()["key"]
    finally:
        stack.client.delete(address)


@contextmanager
def folder_for_all() -> Iterator[Path]:
    """Yield a folder that other users can enter. A service that runs as root executes user code as another user."""
    with tempfile.TemporaryDirectory(prefix="runyard-page-", ignore_cleanup_errors=True) as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


def check(block: Block) -> None:
    """Fail if the block's language or need is unknown, or its file is not of the format that its name says."""
    assert block.needs is None or block.needs in NEEDS, f"{block.place}: {block.needs}"
    if block.title is None:
        assert block.language in (*EXECUTED, *SHOWN), f"{block.place}: {block.language}"
    elif parse := PARSERS.get(Path(block.title).suffix):
        parse(block.text)


@each_page
def test_the_code_of_a_page_works(page: Path, request: pytest.FixtureRequest) -> None:
    found = list(blocks(page))
    for block in found:
        check(block)
    if not any(block.is_executed for block in found):
        return

    stack: SharedStack = request.getfixturevalue("stack")
    with folder_for_all() as folder, key_for(stack, page) as key, PageSession(folder, stack, key) as session:
        for block in found:
            if block.needs is None:
                session.run(block)


@pytest.mark.parametrize("language", ["sh", "python", "ts"])
def test_a_block_that_fails_is_named_with_its_output(
    language: str, stack: SharedStack, tmp_path: Path
) -> None:
    page = tmp_path / "page.md"
    text = {"sh": "echo said\nfalse", "python": "print('said')\n1 / 0", "ts": 'console.log("said");\nnone();'}
    page.write_text(f"# Page\n\n```{language}\n{text[language]}\n```\n")
    [block] = blocks(page)

    with PageSession(tmp_path, stack, stack.api_key) as session, pytest.raises(AssertionError) as failed:
        session.run(block)

    assert f"{page}:3" in str(failed.value)
    assert "--- output\nsaid" in str(failed.value)
