"""Authorization by a deployment's own code: who a caller is, and what the caller may do.

The project's functions run in a graph host (`shared/hosts/calls.py`). Their answers are data, which is checked
here. Authorization fails closed: no answer or an invalid one is a refusal. A caller of these functions must not hold a
database connection, because an answer may take seconds.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from http import HTTPStatus
from typing import Any, NoReturn

import orjson

from shared.deployments import logs
from shared.deployments.deployments import DeploymentRef
from shared.errors import Denied, HostDied, HostError, HostUnusable, Unavailable
from shared.hosts import calls
from shared.hosts.pending_calls import HostCall
from shared.infra.logs import bound_ids
from shared.infra.postgres import connection
from shared.user_code import filters, users
from shared.user_code.filters import BadFilter
from shared.user_code.users import User, user_of

log = logging.getLogger(__name__)

ASK_SECONDS = 10.0  # time limit of the project's functions
UNUSABLE = "authorization returned an invalid answer"


@dataclass(frozen=True, slots=True)
class Ask:
    """One authorization request to the handlers. Ids in `value` are UUIDs."""

    resource: str
    action: str
    value: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Granted:
    """An allowed action: the value as the handler left it, and the filter of visible records. None: all are visible.

    Ids in a value that a handler saw are strings.
    """

    value: dict[str, Any]
    filter: Mapping[str, Any] | None = None


Authorize = Callable[[Sequence[Ask]], list[Granted]]  # asks the handlers in one call; raises Denied


def authenticate(deployment: DeploymentRef, facts: Mapping[str, Any]) -> User:
    """Call the project's `authenticate`. `facts` are the request's method, path, query and headers.

    Raises Denied, Unanswered, Unavailable.
    """
    auth = deployment.user_code.auth
    assert auth is not None
    assert deployment.active_revision_id is not None
    return users.find_or_ask(
        deployment.active_revision_id, auth, facts, lambda: _call_authenticate(deployment, facts)
    )


def _call_authenticate(deployment: DeploymentRef, facts: Mapping[str, Any]) -> User:
    answer = _answer(deployment, {"op": "authenticate", "request": facts})
    try:
        return user_of(answer.get("user"))
    except ValueError as error:
        fail(deployment, str(error))


def authorize(deployment: DeploymentRef, user: User, asks: Sequence[Ask]) -> list[Granted]:
    """Call the handlers, all in one call. Actions without a handler are allowed unchanged.

    Raises as `authenticate` does.
    """
    auth = deployment.user_code.auth
    decided = [auth is not None and auth.decides(ask.resource, ask.action) for ask in asks]
    if not any(decided):
        return [Granted(ask.value) for ask in asks]
    decidable = [ask for ask, is_decided in zip(asks, decided, strict=True) if is_decided]
    granted = iter(_call_handlers(deployment, user, decidable))
    return [
        next(granted) if is_decided else Granted(ask.value)
        for ask, is_decided in zip(asks, decided, strict=True)
    ]


def _call_handlers(deployment: DeploymentRef, user: User, asks: Sequence[Ask]) -> list[Granted]:
    questions = [{"resource": ask.resource, "action": ask.action, "value": ask.value} for ask in asks]
    answer = _answer(deployment, {"op": "authorize", "user": user.document, "asks": questions})
    try:
        return list(_granted(asks, answer.get("granted")))
    except BadFilter as error:
        fail(deployment, error.reason)
    except ValueError as error:
        fail(deployment, str(error))


def _granted(asks: Sequence[Ask], answers: Any) -> Iterator[Granted]:
    """Yield one Granted per ask. Raises ValueError, BadFilter for invalid answers."""
    if not isinstance(answers, list) or len(answers) != len(asks):
        raise ValueError(UNUSABLE)
    for ask, answer in zip(asks, answers, strict=True):
        if not isinstance(answer, dict) or not isinstance(answer.get("value"), dict):
            raise ValueError(UNUSABLE)
        filter = answer.get("filter")
        if filter is not None and ask.resource == "store":
            raise ValueError(
                f"the handler of store.{ask.action} returned a filter: the store supports no filters"
            )
        filters.check(filter)
        yield Granted(answer["value"], filter)


def _answer(deployment: DeploymentRef, question: Mapping[str, Any]) -> dict[str, Any]:
    """Call a graph host and return its answer. Raises Denied, Unanswered, Unavailable."""
    assert deployment.active_revision_id is not None
    try:
        raw = calls.call(
            HostCall(
                deployment_id=deployment.id,
                revision_id=deployment.active_revision_id,
                pool=deployment.pool,
                document=question,
                timeout_seconds=ASK_SECONDS,
            )
        )
        answer = orjson.loads(raw)
    except HostDied as error:
        raise Unavailable("the deployment's authorization does not answer") from error
    except HostUnusable as error:
        raise Unavailable(error.message) from error
    except HostError as error:
        fail(deployment, f"the graph host could not answer: {error.message}")
    except orjson.JSONDecodeError:
        fail(deployment, UNUSABLE)
    if not isinstance(answer, dict):
        fail(deployment, UNUSABLE)
    if "denied" in answer:
        raise _denied(deployment, question["op"], answer["denied"])
    if "failed" in answer:  # the host has logged the reason to the deployment's log
        log.warning("deployment %s: %s failed in user code", deployment.id, question["op"])
        raise Denied(HTTPStatus.INTERNAL_SERVER_ERROR)
    return answer


def _denied(deployment: DeploymentRef, op: str, refusal: Any) -> Denied:
    """Return the project's refusal. A status outside 400–599 counts as a failure of the project's code."""
    try:
        status, detail, headers = refusal["status"], refusal.get("detail"), refusal.get("headers") or {}
        is_refusal = type(status) is int and 400 <= status <= 599
        sent = {str(name): str(value) for name, value in headers.items()}
    except (AttributeError, KeyError, TypeError):
        fail(deployment, UNUSABLE)
    if not is_refusal:
        fail(deployment, f"{op} refused with the status {status}, which is not between 400 and 599")
    log.info("deployment %s: %s refused with %s", deployment.id, op, status)
    if status == HTTPStatus.INTERNAL_SERVER_ERROR:
        return Denied(status, headers=sent)
    return Denied(status, phrase(status) if detail is None else detail, sent)


def phrase(status: int) -> str:
    """Return the reason phrase of a status, or "Refused" for an unknown one."""
    try:
        return HTTPStatus(status).phrase
    except ValueError:
        return "Refused"


def fail(deployment: DeploymentRef, why: str) -> NoReturn:
    """Deny the request with status 500.

    The reason goes to the deployment's log only, because callers must not see it.
    """
    log.warning("deployment %s: authorization failed: %s", deployment.id, why)
    write_log(deployment, f"authorization failed: {why}", level="ERROR")
    raise Denied(HTTPStatus.INTERNAL_SERVER_ERROR)


def write_log(deployment: DeploymentRef, message: str, *, level: str = "WARNING") -> None:
    """Append a line to the deployment's log, with the id of the current request."""
    request_id = bound_ids().get("request_id")
    shown = logs.clean(f"{message} (request {request_id})" if request_id else message)
    line = logs.Line(
        deployment.id, deployment.active_revision_id, logs.DEPLOY, datetime.now(UTC), level, shown
    )
    with connection() as conn:
        logs.append(conn, [line])
    logs.notify([line])
