"""Assistants as MCP tools: their description for clients, and the arguments of a call."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import deepcopy
from http import HTTPStatus
from typing import Any

import orjson
from flask import Response

from shared import agents
from shared.errors import Denied, Refused
from shared.infra.postgres import Row, connection
from shared.user_code import filters
from shared.user_code.authorization import Ask, Granted
from web.deployment_api.protocols import options
from web.deployment_api.protocols.conversation import (
    MESSAGES,
    input_fields,
    misfits,
    takes_messages,
    user_message,
)
from web.deployment_api.protocols.json_rpc import INVALID_PARAMS, RpcError
from web.deployment_api.protocols.mcp.envelope import McpRequest
from web.gate.context import (
    allow,
    allow_all,
    deployment,
    metadata_of,
    settings,
    unchecked_deployment,
    user,
)
from web.schemas import fields
from web.schemas.validation import whole_number

PAGE = 100
LIST_SECONDS = 30  # time for which a client may keep a page of tools; `runyard dev` allows none
TEXT = {"type": "string"}


class ToolsList(fields.Schema):
    cursor = fields.StrictString(allow_none=True)


def list_tools(mcp: McpRequest) -> Response:
    """Answer with a page of tools. Clients may keep it for some time, but share it with no other caller."""
    page = _page(mcp.call.read(ToolsList).get("cursor"))
    if mcp.is_modern:
        seconds = 0 if settings().dev_deployment else LIST_SECONDS
        page.update(ttlMs=seconds * 1000, cacheScope="private")
    return mcp.answer(page)


def _page(cursor: str | None) -> dict[str, Any]:
    """Return a page of tools, oldest assistants first. Raises RpcError for an invalid cursor."""
    offset = _offset(cursor)
    granted = allow("assistants", "search", graph_id=None, metadata={}, limit=PAGE, offset=offset)
    with connection() as conn:
        rows = agents.tools(
            conn,
            deployment(),
            limit=PAGE + 1,
            offset=offset,
            metadata=metadata_of(granted),
            filter=granted.filter,
        )
    shown: dict[str, Any] = {"tools": [_describe(row) for row in _readable(rows[:PAGE])]}
    if len(rows) > PAGE:
        shown["nextCursor"] = str(offset + PAGE)
    return shown


def _readable(rows: Sequence[Row]) -> list[Row]:
    """Return the assistants that the caller may not only find, but also read."""
    if user() is None or not rows:
        return list(rows)
    granted = grants([Ask("assistants", "read", {"assistant_id": row["assistant_id"]}) for row in rows])
    with connection() as conn:
        return [
            row
            for row, grant in zip(rows, granted, strict=True)
            if grant is not None
            and (
                not grant.filter
                or filters.is_assistant_visible(conn, deployment().id, row["assistant_id"], grant.filter)
            )
        ]


def grants(asks: Sequence[Ask]) -> list[Granted | None]:
    """Return a grant for each ask, None for a denied one. Asks one by one only if the joint call is denied."""
    try:
        return [*allow_all(asks)]
    except Denied as error:
        if error.status >= HTTPStatus.INTERNAL_SERVER_ERROR:
            raise
        if len(asks) == 1:
            return [None]
    return [one for ask in asks for one in grants([ask])]


def _offset(cursor: str | None) -> int:
    offset = 0 if cursor is None else whole_number(cursor)
    if offset is None:
        raise RpcError(INVALID_PARAMS, "cursor: must be a nextCursor from this server")
    return offset


def find(name: str) -> Row | None:
    """Return the assistant of a tool, or None. Before authorization, the caller must not learn the result."""
    with connection() as conn:
        rows = agents.tools(conn, unchecked_deployment(), name=name)
    return rows[0] if rows else None


def _describe(row: Row) -> dict[str, Any]:
    described = {
        "name": row["name"],
        "title": row["title"],
        "description": row["description"] or f"Runs the assistant {row['title']!r}.",
        "inputSchema": _listed_schema(arguments_schema(row["input_schema"])),
        "annotations": options.hints(row),
    }
    if options.is_structured(row):
        output = {name: rule for name, rule in row["output_schema"].items() if name != "required"}
        described["outputSchema"] = _listed_schema({**output, "type": "object"})
    return described


def _listed_schema(schema: dict[str, Any]) -> dict[str, Any]:
    """Return a schema without `x-mcp-header`, for which clients send headers, and references to other documents."""
    if not any(mark in orjson.dumps(schema) for mark in (b'"x-mcp-header"', b'"$ref"')):
        return schema
    listed = deepcopy(schema)
    parts: list[Any] = [listed]
    while parts:
        part = parts.pop()
        if isinstance(part, dict):
            part.pop("x-mcp-header", None)
            if not str(part.get("$ref", "#")).startswith("#"):
                del part["$ref"]
        parts += part.values() if isinstance(part, dict) else part if isinstance(part, list) else ()
    return listed


def arguments_schema(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return the schema of a tool's arguments: that of the graph's input, with a text in place of a conversation."""
    shown = {**schema, "type": "object"}
    if not takes_messages(schema):
        return shown
    required = schema.get("required")
    others = [name for name in required if name != MESSAGES] if isinstance(required, list) else []
    shown["properties"] = {**input_fields(schema), MESSAGES: TEXT}
    shown["required"] = [MESSAGES, *others]
    definitions = shown.pop("$defs", None)
    if definitions and b'"$ref"' in orjson.dumps(shown):
        shown["$defs"] = definitions
    return shown


class ArgumentsMisfit(Refused):
    """The arguments of a call do not fit the schema of the tool. The model that sent them can correct them."""


def graph_input(schema: Mapping[str, Any], arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return a graph's input for the arguments of a call. Raises ArgumentsMisfit."""
    problems = misfits(arguments_schema(schema), arguments)
    if problems:
        raise ArgumentsMisfit(f"The arguments do not match the tool's schema: {'; '.join(problems)}")
    if not takes_messages(schema):
        return dict(arguments)
    return {**arguments, MESSAGES: [user_message(arguments[MESSAGES])]}
