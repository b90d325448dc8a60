"""A deployment's interface keeps to its own API document, whatever it is sent.

The runner is played here: it ends a run as soon as it is notified of, and answers what is asked of a graph host.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from uuid import UUID

import orjson
import pytest
from schemathesis import Case
from sqlalchemy import text

import tests.support.factories as make
from shared import graph_queries
from shared.infra import broker, encryption
from shared.infra.postgres import connection
from tests.contract.conforming import operations, require_conforming
from tests.contract.conftest import Api, Notifications
from tests.contract.documented import deployment_records
from tests.support.acting import act

EXAMPLES = 12
FOLLOWS = ("/stream", "/wait", "/join")  # they answer when a run has ended
KNOWN = {"assistant_id": "agent", "graph_id": "agent", "schedule": "0 0 1 1 *", "version": 1}
CHECKPOINT = "1f0c1b9e-0000-6000-8000-000000000000"
FIRST_PENDING = text("""
SELECT run_id, not_before IS NULL OR not_before <= now() AS is_due FROM run
WHERE thread_id = :thread_id AND status = 'pending' ORDER BY created_seq LIMIT 1
""")


class Runner:
    """Ends a run at once, with those that waited for it, and answers every question."""

    def __init__(self, notifications: Notifications) -> None:
        self.is_away = False
        notifications.notify = self.notify  # type: ignore[method-assign]

    def notify(self, task: str, queue: str, id: UUID | str) -> None:
        if self.is_away:
            return
        if task == broker.EXECUTE_RUNS:
            self._end(id)
        elif task == broker.ANSWER_QUERIES and (question := graph_queries.take(UUID(str(id)))):
            graph_queries.answer(UUID(str(id)), orjson.dumps(self._answer(question)))

    def _end(self, run_id: UUID | str) -> None:
        with connection() as conn:
            thread_id = conn.scalar(text("SELECT thread_id FROM run WHERE run_id = :id"), {"id": run_id})
        while True:
            with connection() as conn:
                first = conn.execute(FIRST_PENDING, {"thread_id": thread_id}).one_or_none()
            if first is None or not first.is_due:
                return
            act(first.run_id, {"a": 1})

    def _answer(self, question: graph_queries.Question) -> Any:
        state = {"values": {}, **make.state(str(question.thread_id), CHECKPOINT)}
        answers = {"state": state, "history": [state], "update": {"checkpoint": state["checkpoint"]}}
        return answers[question.document["op"]]


@pytest.fixture
def keys() -> Iterator[None]:
    """A key to keep answers with."""
    encryption.configure([encryption.new_key()])
    yield
    encryption.configure([])


def test_it_keeps_to_its_document(api: Api, notifications: Notifications, keys: None) -> None:
    document: Any = api.get("/openapi.json").json
    described = operations(api.client.application, document)
    runner = Runner(notifications)

    def records(operation: Any) -> dict[str, str]:
        runner.is_away = True
        known = deployment_records(api)
        runner.is_away = False
        if "{run_id}" not in operation.path or operation.path.endswith(FOLLOWS):
            known |= {"thread_id": known["idle_thread_id"], "run_id": known["ended_run_id"]}
        return known

    require_conforming(described, records, examples=EXAMPLES, change=sendable, timeout=0.2)


def sendable(case: Case, exists: bool) -> None:
    """The request without what would be another one, or would wait for hours; names in bodies are known ones."""
    for name, value in case.path_parameters.items():
        case.path_parameters[name] = str(value).replace("/", "") or "x"
    for body in case.body if isinstance(case.body, list) else [case.body]:
        if isinstance(body, dict):
            if case.path.endswith(FOLLOWS):
                body.pop("after_seconds", None)
            if exists:
                body.pop("webhook", None)
                body.update(
                    {name: value for name, value in KNOWN.items() if isinstance(body.get(name), type(value))}
                )
