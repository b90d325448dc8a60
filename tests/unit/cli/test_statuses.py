"""The command line's table of status words says what the service's says."""

from __future__ import annotations

from cli.api import statuses
from shared.models import REVISION_ENDS, RevisionStatus, RunStatus
from shared.runs import read

OPEN_OR_SUCCESSFUL = {RunStatus.PENDING, RunStatus.RUNNING, RunStatus.SUCCESS}


def test_the_ends_of_a_revision_are_the_service_s() -> None:
    assert statuses.REVISION_ENDS == REVISION_ENDS
    assert {end for end in REVISION_ENDS if end.endswith("FAILED")} == statuses.REVISION_FAILURES


def test_the_unsuccessful_ends_of_a_run_are_the_service_s() -> None:
    assert set(RunStatus) - OPEN_OR_SUCCESSFUL == statuses.UNSUCCESSFUL_RUNS


def test_what_a_run_waits_for_is_the_service_s() -> None:
    assert set(statuses.WAITS_FOR) == {read.ANSWER, read.RESUME}


def test_a_status_is_shown_by_what_it_means() -> None:
    shown = {status: statuses.status_style(status) for status in RevisionStatus}

    assert {status for status, style in shown.items() if style == "bold red"} == statuses.REVISION_FAILURES
    assert {status for status, style in shown.items() if style != "cyan"} == REVISION_ENDS
