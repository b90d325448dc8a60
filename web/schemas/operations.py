"""Metadata of routes: `@operation(…)` declares what a route's code does not show.

Authentication reads the role, the rate limits whether the response may take long, and the application whether SQL
statements may. The API document uses the rest. The role has no default, so that every route must declare one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar

from flask import current_app, request

from web.schemas.fields import Schema

View = TypeVar("View", bound=Callable[..., Any])
Role = Literal["open", "read", "run", "deploy", "admin", "operator"]

JSON = "application/json"
STATEMENT_SECONDS = 3.0  # after this time without a byte the database counts as hanging
SLOW_SECONDS = 11.0  # longer than the database's own statement_timeout (web/wsgi.py), whose error says more


@dataclass(frozen=True, kw_only=True)
class Operation:
    """The keywords of `@operation`."""

    summary: str
    role: Role  # the lowest role that may call the route; "open" needs no key
    long: bool | str = False  # may take long and holds a stream slot; a str: only with this parameter
    slow: bool = False  # a SQL statement reads or deletes so much that it may take seconds
    body: type[Schema] | None = None
    body_items: int = 0  # if not 0, the body is an array of at most so many items
    query: type[Schema] | None = None
    answer: type[Schema] | dict[str, Any] | None = None  # a marshmallow schema or a JSON Schema
    many: bool = False  # the response is an array of `answer`
    status: int = 200  # the status of success, or of the refusal if the route always refuses
    also: tuple[int, ...] = ()  # other statuses with the same body
    empty: tuple[int, ...] = ()  # other statuses, without a body
    headers: tuple[str, ...] = ()  # response headers, described in web/schemas/openapi_responses.py
    errors: tuple[int, ...] = ()
    refusals: Mapping[int, dict[str, Any]] = field(default_factory=dict)  # bodies of a special form
    sse: bool = False  # responds with server-sent events
    idempotent: bool = False  # accepts an Idempotency-Key (web/gate/idempotency.py)
    media: tuple[str, ...] = (JSON,)  # media types of the response; only JSON has the schema
    any_text: tuple[str, ...] = ()  # path parameters that look like ids and may be any text


def operation(summary: str, *, role: Role, **more: Any) -> Callable[[View], View]:
    """Describe a route. The keywords are the fields of Operation."""

    def attach(view: View) -> View:
        view.__operation__ = Operation(summary=summary, role=role, **more)  # type: ignore[attr-defined]
        return view

    return attach


def of_view(view: Callable[..., Any]) -> Operation:
    return view.__operation__  # type: ignore[attr-defined]


def requested() -> Operation | None:
    """Return the operation of the current request, or None if no route matches."""
    rule = request.url_rule
    return None if rule is None else of_view(current_app.view_functions[rule.endpoint])


def statement_seconds() -> float:
    """Return how many seconds a statement of the current request waits for a silent database."""
    found = requested()
    return SLOW_SECONDS if found is not None and found.slow else STATEMENT_SECONDS


def may_take_long() -> bool:
    """Return whether the response to the current request may take long."""
    found = requested()
    if found is None:
        return False
    return found.long in request.args if isinstance(found.long, str) else found.long
