"""Access to the protocols: pages of other origins, and assistants that a caller may read."""

from __future__ import annotations

from uuid import UUID

from flask import request

from shared import agents, assistants
from shared.errors import Forbidden
from shared.infra.postgres import Row, connection
from shared.user_code import filters
from shared.user_code.authorization import Granted
from web.gate.context import allow, deployment, settings, unchecked_deployment
from web.http.headers import cors_rules


def refuse_foreign_page() -> None:
    """Raise Forbidden if `http.cors` names origins, and a page of none of them sends the request.

    Browsers would only hide the answer from such a page, after the call has had its effect.
    """
    origin, rules = request.headers.get("Origin"), cors_rules(unchecked_deployment().http)
    if origin is None or rules is None or not rules.names_origins:
        return
    if not rules.allows(origin) and origin != settings().url.rstrip("/"):
        raise Forbidden("http.cors of the deployment's langgraph.json does not allow pages of this origin")


def require_readable(assistant_id: UUID) -> Granted:
    """Authorize reading an assistant and return the grant. Raises Denied, and NotFound if a filter hides it."""
    granted = allow("assistants", "read", assistant_id=assistant_id)
    with connection() as conn:
        filters.require_assistant(conn, deployment().id, assistant_id, granted.filter)
    return granted


def readable_agent(assistant: str, *, may_be_past: bool = False) -> Row:
    """Return an assistant that the caller may read. Raises Denied, and NotFound if it is missing or hidden.

    `may_be_past` is that of `agents.agent`.
    """
    require_readable(assistants.named_id(assistant))
    with connection() as conn:
        return agents.agent(conn, deployment(), assistant, may_be_past=may_be_past)
