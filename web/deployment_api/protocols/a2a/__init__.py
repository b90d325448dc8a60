"""The Agent2Agent protocol at a deployment's address: an assistant is an agent, a thread a context, a run a task.

Versions 1.0 and 0.3 are served side by side. `incoming` turns a message into the request for a run. `follow` and
`shared/runs/a2a_tasks.py` apply the filter that hides tasks from a caller.
"""

from __future__ import annotations

from collections.abc import Callable
from http import HTTPStatus
from typing import Any, ClassVar, NamedTuple

from flask import Response, jsonify, request

from shared import agents, assistants
from shared.errors import Denied, Invalid, NotFound
from shared.infra.postgres import Row, connection
from shared.records import OBJECT
from shared.user_code.authorization import Granted
from web.deployment_api.protocols import json_rpc
from web.deployment_api.protocols.a2a import methods
from web.deployment_api.protocols.a2a.follow import AgentCall
from web.deployment_api.protocols.a2a.shapes import Version03, Version1, card
from web.deployment_api.protocols.a2a.tasks import PUSH_NOT_SUPPORTED, TASK_NOT_FOUND, VERSION_NOT_SUPPORTED
from web.deployment_api.protocols.json_rpc import (
    INVALID_PARAMS,
    INVALID_REQUEST,
    METHOD_NOT_FOUND,
    Call,
    RpcError,
)
from web.gate.context import unchecked_deployment
from web.schemas import fields
from web.schemas.operations import JSON, SSE, RouteGroup

bp = RouteGroup("a2a", section="MCP and A2A", switches=("disable_a2a",))

VERSION_HEADER = "A2A-Version"
MAJORS = ("0", "1")
V1, V03 = Version1(), Version03()


class Method(NamedTuple):
    execute: Callable[[AgentCall], Response]
    shapes: Version1
    streams: bool = False


def _no_push(agent_call: AgentCall) -> Response:
    raise RpcError(PUSH_NOT_SUPPORTED, "Push notifications are not supported")


METHODS = {
    "SendMessage": Method(methods.send, V1),
    "message/send": Method(methods.send, V03),
    "SendStreamingMessage": Method(methods.send_streaming, V1, streams=True),
    "message/stream": Method(methods.send_streaming, V03, streams=True),
    "GetTask": Method(methods.get_task, V1),
    "tasks/get": Method(methods.get_task, V03),
    "ListTasks": Method(methods.list_tasks, V1),
    "CancelTask": Method(methods.cancel_task, V1),
    "tasks/cancel": Method(methods.cancel_task, V03),
    "SubscribeToTask": Method(methods.subscribe, V1, streams=True),
    "tasks/resubscribe": Method(methods.subscribe, V03, streams=True),
    "GetExtendedAgentCard": Method(methods.extended_card, V1),
    "agent/getAuthenticatedExtendedCard": Method(methods.extended_card, V03),
    **dict.fromkeys(
        (
            "CreateTaskPushNotificationConfig",
            "GetTaskPushNotificationConfig",
            "ListTaskPushNotificationConfigs",
            "DeleteTaskPushNotificationConfig",
        ),
        Method(_no_push, V1),
    ),
    **dict.fromkeys(
        (f"tasks/pushNotificationConfig/{what}" for what in ("set", "get", "list", "delete")),
        Method(_no_push, V03),
    ),
}


class A2aCall(json_rpc.JsonRpcCall):
    example: ClassVar[dict[str, Any]] = {
        "jsonrpc": "2.0",
        "id": 1,
        "method": "message/send",
        "params": {
            "message": {
                "kind": "message",
                "messageId": "1",
                "role": "user",
                "parts": [{"kind": "text", "text": "Hello"}],
            }
        },
    }


class CardQuery(fields.Schema):
    assistant_id = fields.StrictString()


def _agent(assistant: str) -> Row:
    """Return an assistant. Raises NotFound. Before authorization, the caller must not learn the result."""
    with connection() as conn:
        return agents.agent(conn, unchecked_deployment(), assistant)


