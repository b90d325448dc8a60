"""A2A calls of both protocol versions through Flask's client, and the runner's part in a conversation."""

from __future__ import annotations

from typing import Any

from shared import assistants
from shared.infra.postgres import connection
from shared.models import RUN, ThreadStatus
from tests.contract import rpc
from tests.contract.conftest import Api, Notifications
from tests.contract.rpc import Called, text_message
from tests.support.acting import Actor

AGENT = "/a2a/agent"
AGENT_ID = str(assistants.default_id("agent"))
FAILURE = {"error": "ValueError", "message": "boom"}
QUESTION = {"id": "i1", "value": "which?"}

# method by protocol version
SEND = {"1.0": "SendMessage", "0.3": "message/send"}
STREAM = {"1.0": "SendStreamingMessage", "0.3": "message/stream"}
GET = {"1.0": "GetTask", "0.3": "tasks/get"}
CANCEL = {"1.0": "CancelTask", "0.3": "tasks/cancel"}
SUBSCRIBE = {"1.0": "SubscribeToTask", "0.3": "tasks/resubscribe"}

VERSIONS = ("1.0", "0.3")


def state(version: str, word: str) -> str:
    return word if version == "0.3" else f"TASK_STATE_{word.upper().replace('-', '_')}"


def message(version: str, text: str = "hi", **more: Any) -> dict[str, Any]:
    if version == "1.0":
        return text_message(text, **more)
    return {**text_message(text), "role": "user", "parts": [{"kind": "text", "text": text}], **more}


def result(api: Api, method: str, params: Any = None, *, path: str = AGENT, **more: Any) -> Any:
    return rpc.result(api, path, method, params, **more)


def error(api: Api, method: str, params: Any = None, *, path: str = AGENT, **more: Any) -> int:
    return rpc.error(api, path, method, params, **more)[0]


def sent(api: Api, heard: Notifications, body: Any, method: str = "SendMessage", **more: Any) -> Called:
    path = more.pop("path", AGENT)
    return Called(api, heard, path, method, {"message": body, **more})


def task_of(version: str, result: Any) -> Any:
    return result["task"] if version == "1.0" else result


def row(run_id: str) -> Any:
    with connection() as conn:
        return conn.execute(RUN.select().where(RUN.c.run_id == run_id)).mappings().one()


def said(body: Any, answer: str = "ho") -> dict[str, Any]:
    """Return the state values of a conversation in which this message was answered."""
    text = body["parts"][0]["text"]
    return {
        "messages": [
            {"type": "human", "content": text, "id": body["messageId"]},
            {"type": "ai", "content": answer, "id": f"answer-to-{body['messageId']}"},
        ]
    }


def finish(run_id: str, values: Any) -> None:
    Actor(run_id).finish(values, output=values)


def interrupt(run_id: str, values: Any) -> None:
    asked = [{**QUESTION, "response_schema": None}]
    Actor(run_id).finish(
        values,
        thread_status=ThreadStatus.INTERRUPTED,
        interrupts={"task": [QUESTION]},
        output={**values, "__interrupt__": asked},
    )


def done(api: Api, heard: Notifications, text: str = "hi", **more: Any) -> Any:
    """Send a message and end its run successfully. Returns the A2A task."""
    body = text_message(text, **more)
    call = sent(api, heard, body)
    finish(call.run_id, said(body))
    return call.result()["task"]


def live(api: Api, **more: Any) -> Any:
    """Send a message that returns immediately. Returns an A2A task that waits for a runner."""
    at_once = {"message": text_message(**more), "configuration": {"returnImmediately": True}}
    return result(api, "SendMessage", at_once)["task"]


def run_of(task: Any) -> str:
    return str(task["id"]).partition(":")[2]
