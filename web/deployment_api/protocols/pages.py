"""Pages of other origins, which may call the protocols only as `http.cors` allows it."""

from __future__ import annotations

from flask import request

from shared.errors import Forbidden
from web.gate.context import settings, unchecked_deployment
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
