"""Concurrent commands to a thread with open interrupts."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from uuid import UUID

import pytest

import tests.support.factories as make
from shared.deployments.deployments import DeploymentRef
from shared.infra.postgres import connection
from shared.models import RunStatus, ThreadStatus
from shared.protocol import resume
from shared.protocol.resume import NoSuchInterrupt
from shared.runs.create import Created, RunRequest
from tests.support.creating import insert_run

AT_ONCE = 4


@pytest.fixture
def asking(deployment: DeploymentRef) -> UUID:
    """A thread whose run has ended with two interrupts open."""
    interrupts = {"task": [{"id": "q", "value": 1}], "other": [{"id": "r", "value": 2}]}
    thread_id = make.thread(deployment.id, status=ThreadStatus.INTERRUPTED, interrupts=interrupts)
    make.run(deployment, thread_id, status=RunStatus.SUCCESS, attempt=1)
    return thread_id


def at_once(act: Callable[[], Created]) -> list[Any]:
    """Call `act` several times concurrently. Returns each outcome: the run's command, or NoSuchInterrupt."""

    def outcome(_: int) -> Any:
        try:
            return act().row["kwargs"]["command"]
        except NoSuchInterrupt:
            return NoSuchInterrupt

    with ThreadPoolExecutor(AT_ONCE) as pool:
        return list(pool.map(outcome, range(AT_ONCE)))


def test_one_of_several_inputs_is_the_answer(deployment: DeploymentRef, asking: UUID) -> None:
    def start() -> Created:
        request = RunRequest(assistant_id="agent", input="yes", if_not_exists="create")
        with connection() as conn:
            request = resume.ResumeOrStart(asking).complete(conn, deployment, request)
            return insert_run(conn, deployment, request, thread_id=asking)

    outcomes = at_once(start)
    assert outcomes.count({"resume": "yes"}) == 1
    assert outcomes.count(None) == AT_ONCE - 1


def test_one_of_several_answers_to_a_question_counts(deployment: DeploymentRef, asking: UUID) -> None:
    def respond() -> Created:
        with connection() as conn:
            request = RunRequest(assistant_id="")
            request = resume.AnswerInterrupts(asking, {"q": "yes"}).complete(conn, deployment, request)
            return insert_run(conn, deployment, request, thread_id=asking)

    outcomes = at_once(respond)
    assert outcomes.count({"resume": {"q": "yes"}}) == 1
    assert outcomes.count(NoSuchInterrupt) == AT_ONCE - 1
