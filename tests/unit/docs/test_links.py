"""Every link in a Markdown file of the repository leads to a file, and to a heading where it names one."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from pymdownx.slugs import slugify

PROJECT = Path(__file__).parents[3]
FOLDERS = ("docs", "examples", "bench", "deploy", ".github")
PAGES = [*PROJECT.glob("*.md"), *(page for folder in FOLDERS for page in (PROJECT / folder).rglob("*.md"))]
FILES = [page for page in PAGES if "node_modules" not in page.parts]
FENCED = re.compile(r"^( *)(```+).*?^\1\2 *$", re.DOTALL | re.MULTILINE)
HEADING = re.compile(r"^#+ (.+?)(?: *\{#([\w-]+)\})?$", re.MULTILINE)
CODE = re.compile(r"`[^`\n]*`")
LINK = re.compile(r"\]\(\s*<?([^)\s>]+)")

slug = slugify(case="lower")  # as mkdocs.yml has it, and GitHub


def anchors(page: Path) -> set[str]:
    """Return the anchors of a page's headings."""
    headings = HEADING.findall(FENCED.sub("", page.read_text()))
    return {identifier or slug(re.sub(r"\]\([^)]*\)|[`*\[]", "", text), "-") for text, identifier in headings}


def broken(page: Path) -> Iterator[str]:
    """Yield the links of a page that lead nowhere. Addresses of the web are not looked at."""
    for target in LINK.findall(CODE.sub("", FENCED.sub("", page.read_text()))):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = target.partition("#")
        there = (page.parent / path).resolve() if path else page
        if not there.exists() or (anchor and anchor not in anchors(there)):
            yield target


@pytest.mark.parametrize("page", FILES, ids=lambda page: page.relative_to(PROJECT).as_posix())
def test_every_link_leads_somewhere(page: Path) -> None:
    assert list(broken(page)) == []


def test_pages_of_the_site_link_only_to_the_site() -> None:
    docs = PROJECT / "docs"
    outside = {
        (page.relative_to(docs).as_posix(), target)
        for page in docs.rglob("*.md")
        for target in LINK.findall(FENCED.sub("", page.read_text()))
        if not re.match(r"[a-z]+:|#", target)
        if not (page.parent / target.partition("#")[0]).resolve().is_relative_to(docs)
    }
    assert outside == set()


def test_a_link_that_leads_nowhere_is_reported(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# One `two`\n\n[a](#one-two) [b](#three) [c](none.md) [d](https://example.com)\n")

    assert list(broken(page)) == ["#three", "none.md"]
