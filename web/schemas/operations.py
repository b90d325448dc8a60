"""Declarations of routes: `@bp.operation(…)` registers a route and declares what its code does not show.

A `RouteGroup` holds the routes of one subject. The gate (web/gate/gate.py) reads the role of a route, whether its
response and its SQL statements may take long, and the switches that disable its group. The API document uses the other
fields. The role has no default, so that every route must declare one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import wraps
from typing import Annotated, Any, Literal, TypeVar, get_args, get_type_hints
from uuid import UUID

from flask import Blueprint, current_app, request

from web.schemas.fields import Schema
from web.schemas.validation import load, load_query, uuid_path

View = TypeVar("View", bound=Callable[..., Any])
Role = Literal["open", "read", "run", "deploy", "admin", "operator"]
IdText = Annotated[str, UUID]  # type of a path parameter: a UUID that the view parses itself
# The sections of the API document, in order.
Section = Literal[
    "Runs",
    "Threads",
    "State and history",
    "Assistants",
    "Crons",
    "Inbox",
    "Webhooks",
    "Store",
    "Protocol v2",
    "MCP and A2A",
    "AG-UI",
    "Generative UI",
    "Deployments",
    "Revisions",
    "Replays",
    "Logs",
    "Organizations and keys",
    "OAuth providers",
    "Users' tokens",
    "Repositories",
    "Workers",
    "Figures",
    "Service",
]
SECTIONS: tuple[str, ...] = get_args(Section)

JSON, SSE = "application/json", "text/event-stream"
CONTROL_PLANE = ("/v1/", "/v2/")  # prefixes of its paths
STATEMENT_SECONDS = 3.0  # after this time without a byte the database counts as hanging
SLOW_SECONDS = 11.0  # longer than the database's own statement_timeout (web/wsgi.py), whose error says more
NOTHING_FIXED: Mapping[str, Any] = {}


@dataclass(frozen=True, kw_only=True)
class Operation:
    """A declared route: the keywords of `RouteGroup.operation`."""

    group: RouteGroup
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
    headers: tuple[str, ...] = ()  # response headers, described in web/schemas/openapi.py
    errors: tuple[int, ...] = ()
    refusals: Mapping[int, dict[str, Any]] = field(default_factory=dict)  # bodies of a special form
    sse: bool = False  # responds with server-sent events
    idempotent: bool = False  # accepts an Idempotency-Key (web/gate/idempotency.py)
    media: tuple[str, ...] = (JSON,)  # media types of the response; only JSON has the schema
    id_message: str | None = None  # error text for an id in the path that is not a UUID
    ids: frozenset[str] = frozenset()  # path parameters that are UUIDs; derived from the view's annotations


class RouteGroup(Blueprint):
    """The routes of one subject.

    `section` is the group's section of the API document; without one, its routes are not in the document. Each of the
    `switches` in the `http` section of a langgraph.json disables the routes.
    """

    def __init__(self, name: str, *, section: Section | None = None, switches: tuple[str, ...] = ()) -> None:
        super().__init__(name, __name__)
        self.section = section
        self.switches = switches

    def operation(
        self,
        route: str | tuple[str, ...],
        summary: str,
        *,
        role: Role,
        strict_slashes: bool | None = None,
        websocket: bool = False,
        **more: Any,
    ) -> Callable[[View], View]:
        """Register a route, such as `GET PATCH /threads/<thread_id>`, or several. The other keywords are of Operation.

        Path parameters that the view annotates as `UUID` are parsed. A view with a parameter `query` or `body` gets the
        validated query string or body. A view that returns None responds without a body. `websocket` also accepts WebSocket
        handshakes.
        """

        def register(view: View) -> View:
            options = {"strict_slashes": strict_slashes, "websocket": websocket}
            self._register(view, view.__name__, route, summary=summary, role=role, **options, **more)
            return view

        return register

    def with_and_without_thread(
        self, route: str, summary: str, summary_without: str, *, role: Role, **more: Any
    ) -> Callable[[View], View]:
        """Register a view at a path and below `/threads/<thread_id>`. The view's `thread_id` may be None."""
        method, _, path = route.partition(" ")

        def register(view: View) -> View:
            name, on_thread = view.__name__, f"{method} /threads/<thread_id>{path}"
            self._register(view, name, on_thread, summary=summary, role=role, **more)
            without = {"summary": summary_without, "role": role, **more}
            self._register(view, f"{name}_without_thread", route, fixed={"thread_id": None}, **without)
            return view

        return register

    def _register(
        self,
        view: Callable[..., Any],
        endpoint: str,
        route: str | tuple[str, ...],
        *,
        fixed: Mapping[str, Any] = NOTHING_FIXED,
        strict_slashes: bool | None = None,
        websocket: bool = False,
        **more: Any,
    ) -> None:
        """Register the view with its path parameters parsed, its `query` and `body` loaded, and `fixed` arguments."""
        hints = get_type_hints(view, include_extras=True)
        parsed = [name for name, kind in hints.items() if kind in (UUID, UUID | None)]
        ids = frozenset([*parsed, *(name for name, kind in hints.items() if kind == IdText)])
        operation = Operation(group=self, ids=ids, **more)
        query = operation.query if "query" in hints else None
        body = operation.body if "body" in hints else None

        @wraps(view)
        def call(**values: Any) -> Any:
            for name in parsed:
                if name in values:
                    values[name] = uuid_path(values[name], name, message=operation.id_message)
            if query is not None:
                values["query"] = load_query(query)
            if body is not None:
                values["body"] = load(body)
            response = view(**values, **fixed)
            return response if response is not None else ("", operation.status)

        call.__operation__ = operation  # type: ignore[attr-defined]
        for each in (route,) if isinstance(route, str) else route:
            *methods, path = each.split(" ")
            self.add_url_rule(path, endpoint, call, methods=methods, strict_slashes=strict_slashes)
            if websocket:
                self.add_url_rule(path, endpoint, call, websocket=True)


def of_view(view: Callable[..., Any]) -> Operation:
    return view.__operation__  # type: ignore[attr-defined]


def current() -> Operation | None:
    """Return the operation of the current request, or None if no route matches."""
    rule = request.url_rule
    return None if rule is None else of_view(current_app.view_functions[rule.endpoint])


def statement_seconds() -> float:
    """Return how many seconds a statement of the current request waits for a silent database."""
    operation = current()
    return SLOW_SECONDS if operation is not None and operation.slow else STATEMENT_SECONDS


def may_take_long() -> bool:
    """Return whether the response to the current request may take long."""
    operation = current()
    if operation is None:
        return False
    return operation.long in request.args if isinstance(operation.long, str) else operation.long
