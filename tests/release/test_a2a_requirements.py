"""Requirements of A2A 1.0 by their ids in the protocol's test kit (a2aproject/a2a-tck), on the kit's agent.

Every message is parsed with the types of the official SDK. Requirements that the kit tests and this module does not:

| Requirement | Reason |
|---|---|
| CORE-CAP-002, -003, CARD-EXT-002 | the card declares streaming and the extended card |
| CORE-CAP-004 | no extension is required |
| CORE-MULTI-002 with an id that is no UUID | a context is a thread, whose id is a UUID; refused as CORE-MULTI-002a demands |
| CORE-STREAM-002, DM-MSG-001 | the agent answers with tasks, never with a message alone |
| CARD-SIGN-… | cards are not signed |
| CARD-CACHE-003 (may) | no `Last-Modified`: the `ETag` is enough |
| PUSH-…, GRPC-…, HTTP_JSON-… | not declared: push notifications, gRPC, HTTP+JSON |
| VER-CLIENT-001 | a requirement for clients |
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx
import pytest
from a2a.types.a2a_pb2 import (
    AgentCard,
    ListTasksResponse,
    SendMessageResponse,
    StreamResponse,
    Task,
    TaskState,
)
from google.protobuf.json_format import ParseDict
from google.protobuf.message import Message

from tests.support.stack import Stack

PROJECT = Path(__file__).parents[1] / "projects" / "tck"
CARD = "/.well-known/agent-card.json"
COMPLETED, CANCELED = TaskState.TASK_STATE_COMPLETED, TaskState.TASK_STATE_CANCELED
INPUT_REQUIRED, FAILED = TaskState.TASK_STATE_INPUT_REQUIRED, TaskState.TASK_STATE_FAILED
TERMINAL = (COMPLETED, CANCELED, FAILED)


class Agent:
    """A client of the agent that parses each answer as the method's type."""

    def __init__(self, http: httpx.Client) -> None:
        self.http = http

    def post(self, method: str, params: Any = None, **headers: str) -> httpx.Response:
        body = {"jsonrpc": "2.0", "id": "1", "method": method} | (
            {} if params is None else {"params": params}
        )
        return self.http.post("/", json=body, headers={"A2A-Version": "1.0", **headers})

    def call(self, method: str, params: Any, kind: type[Message]) -> Any:
        answer = self.post(method, params).json()
        assert (answer["jsonrpc"], answer["id"]) == ("2.0", "1")
        return ParseDict(answer["result"], kind())

    def error(self, method: str, params: Any = None, **headers: str) -> Any:
        return self.post(method, params, **headers).json()["error"]

    def send(self, prefix: str, text: str = "Hello", *, configuration: Any = None, **more: Any) -> Task:
        params = {"message": message(prefix, text, **more)} | (
            {} if configuration is None else {"configuration": configuration}
        )
        return self.call("SendMessage", params, SendMessageResponse).task

    def get(self, task_id: str, **more: Any) -> Task:
        return self.call("GetTask", {"id": task_id, **more}, Task)

    def stream(
        self, method: str, params: Any, opened: Callable[[], Any] | None = None
    ) -> list[StreamResponse]:
        """Return the events of a stream. `opened` is called when the first event has arrived."""
        body = {"jsonrpc": "2.0", "id": "1", "method": method, "params": params}
        headers = {"A2A-Version": "1.0", "Accept": "text/event-stream"}
        with self.http.stream("POST", "/", json=body, headers=headers) as response:
            assert response.headers["Content-Type"].startswith("text/event-stream")
            found = []
            for event in events(response):
                found.append(ParseDict(event["result"], StreamResponse()))
                if len(found) == 1 and opened is not None:
                    opened()
        return found


def events(response: httpx.Response) -> Iterator[Any]:
    for line in response.iter_lines():
        if line.startswith("data: "):
            yield json.loads(line.removeprefix("data: "))


def message(prefix: str, text: str = "Hello", **more: Any) -> dict[str, Any]:
    return {"messageId": f"tck-{prefix}-{uuid4()}", "role": "ROLE_USER", "parts": [{"text": text}], **more}


@pytest.fixture(scope="module")
def agent(stack: Stack) -> Iterator[Agent]:
    url = f"{stack.url}/d/{stack.deploy_once(PROJECT, 'tck')}/a2a/tck"
    with httpx.Client(base_url=url, headers={"X-Api-Key": stack.api_key}, timeout=60) as http:
        yield Agent(http)


def reason(error: Any) -> tuple[int, str]:
    (details,) = error["data"]
    assert details["domain"] == "a2a-protocol.org"
    return error["code"], details["reason"]


NOT_FOUND = (-32001, "TASK_NOT_FOUND")
ENDED = (-32004, "UNSUPPORTED_OPERATION")


