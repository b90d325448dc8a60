"""A project's `Auth` object (`auth.path`): authenticates callers and authorizes their calls.

It answers the QUERY ops `authenticate` and `authorize`. Their documents and answers are:

    authenticate  `request`: {"method", "path", "query", "headers": [[name, value] …], "client", "url"}
                  → {"user": {…}}
    authorize     `user`, `asks`: [{"resource", "action", "value"} …]
                  → {"granted": [{"value", "filter": {…} | null} …]}

Either may also answer {"denied": {"status", "detail", "headers"}} or {"failed": reason}. The caller receives no other
details. Authorization fails closed: any behavior of the project's functions outside the contract is `failed`.
"""

from __future__ import annotations

import asyncio
import contextvars
import functools
import inspect
import logging
import math
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from uuid import UUID

import orjson
from langgraph_sdk import Auth

from ..loader import LoadFailed, Modules, load_object, parameters_of
from .loopback import acting_for
from .request import NAMES, Arguments
from .users import document_of, user_of

log = logging.getLogger("runyard")

KEY = "auth.path"
ANY = "*"
# Longer than the caller's timeout of 10 seconds, so that the caller gives up first.
ASK_SECONDS = 10.5
THREADS = 16  # for an `authenticate` that is not a coroutine function
IDS = ("thread_id", "run_id", "assistant_id", "cron_id")
LABELS = ("namespace", "suffix")
EMPTY = inspect.Parameter.empty

Answer = dict[str, Any]


class Denial(Exception):
    """A project's function refuses the call, with its own status and text."""

    def __init__(self, status: int, detail: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(detail)
        self.status, self.detail, self.headers = status, detail, dict(headers or {})


class WrongAnswer(Exception):
    """A project's function returned a value outside the contract."""


class ProjectAuth:
    """A project's authorization. The host calls only `answer`, and `describe` during a build."""

    def __init__(self, auth: Auth) -> None:
        self._auth = auth
        function = auth._authenticate_handler
        if function is None:
            raise LoadFailed(f"{KEY}: no function is registered with @auth.authenticate")
        self._authenticate: Callable[..., Any] = function
        self._parameters = _parameters(function)
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="auth")
        self._handlers = _handlers(auth)

    def describe(self) -> dict[str, Any]:
        """Return the names of `authenticate`'s parameters, and the actions that have a handler.

        The web process needs both to decide whether and how to call this authorization.
        """
        return {
            "parameters": [parameter.name for parameter in self._parameters],
            "handlers": sorted([resource, action] for resource, action in self._handlers),
        }

    async def answer(self, document: Mapping[str, Any]) -> Answer:
        """Answer a call. Errors of user code become `denied` or `failed` and are never raised."""
        answer_of = self._user_of if document["op"] == "authenticate" else self._decision_of
        try:
            async with asyncio.timeout(ASK_SECONDS):
                return await answer_of(document)
        except Denial as refusal:
            return {
                "denied": {"status": refusal.status, "detail": refusal.detail, "headers": refusal.headers}
            }
        except TimeoutError as error:
            log.error("%s did not answer in time", document["op"], exc_info=error)
            return {"failed": f"{document['op']} did not answer in time"}
        except BaseException as error:  # any exception of the project's functions
            log.error("%s failed", document["op"], exc_info=error)
            return {"failed": f"{document['op']} raised {type(error).__name__}"}

    async def _user_of(self, document: Mapping[str, Any]) -> Answer:
        known = Arguments(document["request"])
        args = [known.value(p.name) for p in self._parameters if p.kind is p.POSITIONAL_ONLY]
        kwargs = {p.name: known.value(p.name) for p in self._parameters if p.kind is not p.POSITIONAL_ONLY}
        with acting_for(None):
            try:
                returned = await self._called(*args, **kwargs)
            except Exception as error:
                _raise_refusal(error)
                raise
        return {"user": document_of(returned)}

    async def _called(self, *args: Any, **kwargs: Any) -> Any:
        function = functools.partial(self._authenticate, *args, **kwargs)
        if not inspect.iscoroutinefunction(self._authenticate):
            loop, context = asyncio.get_running_loop(), contextvars.copy_context()
            returned = await loop.run_in_executor(self._threads, context.run, function)
        else:
            returned = function()
        return await returned if isinstance(returned, Awaitable) else returned

    async def _decision_of(self, document: Mapping[str, Any]) -> Answer:
        user = document["user"]
        with acting_for(user):
            return {"granted": [await self._decided(user, **ask) for ask in document["asks"]]}

    async def _decided(
        self, user: Mapping[str, Any], resource: Any, action: Any, value: dict[str, Any]
    ) -> Answer:
        handler = self._handler(resource, action)
        if handler is None:
            return {"value": value, "filter": None}
        seen = user_of(user)
        context = Auth.types.AuthContext(
            permissions=list(seen.permissions), user=seen, resource=resource, action=action
        )
        value = _with_ids(value)
        try:
            result = await handler(ctx=context, value=value)
        except AssertionError as error:
            raise Denial(403, str(error) or "Forbidden") from None
        except Exception as error:
            _raise_refusal(error)
            raise
        return {"value": _json(value, "value"), "filter": _filter(result, resource)}

    def _handler(self, resource: str, action: str) -> Callable[..., Any] | None:
        """Return the most specific handler of an action; None if there is none."""
        for key in ((resource, action), (resource, ANY), (ANY, action), (ANY, ANY)):
            if key in self._handlers:
                return self._handlers[key]
        return None


