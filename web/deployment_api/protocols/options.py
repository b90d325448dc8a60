"""Options of assistants for the protocols, in the assistant's metadata: `mcp` says how it is shown as a tool."""

from __future__ import annotations

from typing import Any, ClassVar

from marshmallow import ValidationError

from shared.infra.postgres import Row
from shared.records import BOOLEAN
from web.schemas import fields

TASK_AFTER_SECONDS = 2.0
MAX_TASK_AFTER = 3600  # seconds
HINTS = {
    "readOnlyHint": False,
    "destructiveHint": False,
    "idempotentHint": False,
    "openWorldHint": True,
}


class Annotations(fields.StrictSchema):
    readOnlyHint = fields.StrictBoolean()
    destructiveHint = fields.StrictBoolean()
    idempotentHint = fields.StrictBoolean()
    openWorldHint = fields.StrictBoolean()


class ToolOptions(fields.StrictSchema):
    annotations = fields.Nested(Annotations)
    listed = fields.StrictBoolean()
    structured = fields.StrictBoolean()
    task_after = fields.StrictNumber(minimum=0, maximum=MAX_TASK_AFTER)
    task_required = fields.StrictBoolean()


OPTIONS = {"mcp": ToolOptions()}  # by key of the metadata


class AssistantMetadata(fields.JsonObject):
    """The metadata of an assistant. The options of protocols are validated, other keys are stored as sent."""

    json_schema: ClassVar[dict[str, Any]] = {
        "properties": {
            "mcp": {
                "type": "object",
                "additionalProperties": False,
                "properties": {
                    "annotations": {
                        "type": "object",
                        "additionalProperties": False,
                        "properties": dict.fromkeys(HINTS, BOOLEAN),
                    },
                    "listed": BOOLEAN,
                    "structured": BOOLEAN,
                    "task_after": {"type": "number", "minimum": 0, "maximum": MAX_TASK_AFTER},
                    "task_required": BOOLEAN,
                },
            }
        }
    }

    def _deserialize(self, value: Any, attr: str | None, data: Any, **kwargs: Any) -> dict[str, Any]:
        metadata = super()._deserialize(value, attr, data, **kwargs)
        for key in OPTIONS.keys() & metadata.keys():
            try:
                OPTIONS[key].load(metadata[key])
            except ValidationError as error:
                raise ValidationError({key: error.normalized_messages()}) from error
        return metadata


def hints(tool: Row) -> dict[str, bool]:
    """Return the hints of a tool. Ignores invalid ones, which a handler of the project may have stored."""
    changed = tool["options"].get("annotations")
    valid = changed.items() if isinstance(changed, dict) else ()
    return HINTS | {name: hint for name, hint in valid if name in HINTS and isinstance(hint, bool)}


def is_structured(tool: Row) -> bool:
    """Return whether the tool lists the schema of its output, and answers with the state itself."""
    return tool["options"].get("structured") is True and isinstance(tool["output_schema"], dict)


def task_after(tool: Row) -> float:
    """Return the seconds that a call waits before it becomes a task. Ignores an invalid value, as `hints` does."""
    seconds = tool["options"].get("task_after")
    is_valid = isinstance(seconds, int | float) and not isinstance(seconds, bool)
    return seconds if is_valid and 0 <= seconds <= MAX_TASK_AFTER else TASK_AFTER_SECONDS


def is_task_required(tool: Row) -> bool:
    return tool["options"].get("task_required") is True
