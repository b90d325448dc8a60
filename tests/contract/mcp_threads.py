"""MCP calls of clients that can be asked, or that resolve tasks; the tests play the runner."""

from __future__ import annotations

from typing import Any

import orjson
from sqlalchemy import text
from werkzeug.test import TestResponse

from shared.deployments.deployments import DeploymentRef
from shared.infra.postgres import connection, dumps
from shared.models import ThreadStatus
from tests.contract.conftest import Api, Notifications
from tests.contract.test_mcp_modern import META, PREFIX, body_of, headers_of
from tests.support.acting import Actor

ELICITATION: dict[str, Any] = {"elicitation": {}}
TASKS: dict[str, Any] = {"extensions": {f"{PREFIX}tasks": {}}}
BOTH = {**ELICITATION, **TASKS}
ROME = {"city": "Rome"}


def call(api: Api, method: str, capabilities: Any = BOTH, **params: Any) -> TestResponse:
    meta = {**META, f"{PREFIX}clientCapabilities": capabilities, **params.pop("meta", {})}
    body = body_of(method, meta=meta, **params)
    return api.post("/mcp", body, headers=headers_of(body), buffered=False)


def body(response: TestResponse) -> Any:
    return orjson.loads(response.get_data().strip())


def answer(api: Api, method: str, capabilities: Any = BOTH, **params: Any) -> Any:
    """Return a result without the server's name."""
    response = call(api, method, capabilities, **params)
    assert response.status_code == 200, response.text
    found = body(response)["result"]
    assert found.pop("_meta")
    return found


def refusal(api: Api, method: str, capabilities: Any = BOTH, **params: Any) -> tuple[int, int]:
    response = call(api, method, capabilities, **params)
    return response.status_code, body(response)["error"]["code"]


class Calling:
    """A call of the tool `other` whose run waits for the test to execute it."""

    def __init__(
        self, api: Api, notifications: Notifications, capabilities: Any = ELICITATION, **params: Any
    ) -> None:
        before = len(notifications.heard)
        arguments = params.pop("arguments", ROME)
        self.response = call(api, "tools/call", capabilities, name="other", arguments=arguments, **params)
        assert self.response.status_code == 200, self.response.text
        assert len(notifications.heard) == before + 1, self.response.text
        self.actor = Actor(notifications.heard[-1][1])

    def asks(self, interrupts: Any) -> Any:
        """End the run at interrupts (id → value). Returns the result of the call."""
        ask(self.actor, interrupts)
        return self.result()

    def ends(self, values: Any) -> Any:
        self.actor.finish(values, output=values)
        return self.result()

    def result(self) -> Any:
        found = body(self.response)["result"]
        assert found.pop("_meta")
        return found


def ask(actor: Actor, interrupts: Any) -> None:
    listed = [{"id": id, "value": value} for id, value in interrupts.items()]
    output = {"__interrupt__": listed}
    actor.finish({}, thread_status=ThreadStatus.INTERRUPTED, interrupts={"task": listed}, output=output)


def accept(answer: str) -> Any:
    return {"action": "accept", "content": {"answer": answer}}


def set_options(deployment: DeploymentRef, **options: Any) -> None:
    """Set the options of the tool `other`."""
    query = text(
        "UPDATE assistant_version SET metadata = jsonb_build_object('mcp', CAST(:options AS jsonb))"
        " WHERE deployment_id = :id AND graph_id = 'other'"
    )
    with connection() as conn:
        conn.execute(query, {"options": dumps(options), "id": deployment.id})


def threads(deployment: DeploymentRef) -> list[Any]:
    """Return the rows of the deployment's threads, also of those that no list shows."""
    query = text("SELECT * FROM thread WHERE deployment_id = :id ORDER BY created_at")
    with connection() as conn:
        return [dict(row) for row in conn.execute(query, {"id": deployment.id}).mappings()]


def resumes(deployment: DeploymentRef) -> list[Any]:
    """Return the values with which runs resumed a thread, in order."""
    query = text(
        "SELECT kwargs #> '{command,resume}' AS resume FROM run WHERE deployment_id = :id"
        " AND kwargs ->> 'command' IS NOT NULL ORDER BY created_seq"
    )
    with connection() as conn:
        return list(conn.execute(query, {"id": deployment.id}).scalars())
