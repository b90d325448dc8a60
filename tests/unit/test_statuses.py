"""Which runs are live, or have ended without success, is written down once."""

from __future__ import annotations

import re
from itertools import chain
from pathlib import Path

import pytest

from shared.models import (
    LIVE_RUN_STATUSES,
    RUN,
    UNSUCCESSFUL_RUN_STATUSES,
    RunStatus,
    is_live,
    is_unsuccessful,
)

PROJECT = Path(__file__).parents[2]
HOME = PROJECT / "shared" / "models" / "statuses.py"
FROZEN = PROJECT / "shared" / "migrations" / "versions"
BETWEEN = r"""["']?\s*,\s*["']?(?:RunStatus\.)?"""


def sources() -> list[Path]:
    found = chain.from_iterable((PROJECT / package).rglob("*.py") for package in ("shared", "web", "workers"))
    return [path for path in found if path != HOME and not path.is_relative_to(FROZEN)]


def respelled(statuses: tuple[RunStatus, ...]) -> list[str]:
    """The modules with a list of just these statuses, in SQL or in Python."""
    names = "|".join(statuses)
    word = rf"(?:{names})\b"
    listed = re.compile(rf"\b{word}(?:{BETWEEN}{word}){{{len(statuses) - 1}}}", re.IGNORECASE)
    return [
        f"{path.relative_to(PROJECT)}: {match[0]}"
        for path in sources()
        for match in listed.finditer(path.read_text())
        if {word.upper() for word in re.findall(names, match[0], re.IGNORECASE)} == {s.name for s in statuses}
    ]


@pytest.mark.parametrize(
    "statuses", [LIVE_RUN_STATUSES, UNSUCCESSFUL_RUN_STATUSES], ids=["live", "unsuccessful"]
)
def test_no_other_module_lists_these_statuses(statuses: tuple[RunStatus, ...]) -> None:
    assert respelled(statuses) == []


def test_every_end_is_a_success_or_not() -> None:
    assert {*LIVE_RUN_STATUSES, *UNSUCCESSFUL_RUN_STATUSES, RunStatus.SUCCESS} == set(RunStatus)


@pytest.mark.parametrize(
    ("condition", "name"), [(is_live, "ix_run_live"), (is_unsuccessful, "ix_run_failed")]
)
def test_the_condition_is_that_of_its_index(condition: object, name: str) -> None:
    assert callable(condition)
    [index] = [index for index in RUN.indexes if index.name == name]
    assert str(index.dialect_options["postgresql"]["where"]) == condition()
    assert condition("r") == f"r.{condition()}"
