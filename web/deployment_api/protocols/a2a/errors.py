"""Errors of A2A in JSON-RPC form. Version 1.0 has machine-readable details in `error.data`, version 0.3 has none."""

from __future__ import annotations

import re
from typing import Any

from web.deployment_api.protocols.json_rpc import INVALID_PARAMS, RpcError
from web.schemas.validation import SchemaViolation

TASK_NOT_FOUND, TASK_NOT_CANCELABLE, PUSH_NOT_SUPPORTED = -32001, -32002, -32003
UNSUPPORTED_OPERATION, CONTENT_NOT_SUPPORTED, INVALID_AGENT_RESPONSE = -32004, -32005, -32006
VERSION_NOT_SUPPORTED = -32009

REASONS = {
    TASK_NOT_FOUND: "TASK_NOT_FOUND",
    TASK_NOT_CANCELABLE: "TASK_NOT_CANCELABLE",
    PUSH_NOT_SUPPORTED: "PUSH_NOTIFICATION_NOT_SUPPORTED",
    UNSUPPORTED_OPERATION: "UNSUPPORTED_OPERATION",
    CONTENT_NOT_SUPPORTED: "CONTENT_TYPE_NOT_SUPPORTED",
    INVALID_AGENT_RESPONSE: "INVALID_AGENT_RESPONSE",
    VERSION_NOT_SUPPORTED: "VERSION_NOT_SUPPORTED",
}
DOMAIN = "a2a-protocol.org"
_NAMED = re.compile(r"([A-Za-z][\w.-]*): (.+)", re.DOTALL)  # an error text that begins with a field's path


def with_details(error: RpcError, task_id: str | None) -> RpcError:
    """Return an error with the details of version 1.0. `task_id`: the task that the call names."""
    details = _details(error, task_id)
    return RpcError(error.code, error.message, data=None if details is None else [details])


def _details(error: RpcError, task_id: str | None) -> dict[str, Any] | None:
    if error.code == INVALID_PARAMS:
        return {"@type": "type.googleapis.com/google.rpc.BadRequest", "fieldViolations": _violations(error)}
    if error.code not in REASONS:
        return None
    metadata = {} if task_id is None else {"taskId": task_id}
    return {
        "@type": "type.googleapis.com/google.rpc.ErrorInfo",
        "reason": REASONS[error.code],
        "domain": DOMAIN,
        "metadata": metadata,
    }


def _violations(error: RpcError) -> list[dict[str, str]]:
    if isinstance(error.__cause__, SchemaViolation):
        return [
            {"field": ".".join(map(str, violation.loc[1:])), "description": violation.message}
            for violation in error.__cause__.violations
        ]
    named = _NAMED.fullmatch(error.message)
    field, description = named.groups() if named else ("", error.message)
    return [{"field": field, "description": description}]
