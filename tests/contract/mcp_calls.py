"""Calls in the form of MCP 2026-07-28, also of clients that can be asked or that resolve tasks. The tests play the runner."""

from __future__ import annotations

from typing import Any

import orjson
from sqlalchemy import text
from werkzeug.test import TestResponse

from shared.deployments.deployments import DeploymentRef
from shared.infra.postgres import connection, dumps
from shared.models import ThreadStatus
from tests.contract import rpc
from tests.contract.conftest import Api, Notifications
from tests.support.acting import Actor

PREFIX = "io.modelcontextprotocol/"
VERSION = "2026-07-28"
META = {f"{PREFIX}protocolVersion": VERSION, f"{PREFIX}clientCapabilities": {}}
ID = 7

Headers = dict[str, str]
ELICITATION: dict[str, Any] = {"elicitation": {}}
TASKS: dict[str, Any] = {"extensions": {f"{PREFIX}tasks": {}}}
ALL_CAPABILITIES = {**ELICITATION, **TASKS}
ROME = {"city": "Rome"}


def body_of(method: str, *, meta: Any = META, **params: Any) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": ID, "method": method, "params": {**params, "_meta": meta}}


def headers_of(body: Any) -> Headers:
    """Return the headers that repeat a call."""
    params = body["params"]
    name = params.get("name") or params.get("taskId")
    named = {} if name is None else {"Mcp-Name": name}
    return {**rpc.BOTH, "MCP-Protocol-Version": VERSION, "Mcp-Method": body["method"], **named}


def call(api: Api, method: str, capabilities: Any = ALL_CAPABILITIES, **params: Any) -> TestResponse:
    meta = {**META, f"{PREFIX}clientCapabilities": capabilities, **params.pop("meta", {})}
    body = body_of(method, meta=meta, **params)
    return api.post("/mcp", body, headers=headers_of(body), buffered=False)


def body(response: TestResponse) -> Any:
    return orjson.loads(response.get_data().strip())


def answer(api: Api, method: str, capabilities: Any = ALL_CAPABILITIES, **params: Any) -> Any:
    """Return a result without the server's name."""
    response = call(api, method, capabilities, **params)
    assert response.status_code == 200, response.text
    found = body(response)["result"]
    assert found.pop("_meta")
    return found


def refusal(api: Api, method: str, capabilities: Any = ALL_CAPABILITIES, **params: Any) -> tuple[int, int]:
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
