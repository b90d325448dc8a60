"""Answers to commands: their JSON, and their description in the API document."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from shared.records import ANYTHING, COUNT, OBJECT, TEXT, one_of, record
from web.schemas.openapi_responses import ERROR

CODES = (
    "invalid_argument", "unknown_command", "unknown_error", "no_such_run", "no_such_subscription",
    "no_such_namespace", "no_such_interrupt", "no_such_checkpoint", "permission_denied", "not_supported",
)  # fmt: skip

SUCCESS = record(
    "CommandSuccess",
    type=one_of("success"),
    id={"type": "integer"},
    result=OBJECT,
    meta=record(applied_through_seq=COUNT),
)
REFUSED = record("CommandRefusal", type=one_of("error"), id=ANYTHING, error=one_of(*CODES), message=TEXT)
ANSWER: dict[str, Any] = {"anyOf": [SUCCESS, REFUSED]}
NO_COMMAND: dict[str, Any] = {"anyOf": [REFUSED, ERROR]}


def success(id: int, result: Mapping[str, Any], through: int) -> dict[str, Any]:
    """Return a success. `through` is the number of the thread's newest event before those that the command causes."""
    return {"type": "success", "id": id, "result": result, "meta": {"applied_through_seq": through}}


def refused(id: Any, code: str, message: str) -> dict[str, Any]:
    return {"type": "error", "id": id, "error": code, "message": message}
