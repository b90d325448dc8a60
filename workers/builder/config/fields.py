"""Building blocks of the schemas for `langgraph.json`: fields with one error text each, and sections of known keys.

The service itself matches `http.cors.allow_origin_regex`. Python's `re` backtracks through every way to match and
blocks the whole process meanwhile. A pattern with exponential backtracking would block the callers of every deployment,
so only patterns that match any text quickly are accepted. The check is stricter than necessary: it reads the pattern's
tokens and does not know what they match.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, cast

from marshmallow import EXCLUDE, Schema, ValidationError, fields, missing, pre_load
from marshmallow.exceptions import SCHEMA

from shared.errors import BuildFailed, suggestion

OBJECT = "must be an object"

# Remarks about keys that are accepted but have no effect: a level of the build log, and a text.
IGNORED = ("INFO", "has no meaning here and is ignored")
NOT_DONE = ("WARNING", "is not done here and is ignored")  # the author may miss the effect

# Limits of a regular expression that is matched quickly, and its tokens.
MAX_REPEATS = 3
FEW = 4  # maximum repetitions of a group that contains a repetition, and of that inner repetition
TOKEN = re.compile(
    r"""(?P<reference>\\[1-9]|\(\?P=|\(\?\()
    |(?P<unknown>\(\?[a-zA-Z-]*x)  # verbose: white space and comments would need another tokenizer
    |(?P<skipped>\(\?\#[^)]*\)|\(\?[aiLmsu]+\))  # a comment, flags of the whole pattern
    |(?P<opening>\((?:\?(?:P<\w+>|<?[=!]|[:>]|[aimsLu-]+:))?(?!\?))
    |(?P<unknown_group>\()
    |(?P<closing>\))
    |(?P<branch>\|)
    |(?P<repeat>(?:[*+?]|\{(?P<least>[0-9]*)(?P<range>,?)(?P<most>[0-9]*)(?<!\{)\})[?+]?)
    |(?P<atom>\[\^?\]?(?:\\.|[^\]\\])*\]|\\.|.)""",
    re.VERBOSE | re.DOTALL,
)


def refused(reason: str) -> BuildFailed:
    """Return the BuildFailed to raise. The reason begins with the key."""
    return BuildFailed("configuration", reason)


class Value(fields.Field[Any]):
    """A value that `accepts` approves. Every other value has the same error text.

    null counts as absent, unless the key is required or `nullable` is False.
    """

    def __init__(
        self,
        error: str = "",
        accepts: Callable[[Any], bool] = lambda value: True,
        *,
        nullable: bool = True,
        remark: tuple[str, str] | None = None,
        required: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(
            required=required, allow_none=nullable and not required, metadata={"remark": remark}, **kwargs
        )
        self.error = error
        self.accepts = accepts

    def make_error(self, key: str = "invalid", **kwargs: Any) -> ValidationError:
        return ValidationError(self.error)

    def _deserialize(self, value: Any, *args: Any, **kwargs: Any) -> Any:
        if not self.accepts(value):
            raise self.make_error()
        return value


def boolean(**kwargs: Any) -> Value:
    return Value("must be true or false", lambda value: isinstance(value, bool), **kwargs)


def number(error: str = "", *, most: float = math.inf, **kwargs: Any) -> Value:
    """A number from 0 to `most`."""
    error = error or f"must be a number between 0 and {most}"
    return Value(error, lambda value: type(value) in (int, float) and 0 <= value <= most, **kwargs)


def whole_number(error: str = "", *, least: int = 0, most: float = math.inf, **kwargs: Any) -> Value:
    error = error or f"must be a whole number between {least} and {most}"
    return Value(error, lambda value: type(value) is int and least <= value <= most, **kwargs)


def text(error: str, pattern: str = "(?s).+", **kwargs: Any) -> Value:
    """A string that the pattern matches as a whole; without a pattern, any string that is not empty."""
    return Value(error, lambda value: is_text(value, re.compile(pattern)), **kwargs)


def is_text(value: Any, pattern: re.Pattern[str]) -> bool:
    return isinstance(value, str) and pattern.fullmatch(value) is not None


def one_of(*choices: str, error: str = "", **kwargs: Any) -> Value:
    error = error or f"must be one of {', '.join(choices)}"
    return Value(error, lambda value: value in choices, **kwargs)


def array(
    error: str, accepts: Callable[[Any], bool], *, least: int = 0, most: float = math.inf, **kwargs: Any
) -> Value:
    """An array of `least` to `most` items, each approved by `accepts`."""
    return Value(
        error,
        lambda value: isinstance(value, list) and least <= len(value) <= most and all(map(accepts, value)),
        **kwargs,
    )


def drop(value: Any) -> Any:
    """Leave a valid value out of the loaded section. For `post_load` of a field."""
    return missing


def drop_if_empty(value: Any) -> Any:
    return value or missing


class Section(Schema):
    """An object of the file. Unknown keys are ignored, with a warning."""

    class Meta:
        unknown = EXCLUDE

    warns_of_unknown = True

    @property
    def by_key(self) -> dict[str, fields.Field[Any]]:
        """The fields by their key in the file, which is not always a Python name."""
        return {field.data_key or name: field for name, field in self.fields.items()}

    def refuse_unknown(self, config: Mapping[str, Any]) -> None:
        """Raise ValidationError for an unknown key that must not be ignored."""

    @pre_load
    def prepare(self, config: Mapping[str, Any], **kwargs: Any) -> dict[str, Any]:
        known = self.by_key
        self.refuse_unknown(config)
        return {
            key: value
            for key, value in config.items()
            if value is not None or (key in known and not known[key].allow_none)
        }


class StrictSection(Section):
    """An object whose unknown keys are refused."""

    unknown_text = "not known"

    def refuse_unknown(self, config: Mapping[str, Any]) -> None:
        known = self.by_key
        for name in config:
            if name not in known:
                raise ValidationError({name: f"{self.unknown_text}.{suggestion(name, known)}"})


class Nested(fields.Nested):
    """A section within another. The values in `empty` stand for an absent section."""

    def __init__(
        self, section: type[Section], *, error: str = OBJECT, empty: Collection[Any] = (), **kwargs: Any
    ) -> None:
        super().__init__(section, allow_none=True, **kwargs)
        self.error = error
        self.empty = empty

    def _deserialize(self, value: Any, *args: Any, **kwargs: Any) -> Any:
        if value in self.empty:
            return {}
        if not isinstance(value, dict):
            raise ValidationError(self.error)
        return super()._deserialize(value, *args, **kwargs)


def load(section: Section, config: Any, where: str = "") -> dict[str, Any]:
    """Return the loaded section. Raises BuildFailed with the first error, under the key `where`."""
    try:
        return cast(dict[str, Any], section.load(config))
    except ValidationError as error:
        messages: Any = error.messages
        path = [where] if where else []
        while isinstance(messages, dict):
            key, messages = next(iter(messages.items()))
            path += [] if key == SCHEMA else [key]
        reason = messages if isinstance(messages, str) else messages[0]
        raise refused(f"{'.'.join(path)}: {reason}") from error


def remarks(section: Section, config: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, str]]:
    """Yield a level and a text for each key of a valid section that has no effect."""
    known = section.by_key
    if section.warns_of_unknown:
        for name in config:
            if name not in known:
                yield "WARNING", f"{path}{name}: unknown key, ignored.{suggestion(name, known)}"
    for key, part in known.items():
        value = config.get(key)
        if value and (remark := part.metadata.get("remark")):
            yield remark[0], f"{path}{key}: {remark[1]}"
        if isinstance(part, Nested) and isinstance(part.schema, Section) and isinstance(value, dict):
            yield from remarks(part.schema, value, f"{path}{key}.")


@dataclass
class PatternGroup:
    """The part of a pattern in a pair of parentheses, with all parts inside."""

    repeats: list[float] = field(default_factory=list)  # the highest number of times of each repetition
    is_branched: bool = False

    def may_repeat(self, most: float) -> bool:
        """Whether repeating the group is safe from exponential backtracking.

        Either the group has no repetition and no alternative, or it is repeated at most FEW times and contains a single
        repetition of at most FEW.
        """
        if self.is_branched:
            return False
        return not self.repeats or (most <= FEW and len(self.repeats) == 1 and self.repeats[0] <= FEW)


def why_not_quick(pattern: str) -> str | None:
    """Return the reason why a pattern is rejected, None if it is accepted."""
    try:
        re.compile(pattern)
    except (re.error, RecursionError, OverflowError) as error:
        return f"is no regular expression: {error}"
    groups = [PatternGroup()]
    last = PatternGroup()  # the operand of a repetition
    for token in TOKEN.finditer(pattern):
        match token.lastgroup:
            case "reference":
                return "it refers to a group, which can take very long to match"
            case "unknown" | "unknown_group":
                return "it has a construct that cannot be checked: the flag x, or an unknown kind of group"
            case "opening":
                groups.append(PatternGroup())
            case "closing":
                last = groups.pop()
                groups[-1].repeats += last.repeats
                groups[-1].is_branched |= last.is_branched
            case "branch":
                groups[-1].is_branched = True
            case "repeat":
                most = _most(token)
                if most > 1 and not last.may_repeat(most):
                    return "it repeats a group that repeats or chooses, which can take very long to match"
                groups[-1].repeats.append(most)
            case "atom":
                last = PatternGroup()
            case _:
                pass
    if sum(most > FEW for most in groups[0].repeats) > MAX_REPEATS:
        return f"it has more than {MAX_REPEATS} repetitions, which can take very long to match"
    return None


def _most(repeat: re.Match[str]) -> float:
    """Return the highest number of times that a repetition matches."""
    if repeat["least"] is None:
        return 1 if repeat[0].startswith("?") else math.inf
    if repeat["range"]:
        return int(repeat["most"]) if repeat["most"] else math.inf
    return int(repeat["least"])
