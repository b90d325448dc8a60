"""Describes routes: `@operation(…)` says of each what its code does not.

Authentication reads the role from it, the rate limits whether the answer may take long, the application whether its
statements may, and the API document the rest. A role has no default, so that no route can be without one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar

from flask import current_app, request

from web.fields import Schema

View = TypeVar("View", bound=Callable[..., Any])
Role = Literal["open", "read", "run", "deploy", "admin", "operator"]

JSON = "application/json"
STATEMENT_SECONDS = 3.0  # without a byte from the database: then it is taken for one that hangs
SLOW_SECONDS = 11.0  # after the database's own statement_timeout (web/wsgi.py), which says more


@dataclass(frozen=True, kw_only=True)
class Operation:
    """The keywords of `@operation`."""

    summary: str
    role: Role  # the least that a key needs; "open" answers without a key
    long: bool | str = False  # may take long and so holds a stream slot; a text: with this query parameter
    slow: bool = False  # a statement of it reads or deletes so much that it may take seconds
    body: type[Schema] | None = None
    body_items: int = 0  # the body is an array of it, of at most so many
    query: type[Schema] | None = None
    answer: type[Schema] | dict[str, Any] | None = None  # a schema, or JSON Schema as it stands
    many: bool = False  # the answer is an array of it
    status: int = 200  # that of a refusal when there is no other answer
    also: tuple[int, ...] = ()  # other statuses with the same answer
    empty: tuple[int, ...] = ()  # other statuses, without a body
    headers: tuple[str, ...] = ()  # of the answer, known to web/openapi_responses.py
    errors: tuple[int, ...] = ()
    refusals: Mapping[int, dict[str, Any]] = field(default_factory=dict)  # those with a form of their own
    sse: bool = False  # answers with server-sent events
    idempotent: bool = False  # takes an Idempotency-Key (web/idempotency.py)
    media: tuple[str, ...] = (JSON,)  # of the answer; only JSON has its schema
    any_text: tuple[str, ...] = ()  # parameters of the path that look like ids and need not be any


def operation(summary: str, *, role: Role, **more: Any) -> Callable[[View], View]:
    """Describe a route; the keywords are the fields of Operation."""

    def attach(view: View) -> View:
        view.__operation__ = Operation(summary=summary, role=role, **more)  # type: ignore[attr-defined]
        return view

    return attach


def of_view(view: Callable[..., Any]) -> Operation:
    return view.__operation__  # type: ignore[attr-defined]


def requested() -> Operation | None:
    """The operation that the current request is for; None where no route matches."""
    rule = request.url_rule
    return None if rule is None else of_view(current_app.view_functions[rule.endpoint])


def statement_seconds() -> float:
    """How long a statement of the current request waits for a silent database."""
    found = requested()
    return SLOW_SECONDS if found is not None and found.slow else STATEMENT_SECONDS


def may_take_long() -> bool:
    """Whether the current request is one for a long answer."""
    found = requested()
    if found is None:
        return False
    return found.long in request.args if isinstance(found.long, str) else found.long
