"""Which runs are live, or have ended without success."""

from __future__ import annotations

import pytest

from shared.models import (
    LIVE_RUN_STATUSES,
    RUN,
    UNSUCCESSFUL_RUN_STATUSES,
    RunStatus,
    is_live,
    is_unsuccessful,
)


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