def _readable_agent(assistant: str) -> Row:
    """Return an assistant that the caller may read. Raises Denied, and NotFound if it is missing or hidden."""
    methods.readable(assistants.named_id(assistant))
    return _agent(assistant)


def _callable_agent(assistant: str) -> tuple[Row, Granted | None]:
    """Return an assistant that the caller may call, and the grant for reading it. Raises Denied and NotFound.

    The grant is None for a default assistant, which every caller may read.
    """
    try:
        agent = _agent(assistant)
    except NotFound:
        methods.readable(assistants.named_id(assistant))
        raise
    if agent["assistant_id"] == assistants.default_id(agent["graph_id"]):
        return agent, None
    return agent, methods.readable(agent["assistant_id"])


@bp.operation(
    ("GET /a2a/<assistant_id>", "GET /a2a/<assistant_id>/.well-known/agent-card.json"),
    "Get an assistant's A2A card",
    role="read",
    answer=OBJECT,
    errors=(404,),
)
def get_card(assistant_id: str) -> Response:
    return jsonify(card(_readable_agent(assistant_id)))


@bp.operation(
    "GET /.well-known/agent-card.json",
    "Get the A2A card of the assistant in the query",
    role="read",
    query=CardQuery,
    answer=OBJECT,
    errors=(400, 404),
)
def find_card(query: dict[str, Any]) -> Response:
    assistant = query.get("assistant_id")
    if not assistant:
        raise Invalid("assistant_id is required", loc=("query", "assistant_id"), status=400)
    return get_card(assistant)


@bp.operation(
    "POST /a2a/<assistant_id>",
    "Call a method of the Agent2Agent protocol",
    role="run",
    body=A2aCall,
    answer=json_rpc.ANSWER,
    media=(JSON, SSE),
    also=(400,),
    errors=(404, 409),
)
def call_method(assistant_id: str) -> Response:
    """Send messages; read, list, follow and cancel tasks. The method's name selects protocol version 1.0 or 0.3."""
    # A denial is an answer of the method called, so it is kept until the call is read. A missing assistant is a 404.
    denied, agent, read = None, {}, None
    try:
        agent, read = _callable_agent(assistant_id)
    except Denied as error:
        denied = error
    try:
        call = _read()
        method = METHODS.get(call.method)
        if method is None:
            raise RpcError(METHOD_NOT_FOUND, f"Method not found: {call.method}", id=call.id)
    except RpcError as error:
        return json_rpc.answer(json_rpc.failure(error.id, error))
    if method.streams and not json_rpc.accepts_stream():
        error = RpcError(INVALID_REQUEST, f"The Accept header must name {SSE}")
        return json_rpc.answer(json_rpc.failure(call.id, error), 400)
    try:
        if denied is not None:
            raise denied
        return method.execute(AgentCall(agent, call, method.shapes, read))
    except RpcError as error:
        return _refused(call, error, streams=method.streams)
    except Denied as error:
        if error.status >= HTTPStatus.INTERNAL_SERVER_ERROR:
            raise
        return _refused(call, RpcError(INVALID_PARAMS, error.message), streams=method.streams)
    except NotFound as error:
        return _refused(call, RpcError(TASK_NOT_FOUND, error.message), streams=method.streams)
    except Invalid as error:
        return _refused(call, RpcError(INVALID_PARAMS, error.message), streams=method.streams)


def _read() -> Call:
    call = json_rpc.read()
    if call.id is None:
        raise RpcError(INVALID_REQUEST, "id: this field is required")
    version = request.headers.get(VERSION_HEADER, "").strip()
    if version and version.partition(".")[0] not in MAJORS:
        message = f"{VERSION_HEADER}: {version} is not supported: use 1.0 or 0.3"
        raise RpcError(VERSION_NOT_SUPPORTED, message, id=call.id)
    return call


def _refused(call: Call, error: RpcError, *, streams: bool) -> Response:
    """Return a refusal; for a streaming method as a stream, because clients of version 0.3 read nothing else."""
    body = json_rpc.failure(call.id, error)
    if not streams:
        return json_rpc.answer(body)
    return Response(json_rpc.event(body), content_type=f"{SSE}; charset=utf-8")
