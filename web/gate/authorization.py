"""Calls to a deployment's own authorization, for the action that a request is about to take.

`web.gate.context.deployment` raises before the first such call, if the deployment has `auth`. A route that forgets to
authorize therefore fails instead of serving the request.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from shared.infra.json_text import document_holds_nul
from shared.infra.postgres import dumps
from shared.user_code import authorization
from shared.user_code.authorization import Ask, Granted
from web.gate.context import authorization as authorization_of_request
from web.gate.context import unasked, user

MAX_CHANGED = 256 * 1024


def allow(resource: str, action: str, /, **value: Any) -> Granted:
    """Authorize one action. Raises Denied."""
    return allow_all([Ask(resource, action, value)])[0]


def allow_all(asks: Sequence[Ask]) -> list[Granted]:
    """Authorize several actions in one call. Returns a grant for each, in order. Raises Denied if one is denied."""
    state, account = authorization_of_request(), user()
    deployment = state.unchecked_deployment
    if deployment.user_code.auth is None:
        granted = [Granted(ask.value) for ask in asks]
    elif account is None:
        raise RuntimeError("the request has no user to authorize")
    else:
        granted = authorization.authorize(deployment, account, asks)
    state.is_asked = True
    return granted


def changed(granted: Granted, name: str = "metadata") -> dict[str, Any]:
    """Return an object of the granted value, as the handler left it; `{}` if it is missing.

    Raises Denied (500) for an object that can be neither stored nor searched for.
    """
    value = granted.value.get(name)
    if value is None:
        return {}
    if user() is None:
        return value  # without authorization, no handler has changed it
    written = dumps(value)
    if not isinstance(value, dict) or len(written) > MAX_CHANGED or document_holds_nul(written):
        authorization.fail(
            unasked(), f"a handler returned {name} that is not an object, is too large, or contains NUL"
        )
    return value
