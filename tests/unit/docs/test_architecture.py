"""docs/architecture.md draws every state, and each step of a run and a revision is where it says."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from shared.models import RevisionStatus, RunStatus, ThreadStatus

PROJECT = Path(__file__).parents[3]
PAGE = (PROJECT / "docs" / "architecture.md").read_text()
# An archive that is missing, and a state nobody can tell, are not drawn: nothing here leads there.
NOT_DRAWN = {RevisionStatus.CREATE_FAILED, RevisionStatus.UNKNOWN}


def section(title: str) -> str:
    return PAGE.partition(f"\n## {title}\n")[2].partition("\n## ")[0]


STEPS = re.findall(r"`([\w/]+\.py):(\w+)`", section("Where each step is"))


@pytest.mark.parametrize("states", [RunStatus, ThreadStatus, RevisionStatus])
def test_every_state_is_drawn(states: type[RunStatus] | type[ThreadStatus] | type[RevisionStatus]) -> None:
    drawings = section("States")

    assert [s for s in states if s not in NOT_DRAWN and str(s) not in drawings] == []


@pytest.mark.parametrize(("file", "function"), STEPS, ids=":".join)
def test_each_step_is_where_the_page_says(file: str, function: str) -> None:
    tree = ast.parse((PROJECT / file).read_text())

    assert function in {
        n.name for n in ast.walk(tree) if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef)
    }


def test_the_way_of_a_run_and_of_a_revision_is_there() -> None:
    assert {"web", "shared", "workers"} <= {file.partition("/")[0] for file, _ in STEPS}
