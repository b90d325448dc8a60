"""Functions in the database: what a release calls is what a version makes, and their plans go along indexes."""

from __future__ import annotations

from pathlib import Path

import pytest

from shared.infra import schema
from shared.infra.routines import Routine
from shared.migrations import routines


@pytest.mark.parametrize("routine", routines.CURRENT, ids=lambda routine: routine.name)
def test_a_version_makes_what_this_release_calls(routine: Routine) -> None:
    made = list(schema.VERSIONS.glob(f"*_{routine.name}.sql"))

    assert [path.read_text() for path in made] == [routine.definition + "\n"], (
        "a released function stays as it is: the release before calls it. Give the changed one the next number, and"
        " its text to a new version."
    )


def test_no_function_is_made_by_two_versions() -> None:
    names = [_name(path) for path in schema.VERSIONS.glob("*.sql")]

    assert sorted(names) == sorted(set(names))
    assert {routine.name for routine in routines.CURRENT} <= set(names)


def _name(path: Path) -> str:
    return path.stem.split("_", 1)[1]
