"""The pictures of docs/: each is shown, small, and made by a scenario of the console; the chart by the bench."""

from __future__ import annotations

import re
import struct
from pathlib import Path

import pytest

PROJECT = Path(__file__).parents[3]
FOLDER = PROJECT / "docs" / "pictures"
CHART = FOLDER / "performance.svg"  # tests/release/test_performance_page.py
PICTURES = sorted({*FOLDER.iterdir()} - {CHART})
SHOWN = re.compile(r"!\[[^\]]+\]\(([^)]+)\)")
WIDTH, LARGEST_BYTES, MOST = 1280, 100_000, 10


def test_those_that_are_shown_are_those_there_are() -> None:
    shown = {
        (page.parent / target).resolve()
        for page in (PROJECT / "README.md", *(PROJECT / "docs").glob("*.md"))
        for target in SHOWN.findall(page.read_text())
    }

    assert shown == {*PICTURES, CHART}


def test_each_is_made_by_a_scenario() -> None:
    made = [
        name
        for path in (PROJECT / "tests" / "js" / "console").glob("*.mjs")
        for name in re.findall(r'\bpicture\("([\w-]+)"\)', path.read_text())
    ]

    assert sorted(made) == [path.stem for path in PICTURES]


def test_there_are_few() -> None:
    assert len(PICTURES) <= MOST


@pytest.mark.parametrize("picture", PICTURES, ids=lambda path: path.stem)
def test_a_picture_is_small(picture: Path) -> None:
    data = picture.read_bytes()
    signature, kind, width = struct.unpack(">8s4x4sI", data[:20])

    assert (signature, kind, width) == (b"\x89PNG\r\n\x1a\n", b"IHDR", WIDTH)
    assert len(data) <= LARGEST_BYTES
