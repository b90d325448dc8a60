"""Both interfaces conform to their API documents, and never answer with a 5xx.

Every operation receives its smallest valid request, once for existing records and once for unknown ids. In the release
ring, it also receives random requests that the document allows or forbids. The answer must be documented in status, type
and schema. The test plays the runner: it ends runs when it is notified of them, and answers queries for a graph host.

Functions import schemathesis: its import takes most of a second, which each worker would spend on collecting tests.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from uuid import UUID, uuid4

import orjson
import pytest
from flask import Flask
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from sqlalchemy import text

import tests.support.factories as make
from shared.hosts import calls
from shared.hosts.pending_calls import HostCall
from shared.infra import broker
from shared.infra.postgres import connection
from tests.contract.bad_input import good, good_query
from tests.contract.conftest import ADMIN_KEY, Api, ControlPlane, Notifications
from tests.contract.documented import Described, Document, deployment_records
from tests.contract.documented import records as control_plane_records
from tests.support.acting import act

if TYPE_CHECKING:
    from schemathesis import Case

JSON = "application/json"
CONTROL_PLANE = "^/v[12]/"
ASKS_OTHERS = frozenset({"/v2/auth/providers/mcp-discover"})  # may answer 502 because of the other server
RANDOM = pytest.mark.parametrize("is_random", [False, pytest.param(True, marks=pytest.mark.release)])
EXAMPLES = 12  # random requests of each operation; deterministic
FOLLOWS = ("/stream", "/wait", "/join", "/stream/events")  # these answer after a run has ended
KNOWN = {"assistant_id": "agent", "graph_id": "agent", "schedule": "0 0 1 1 *", "version": 1}
CHECKPOINT = "1f0c1b9e-0000-6000-8000-000000000000"
FIRST_PENDING = text("""
SELECT run_id, not_before IS NULL OR not_before <= now() AS is_due FROM run
WHERE thread_id = :thread_id AND status = 'pending' ORDER BY created_seq LIMIT 1
""")

Known = Mapping[str, str]  # ids of existing records by path parameter


def operations(app: Flask, document: dict[str, Any], *, path_regex: str = ".*") -> list[Any]:
    """Return the operations of a document."""
    import schemathesis
    from schemathesis.config import GenerationConfig, ProjectConfig, ProjectsConfig, SchemathesisConfig
    from schemathesis.generation import GenerationMode

    generation = GenerationConfig(modes=list(GenerationMode), with_security_parameters=False)
    config = SchemathesisConfig(projects=ProjectsConfig(default=ProjectConfig(generation=generation)))
    schema = schemathesis.openapi.from_dict(closed(document), config=config)
    schema.app = app
    return [found.ok() for found in schema.include(path_regex=path_regex).get_all_operations()]


def closed(document: dict[str, Any]) -> dict[str, Any]:
    """Forbid fields that the document does not list in its answers."""
    for schema in document["components"]["schemas"].values():
        if "title" in schema and "properties" in schema:
            schema["additionalProperties"] = False
    return document


@dataclass(frozen=True)
class Interface:
    """An interface with its document, existing records, and what its requests need to be sent by a test."""

    operations: list[Any]
    document: Document
    create_records: Callable[[], Known]
    known: Callable[[Any, Known], Known] = lambda operation, records: records
    change: Callable[[Case, bool], None] = lambda case, exists: None
    timeout: float | None = None  # seconds for which a stream is read

    def require_conforming(self, *, is_random: bool) -> None:
        """Fail with all violations unless every operation conforms to the document."""
        from schemathesis.core.failures import FailureGroup

        failures = []
        shared = self.create_records()
        for operation in self.operations:
            lasts = operation.method.upper() == "GET" or not (
                is_random or operation.method.upper() == "DELETE"
            )
            known = self.known(operation, shared if lasts else self.create_records())
            try:
                if is_random:
                    self._send_random(operation, known)
                else:
                    self._send_smallest(operation, known)
            except (FailureGroup, AssertionError) as failure:
                failure.add_note(operation.label)
                failures.append(failure)
        if failures:
            raise BaseExceptionGroup("the API does not keep to its document", failures)

    def _send_smallest(self, operation: Any, known: Known) -> None:
        described = Described(operation.method.upper(), operation.path, self._said(operation))
        schema = self.document.body(described)
        for exists in (True, False):
            unknown = {name: str(uuid4()) for name in described.parameters("path")}
            case = operation.Case(
                path_parameters={
                    **unknown,
                    **{name: known[name] for name in unknown if exists and name in known},
                },
                query=good_query(described),
                headers={},
                **({} if schema is None else {"body": good(self.document, schema), "media_type": JSON}),
            )
            self._send(operation, case, exists=exists)

    def _said(self, operation: Any) -> Mapping[str, Any]:
        return self.document.content["paths"][operation.path][operation.method.lower()]

    def _send_random(self, operation: Any, known: Known) -> None:
        from schemathesis.generation import GenerationMode

        allowed, forbidden = (operation.as_strategy(generation_mode=mode) for mode in GenerationMode)

        @settings(
            max_examples=EXAMPLES,
            derandomize=True,
            database=None,
            phases=[Phase.generate, Phase.shrink],
            suppress_health_check=list(HealthCheck),
        )
        @given(case=st.one_of(allowed, allowed, forbidden), exists=st.sampled_from((True, True, False)))
        def check(case: Case, exists: bool) -> None:
            if exists:
                case.path_parameters.update(
                    {name: known.get(name, sent) for name, sent in case.path_parameters.items()}
                )
            self._send(operation, case, exists=exists)

        check()

    def _send(self, operation: Any, case: Case, *, exists: bool) -> None:
        from schemathesis import checks as rules

        checks = [
            rules.status_code_conformance,
            rules.content_type_conformance,
            rules.response_headers_conformance,
            rules.response_schema_conformance,
            *([] if operation.path in ASKS_OTHERS else [rules.not_a_server_error]),
        ]
        self.change(case, exists)
        case.call_and_validate(headers={"X-Api-Key": ADMIN_KEY}, checks=checks, timeout=self.timeout)


@RANDOM
def test_the_control_plane_keeps_to_its_document(control: ControlPlane, is_random: bool) -> None:
    document: Any = control.get("/openapi.json").json
    described = operations(control.client.application, document, path_regex=CONTROL_PLANE)
    interface = Interface(described, Document(document), lambda: control_plane_records(control))
    interface.require_conforming(is_random=is_random)


class Runner:
    """Ends all due runs of a thread when notified of one, and answers every call to a graph host."""

    def __init__(self, notifications: Notifications) -> None:
        self.is_away = False
        notifications.notify = self.notify  # type: ignore[method-assign]

    def notify(self, task: str, queue: str, id: UUID | str) -> None:
        if self.is_away:
            return
        if task == broker.EXECUTE_RUNS:
            self._end(id)

    def _end(self, run_id: UUID | str) -> None:
        with connection() as conn:
            thread_id = conn.scalar(text("SELECT thread_id FROM run WHERE run_id = :id"), {"id": run_id})
        while True:
            with connection() as conn:
                first = conn.execute(FIRST_PENDING, {"thread_id": thread_id}).one_or_none()
            if first is None or not first.is_due:
                return
            act(first.run_id, {"a": 1})

    def call(self, request: HostCall) -> bytes:
        state = {"values": {}, **make.state(str(request.thread_id), CHECKPOINT)}
        answers = {"state": state, "history": [state], "update": {"checkpoint": state["checkpoint"]}}
        return orjson.dumps(answers[request.document["op"]])


@RANDOM
def test_a_deployment_keeps_to_its_document(
    api: Api, notifications: Notifications, own_key: None, is_random: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    document: Any = api.get("/openapi.json").json
    runner = Runner(notifications)
    monkeypatch.setattr(calls, "call", runner.call)

    def create_records() -> dict[str, str]:
        runner.is_away = True
        known = deployment_records(api)
        runner.is_away = False
        return known

    def known(operation: Any, records: Known) -> Known:
        if "{run_id}" not in operation.path or operation.path.endswith(FOLLOWS):
            return {**records, "thread_id": records["idle_thread_id"], "run_id": records["ended_run_id"]}
        return records

    described = operations(api.client.application, document)
    interface = Interface(described, Document(document), create_records, known, sendable, timeout=0.2)
    interface.require_conforming(is_random=is_random)


def sendable(case: Case, exists: bool) -> None:
    """Adjust a request: drop parts that would address another route or wait for hours, and insert existing names."""
    for name, value in case.path_parameters.items():
        case.path_parameters[name] = str(value).replace("/", "") or "x"
    if case.path == "/mcp":
        case.headers["Accept"] = "application/json, text/event-stream"
    for body in case.body if isinstance(case.body, list) else [case.body]:
        if isinstance(body, dict):
            if case.path.endswith(FOLLOWS):
                body.pop("after_seconds", None)
            if exists:
                body.pop("webhook", None)
                body.update(
                    {name: value for name, value in KNOWN.items() if isinstance(body.get(name), type(value))}
                )
