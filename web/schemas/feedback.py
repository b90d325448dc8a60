"""Schemas of feedback on runs: what callers and holders of feedback URLs send, and the filter of runs by feedback."""

from __future__ import annotations

from typing import Any, ClassVar

import orjson
from marshmallow import ValidationError

from shared.records import JsonSchema
from web.schemas import fields

MAX_KEY = 180  # characters
MAX_SCORE = 1_000_000
MAX_COMMENT = 5_000  # characters
MAX_VALUE_BYTES, MAX_CORRECTION_BYTES = 2_000, 10_000


class FeedbackKey(fields.StrictString):
    """The name of a kind of feedback, such as `thumbs`."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(min_length=1, max_length=MAX_KEY, pattern=r"[^\x00-\x1f\x7f]+", **kwargs)


class Score(fields.StrictNumber):
    """A number; true is 1 and false is 0."""

    type_rule = fields.Rule("must be a number, true or false", "float_type")
    json_schema: ClassVar[JsonSchema] = {"type": ["number", "boolean"]}

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(minimum=-MAX_SCORE, maximum=MAX_SCORE, **kwargs)

    def _deserialize(self, value: Any, attr: str | None, data: Any, **kwargs: Any) -> float:
        number = int(value) if isinstance(value, bool) else value
        return super()._deserialize(number, attr, data, **kwargs)


class ScoreText(Score):
    """A score in a query string or a form."""

    def _deserialize(self, value: Any, attr: str | None, data: Any, **kwargs: Any) -> float:
        try:
            number = orjson.loads(value)
        except orjson.JSONDecodeError:
            raise ValidationError([self.type_rule]) from None
        return super()._deserialize(number, attr, data, **kwargs)


class Feedback(fields.Schema):
    example: ClassVar[dict[str, Any]] = {"score": 1, "comment": "That helped."}

    score = Score(allow_none=True)
    value = fields.AnyJson(max_bytes=MAX_VALUE_BYTES)
    comment = fields.StrictString(max_length=MAX_COMMENT, allow_none=True)
    correction = fields.JsonObject(max_bytes=MAX_CORRECTION_BYTES, searchable=True, allow_none=True)


class KeyedFeedback(Feedback):
    example: ClassVar[dict[str, Any]] = {"key": "thumbs", **Feedback.example}

    key = FeedbackKey(required=True)


class FeedbackText(fields.Schema):
    """Feedback in a query string or a form."""

    score = ScoreText()
    value = fields.StrictString(max_length=MAX_VALUE_BYTES)
    comment = fields.StrictString(max_length=MAX_COMMENT)


class FeedbackFilter(fields.StrictSchema):
    """Selects runs that have feedback with this key, whose score is below `below` and at least `at_least`."""

    key = FeedbackKey(required=True)
    below = fields.StrictNumber(minimum=-MAX_SCORE, maximum=MAX_SCORE, allow_none=True)
    at_least = fields.StrictNumber(minimum=-MAX_SCORE, maximum=MAX_SCORE, allow_none=True)