def test_core_send(agent: Agent) -> None:
    """CORE-SEND-001, -002, -003; CORE-MULTI-001, -001a, -002, -002a, -003, -004, -006; CORE-GET-001, -002."""
    done = agent.send("complete-task")
    assert (done.status.state, bool(done.id), bool(done.context_id)) == (COMPLETED, True, True)
    assert agent.get(done.id) == done
    other = agent.send("complete-task", contextId=done.context_id)
    assert (other.context_id, other.id != done.id) == (done.context_id, True)
    own = str(uuid4())
    assert agent.send("complete-task", contextId=own).context_id == own

    def refused(**more: Any) -> Any:
        return agent.error("SendMessage", {"message": message("complete-task", **more)})

    assert reason(refused(taskId=done.id)) == ENDED
    part = {"raw": "dGNr", "mediaType": "application/x-unsupported-tck-type"}
    assert reason(refused(parts=[part])) == (-32005, "CONTENT_TYPE_NOT_SUPPORTED")
    assert refused(contextId="client-context-rejected")["code"] == -32602
    assert refused(taskId=done.id, contextId="wrong-context")["code"] == -32602
    assert reason(refused(taskId="nonexistent")) == NOT_FOUND
    for method in ("GetTask", "CancelTask"):
        assert reason(agent.error(method, {"id": "nonexistent"})) == NOT_FOUND


def test_core_list(agent: Agent) -> None:
    """CORE-LIST-001, -002, -003, -004, -005."""
    context = agent.send("complete-task").context_id
    sent = [agent.send("complete-task", contextId=context) for _ in range(3)]
    listed = {"contextId": context, "page_size": 2}
    first = agent.call("ListTasks", listed, ListTasksResponse)
    second = agent.call("ListTasks", {**listed, "pageToken": first.next_page_token}, ListTasksResponse)
    tasks = [*first.tasks, *second.tasks]
    assert (len(first.tasks), first.total_size, len(tasks)) == (2, 4, 4)
    assert [task.id for task in tasks[:3]] == [task.id for task in reversed(sent)]
    times = [task.status.timestamp.ToNanoseconds() for task in tasks]
    assert times == sorted(times, reverse=True)
    assert not any(task.artifacts for task in tasks)
    assert agent.post("ListTasks", {"context_id": "tck-test-context"}).json()["result"] == {
        "tasks": [],
        "nextPageToken": "",
        "pageSize": 50,
        "totalSize": 0,
    }


def test_core_cancel(agent: Agent) -> None:
    """CORE-CANCEL-001, -002, -003."""
    for prefix, configuration in (("input-required", {}), ("delayed-complete", {"returnImmediately": True})):
        task = agent.send(prefix, configuration=configuration)
        cancelled = agent.call("CancelTask", {"id": task.id}, Task)
        assert (cancelled.id, cancelled.status.state) == (task.id, CANCELED)
        assert reason(agent.error("CancelTask", {"id": task.id})) == (-32002, "TASK_NOT_CANCELABLE")
    done = agent.send("complete-task")
    assert agent.error("CancelTask", {"id": done.id})["code"] == -32002


def test_core_multi_and_history(agent: Agent) -> None:
    """CORE-MULTI-005; CORE-HIST-001, -002, -003, -004, -005, -006."""
    asked = agent.send("input-required", "one")
    assert asked.status.state == INPUT_REQUIRED
    done = agent.send("complete-task", "the second", taskId=asked.id)
    assert (done.id, done.context_id, done.status.state) == (asked.id, asked.context_id, COMPLETED)
    texts = [part.text for one in agent.get(done.id, history_length=10).history for part in one.parts]
    assert texts == ["one", "the second", "You said the second"]
    assert len(agent.get(done.id, history_length=1).history) == 1
    assert "history" not in agent.post("GetTask", {"id": done.id, "historyLength": 0}).json()["result"]
    assert not agent.send("complete-task", configuration={"historyLength": 0}).history


def test_core_execution_mode(agent: Agent) -> None:
    """CORE-EXECUTION-MODE-001, -002."""
    assert (
        agent.send("delayed-complete", configuration={"returnImmediately": False}).status.state == COMPLETED
    )
    begun = agent.send("delayed-complete", configuration={"returnImmediately": True})
    assert begun.status.state not in TERMINAL