def load(location: str, modules: Modules) -> ProjectAuth:
    """Load the project's `Auth` object. Raises LoadFailed."""
    auth = load_object(KEY, location, modules)
    if not isinstance(auth, Auth):
        raise LoadFailed(f"{KEY}: {location} is no langgraph_sdk.Auth: {type(auth).__name__}")
    return ProjectAuth(auth)


def _parameters(function: Callable[..., Any]) -> list[inspect.Parameter]:
    """Return the parameters to pass. Raises LoadFailed for a parameter without default and with an unknown name."""
    where = f"{KEY}: the function of @auth.authenticate"
    parameters = parameters_of(where, function)
    for parameter in parameters:
        if parameter.name not in NAMES and parameter.default is EMPTY:
            known = ", ".join(sorted(NAMES))
            raise LoadFailed(
                f"{where} has the unknown parameter '{parameter.name}', which needs a default; known are {known}"
            )
    return [parameter for parameter in parameters if parameter.name in NAMES]


def _handlers(auth: Auth) -> dict[tuple[str, str], Callable[..., Any]]:
    """Return the handlers by `(resource, action)`."""
    registered = {**auth._handlers, (ANY, ANY): auth._global_handlers}
    return {key: handlers[0] for key, handlers in registered.items() if handlers}


def _with_ids(value: Mapping[str, Any]) -> dict[str, Any]:
    """Return the value for handlers: ids as UUIDs, including those of runs to cancel, and namespaces as tuples."""
    ids: dict[str, Any] = {name: _uuid(value[name]) for name in IDS if isinstance(value.get(name), str)}
    ids |= {name: tuple(value[name]) for name in LABELS if isinstance(value.get(name), list)}
    named = value["metadata"].get("run_ids") if "action" in value else None
    if named is not None:
        ids["metadata"] = {**value["metadata"], "run_ids": [_uuid(text) for text in named]}
    return {**value, **ids}


def _uuid(text: str) -> UUID | str:
    try:
        return UUID(text)
    except ValueError:
        return text


def _filter(result: Any, resource: str) -> dict[str, Any] | None:
    """Convert a handler's result to a filter; None means no filter. Raises Denial, WrongAnswer."""
    if result is None or result is True:
        return None
    if result is False or (isinstance(result, int | float) and not result):
        raise Denial(403, "Forbidden")
    if isinstance(result, int | float):
        return None
    if not isinstance(result, dict):
        raise WrongAnswer(
            f"Auth handler returned invalid result. Expected a filter, None or a boolean, got {type(result).__name__}"
        )
    if resource == "store":
        raise WrongAnswer("a handler of the store returned a filter: it narrows value['namespace'] instead")
    if _has_non_finite(result):
        raise WrongAnswer(
            "a handler left a filter with a number that JSON does not have: it would match null"
        )
    return _json(result, "filter") or None


def _has_non_finite(value: Any) -> bool:
    """Whether the value contains NaN or an infinity, which would become null in JSON."""
    if isinstance(value, Mapping):
        return any(map(_has_non_finite, value.values()))
    if isinstance(value, list | tuple):
        return any(map(_has_non_finite, value))
    return isinstance(value, float) and not math.isfinite(value)


def _json(value: Any, name: str) -> Any:
    """Convert a value to JSON types. Raises WrongAnswer."""
    try:
        return orjson.loads(orjson.dumps(value))
    except TypeError as error:
        raise WrongAnswer(f"a handler left a {name} that is no JSON: {error}") from None


def _raise_refusal(error: Exception) -> None:
    """Raise Denial if the exception is an HTTPException of the SDK or of Starlette with an error status."""
    starlette = getattr(
        sys.modules.get("starlette.exceptions"), "HTTPException", Auth.exceptions.HTTPException
    )
    if not isinstance(error, (Auth.exceptions.HTTPException, starlette)):
        return
    status: Any = getattr(error, "status_code", None)
    if isinstance(status, int) and 400 <= status <= 599:
        detail: Any = getattr(error, "detail", None)
        text = detail if isinstance(detail, str) else orjson.dumps(detail, default=repr).decode()
        raise Denial(int(status), text, _headers(getattr(error, "headers", None))) from None


def _headers(headers: Any) -> dict[str, str]:
    """Return the headers that consist of printable ASCII, since others cannot be sent."""
    pairs: Sequence[tuple[Any, Any]] = list(headers.items()) if isinstance(headers, Mapping) else []
    return {str(name): str(value) for name, value in pairs if _is_line(f"{name}{value}")}


def _is_line(text: str) -> bool:
    return text.isprintable() and text.isascii()
