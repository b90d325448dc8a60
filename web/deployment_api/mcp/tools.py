"""The assistants of a deployment as tools: what a client is shown of them, and what it may call one with."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import orjson

from shared import assistants
from shared.infra.postgres import Row, connection
from web.context import deployment
from web.deployment_api.authorization import unasked
from web.deployment_api.graph_input import MESSAGES, fields, misfits, takes_messages, user_message
from web.deployment_api.json_rpc import INVALID_PARAMS, RpcError

PAGE = 100
ANNOTATIONS = {
    "readOnlyHint": False,
    "destructiveHint": False,
    "idempotentHint": False,
    "openWorldHint": True,
}
TEXT = {"type": "string"}


def page(cursor: str | None) -> dict[str, Any]:
    """A page of tools, the oldest assistants first; raises RpcError for a cursor that is none."""
    offset = _offset(cursor)
    with connection() as conn:
        found = assistants.tools(conn, deployment(), limit=PAGE + 1, offset=offset)
    shown: dict[str, Any] = {"tools": [_shown(row) for row in found[:PAGE]]}
    if len(found) > PAGE:
        shown["nextCursor"] = str(offset + PAGE)
    return shown


def _offset(cursor: str | None) -> int:
    if cursor is None:
        return 0
    if not cursor.isascii() or not cursor.isdigit() or len(cursor) > 15:
        raise RpcError(INVALID_PARAMS, "cursor: must be one that this server gave")
    return int(cursor)


def named(name: str) -> Row | None:
    """The assistant that is this tool, of which nothing is told before it was asked for; None: there is none."""
    with connection() as conn:
        found = assistants.tools(conn, unasked(), name=name)
    return found[0] if found else None


def _shown(row: Row) -> dict[str, Any]:
    return {
        "name": row["name"],
        "title": row["title"],
        "description": row["description"] or f"Runs the assistant {row['title']!r}.",
        "inputSchema": arguments_schema(row["input_schema"]),
        "annotations": ANNOTATIONS,
    }


def arguments_schema(schema: Mapping[str, Any]) -> dict[str, Any]:
    """What a tool takes: what its graph does, of a conversation the new message's text alone."""
    shown = {**schema, "type": "object"}
    if not takes_messages(schema):
        return shown
    required = schema.get("required")
    others = [name for name in required if name != MESSAGES] if isinstance(required, list) else []
    shown["properties"] = {**fields(schema), MESSAGES: TEXT}
    shown["required"] = [MESSAGES, *others]
    definitions = shown.pop("$defs", None)
    if definitions and b'"$ref"' in orjson.dumps(shown):
        shown["$defs"] = definitions
    return shown


def graph_input(schema: Mapping[str, Any], arguments: Mapping[str, Any]) -> dict[str, Any]:
    """A graph's input, of the arguments of a call; raises RpcError for arguments that do not fit."""
    problems = misfits(arguments_schema(schema), arguments)
    if problems:
        raise RpcError(INVALID_PARAMS, f"The arguments do not fit the tool's schema: {'; '.join(problems)}")
    if not takes_messages(schema):
        return dict(arguments)
    return {**arguments, MESSAGES: [user_message(arguments[MESSAGES])]}