def test_streams(agent: Agent) -> None:
    """CORE-STREAM-001, -003; STREAM-ORDER-001 to -004; STREAM-SUB-001 to -004."""
    read = agent.stream("SendStreamingMessage", {"message": message("stream-003")})
    assert read[0].WhichOneof("payload") == "task"
    assert [event.status_update.status.state for event in read if event.HasField("status_update")][
        -1
    ] == COMPLETED

    asked = agent.send("input-required")
    found: dict[int, list[StreamResponse]] = {}
    opened = threading.Barrier(4, timeout=60)
    named = {"id": asked.id}

    def subscribe(number: int) -> None:
        found[number] = agent.stream("SubscribeToTask", named, opened.wait)

    def leave() -> None:
        with agent.http.stream(
            "POST",
            "/",
            json={"jsonrpc": "2.0", "id": "1", "method": "SubscribeToTask", "params": named},
            headers={"Accept": "text/event-stream"},
        ) as response:
            next(events(response))
        opened.wait()

    readers = [threading.Thread(target=subscribe, args=(number,)) for number in range(2)]
    readers.append(threading.Thread(target=leave))
    for reader in readers:
        reader.start()
    opened.wait()
    agent.send("complete-task", taskId=asked.id)
    for reader in readers:
        reader.join(60)
    for read in found.values():
        assert (read[0].task.id, read[0].task.status.state) == (asked.id, INPUT_REQUIRED)
        assert read[-1].status_update.status.state == COMPLETED
        assert read[-2].artifact_update.artifact.parts[0].text == "You said Hello"
    assert len(found) == 2
    for id, expected in ((asked.id, ENDED), ("nonexistent", NOT_FOUND)):
        refused = agent.post("SubscribeToTask", {"id": id}, Accept="text/event-stream")
        assert reason(next(events(refused))["error"]) == expected


def test_data_model(agent: Agent) -> None:
    """DM-ART-001; DM-TASK-…: artifacts with text, a file, a file's address and data; a failed task."""
    parts = {
        name: agent.send(f"artifact-{name}").artifacts[0].parts[0]
        for name in ("text", "file", "file-url", "data")
    }
    assert parts["text"].text == "Generated text content"
    for name, content in (("file", "raw"), ("file-url", "url")):
        part = parts[name]
        assert part.WhichOneof("content") == content
        assert (part.filename, part.media_type) == ("output.txt", "text/plain")
    assert parts["file"].raw == b"output"
    assert dict(parts["data"].data.struct_value.items()) == {"key": "value", "count": 42}
    assert agent.send("reject-task").status.state == FAILED


def test_json_rpc(agent: Agent) -> None:
    """JSONRPC-FMT-…, JSONRPC-ERR-001 to -003, JSONRPC-SSE-001, -002; CORE-ERR-001, -002; CORE-CAP-001."""
    assert agent.error("NoSuchMethod")["code"] == -32601
    assert (
        agent.http.post("/", content=b"{", headers={"Content-Type": "application/json"}).json()["error"][
            "code"
        ]
        == -32700
    )
    assert (
        agent.http.post("/", json={"jsonrpc": "1.0", "id": 1, "method": "GetTask"}).json()["error"]["code"]
        == -32600
    )
    invalid = agent.error("SendMessage", {"message": {"role": "ROLE_USER"}})
    fields = {violation["field"] for violation in invalid["data"][0]["fieldViolations"]}
    assert (invalid["code"], fields) == (-32602, {"message.messageId", "message.parts"})
    wrong = agent.http.post("/", content=b"{}", headers={"Content-Type": "text/plain"})
    assert (wrong.status_code, wrong.json()["error"]["code"]) == (415, -32005)
    for method in ("CreateTaskPushNotificationConfig", "ListTaskPushNotificationConfigs"):
        assert reason(agent.error(method, {})) == (-32003, "PUSH_NOTIFICATION_NOT_SUPPORTED")


def test_versions(agent: Agent) -> None:
    """VER-SERVER-001, -002, -003; VER-CLIENT-002."""
    for version, expected in (("1.0", -32001), ("1.0.1", -32001), ("", -32001), ("99.0", -32009)):
        error = agent.error("GetTask", {"id": "x"}, **{"A2A-Version": version})
        assert (version, error["code"]) == (version, expected)


def test_cards(agent: Agent) -> None:
    """CARD-DISC-001, CARD-PROTO-001, -002, CARD-STRUCT-001, CARD-EXT-001, CARD-CACHE-001, -002."""
    headers = {"A2A-Version": "1.0"}
    response = agent.http.get(CARD, headers=headers)
    card = ParseDict(response.json(), AgentCard())
    assert all((card.name, card.description, card.version, card.skills, card.default_input_modes))
    assert {(one.protocol_binding, bool(one.url)) for one in card.supported_interfaces} == {("JSONRPC", True)}
    assert "max-age=" in response.headers["Cache-Control"]
    same = {**headers, "If-None-Match": response.headers["ETag"]}
    assert agent.http.get(CARD, headers=same).status_code == 304
    assert agent.call("GetExtendedAgentCard", {}, AgentCard) == card
    assert httpx.get(f"{agent.http.base_url}{CARD}").status_code == 401
