"""The Agent2Agent protocol at a deployment's address: an assistant is an agent, a thread a context.

A task is a run and the runs that continue it. Versions 1.0 and 0.3 are served side by side. `incoming` turns a message
into the request for a run. `follow` and `shared/runs/a2a_tasks.py` apply the filter that hides tasks from a caller.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, ClassVar, NamedTuple

from flask import Response, jsonify, request

from shared import agents, assistants
from shared.errors import Invalid, NotFound
from shared.infra.postgres import Row, connection
from shared.records import OBJECT
from shared.user_code.authorization import Granted
from web.deployment_api.protocols import json_rpc
from web.deployment_api.protocols.a2a import methods
from web.deployment_api.protocols.a2a.card import (
    EXTENSIONS,
    VERSION,
    active_extensions,
    card,
    requested_version,
)
from web.deployment_api.protocols.a2a.errors import (
    CONTENT_NOT_SUPPORTED,
    PUSH_NOT_SUPPORTED,
    VERSION_NOT_SUPPORTED,
)
from web.deployment_api.protocols.a2a.follow import AgentCall, short_stream
from web.deployment_api.protocols.a2a.shapes import Version03, Version1
from web.deployment_api.protocols.access import readable_agent, refuse_foreign_page, require_readable
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
bp.before_request(refuse_foreign_page)

V1, V03 = Version1(), Version03()
CARD_SECONDS = 60  # for which clients may keep a card
_SNAKE = re.compile(r"_([a-z])")
NESTED = ("message", "configuration")  # parameters that are objects with parameters


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


# They also serve an assistant whose graph a newer revision lacks, because its tasks may still be in progress.
FOR_TASKS = (methods.get_task, methods.list_tasks, methods.cancel_task, methods.subscribe)


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


def _callable_agent(assistant: str) -> tuple[Row, Granted | None]:
    """Return an assistant that the caller may call, and the grant for reading it. Raises Denied and NotFound.

    The grant is None for a default assistant, which every caller may read. A caller who may not read assistants gets
    Denied for a missing one too. The graph of the assistant may be missing.
    """
    try:
        with connection() as conn:
            agent = agents.agent(conn, unchecked_deployment(), assistant, may_be_past=True)
    except NotFound:
        require_readable(assistants.named_id(assistant))
        raise
    if agent["assistant_id"] == assistants.default_id(agent["graph_id"]):
        return agent, None
    return agent, require_readable(agent["assistant_id"])


@bp.operation(
    ("GET /a2a/<assistant_id>", "GET /a2a/<assistant_id>/.well-known/agent-card.json"),
    "Get an assistant's A2A card",
    role="read",
    answer=OBJECT,
    empty=(304,),
    errors=(404,),
    strict_slashes=False,
)
def get_card(assistant_id: str) -> Response:
    return _card(readable_agent(assistant_id))


def _card(agent: Row) -> Response:
    """Return a card that the client may keep, or 304 if the client has it already."""
    response = jsonify(card(agent))
    response.cache_control.private = True
    response.cache_control.max_age = CARD_SECONDS
    response.vary.add(VERSION)
    response.add_etag()
    response.make_conditional(request)
    return response


@bp.operation(
    "GET /.well-known/agent-card.json",
    "Get the A2A card of the assistant in the query",
    role="read",
    query=CardQuery,
    answer=OBJECT,
    empty=(304,),
    errors=(400, 404),
    strict_slashes=False,
)
def find_card(query: dict[str, Any]) -> Response:
    assistant = query.get("assistant_id")
    if not assistant:
        raise Invalid("assistant_id is required", loc=("query", "assistant_id"), status=400)
    return _card(readable_agent(assistant))


@bp.operation(
    "POST /a2a/<assistant_id>",
    "Call a method of the Agent2Agent protocol",
    role="run",
    body=A2aCall,
    answer=json_rpc.ANSWER,
    media=(JSON, SSE),
    also=(400, 415),
    errors=(404, 409),
    strict_slashes=False,
)
def call_method(assistant_id: str) -> Response:
    """Send messages; read, list, follow and cancel tasks. The method's name selects protocol version 1.0 or 0.3."""
    agent, read = _callable_agent(assistant_id)
    if request.mimetype != JSON:
        error = RpcError(CONTENT_NOT_SUPPORTED, f"The Content-Type must be {JSON}")
        return json_rpc.answer(V1.failure(None, error), 415)
    try:
        call, method = _read()
    except RpcError as error:
        return json_rpc.answer(V1.failure(error.id, error))
    if not agent["is_served"] and method.execute not in FOR_TASKS:
        raise NotFound("Not Found")
    agent_call = AgentCall(agent, call, method.shapes, read)
    if method.streams and not json_rpc.accepts_stream():
        error = RpcError(INVALID_REQUEST, f"The Accept header must name {SSE}")
        return json_rpc.answer(agent_call.failure(error), 400)
    try:
        response = method.execute(agent_call)
        if active := active_extensions(agent):
            response.headers[EXTENSIONS[0]] = ", ".join(active)
        return response
    except RpcError as error:
        return _refused(agent_call.failure(error), streams=method.streams)
    except NotFound as error:
        return _refused(agent_call.not_found(error), streams=method.streams)
    except Invalid as error:
        return _refused(agent_call.failure(RpcError(INVALID_PARAMS, error.message)), streams=method.streams)


def _read() -> tuple[Call, Method]:
    """Return the call and its method. Raises RpcError."""
    call = json_rpc.read()
    method = METHODS.get(call.method)
    if method is None and call.method:
        raise RpcError(METHOD_NOT_FOUND, f"Method not found: {call.method}", id=call.id)
    if method is None or call.id is None:
        raise RpcError(INVALID_REQUEST, "id: this field is required")
    if requested_version() is None:
        raise RpcError(
            VERSION_NOT_SUPPORTED, f"{VERSION}: this version is not supported: use 1.0 or 0.3", id=call.id
        )
    params = _in_camel_case(call.params)
    params |= {name: _in_camel_case(params[name]) for name in NESTED if isinstance(params.get(name), dict)}
    return replace(call, params=params), method


def _in_camel_case(params: Mapping[str, Any]) -> dict[str, Any]:
    """Return parameters under the names of the protocol. Clients may write them in snake_case, as ProtoJSON allows."""
    camel = {_SNAKE.sub(lambda match: match[1].upper(), name): value for name, value in params.items()}
    return {**camel, **{name: params[name] for name in camel if name in params}}


def _refused(body: bytes, *, streams: bool) -> Response:
    """Return a refusal; for a streaming method as a stream, because clients of version 0.3 read nothing else."""
    return short_stream(body) if streams else json_rpc.answer(body)
