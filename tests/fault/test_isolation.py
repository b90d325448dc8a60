"""The whole platform on a machine without bubblewrap: it builds, it runs, and its addresses stay its own."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.stack import Stack

KITCHEN = Path(__file__).parent.parent / "projects" / "kitchen"


@pytest.fixture
def bare_stack(tmp_path: Path) -> Iterator[Stack]:
    """A platform that finds every program but bubblewrap."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for place in os.environ["PATH"].split(os.pathsep):
        for found in Path(place).glob("*") if Path(place).is_dir() else ():
            if found.name != "bwrap" and not (folder / found.name).is_symlink():
                (folder / found.name).symlink_to(found)
    with Stack(env={"PATH": str(folder)}) as running:
        yield running


def test_user_code_sees_nothing_of_the_platform_without_a_sandbox(bare_stack: Stack) -> None:
    bare_stack.deploy(KITCHEN, name="kitchen")

    seen = bare_stack.sdk("kitchen").runs.wait(None, "peeks", input={"text": "x"})["log"][0]

    assert seen["kitchen"] == "open"
    assert not [name for name in seen["env"] if name.startswith(("RUNYARD", "DATABASE", "REDIS", "UV_"))]
    assert seen["credentials"] is False, "no process it can look into knows where the database is"
    assert "user code runs without a sandbox" in bare_stack.log.read_text()
