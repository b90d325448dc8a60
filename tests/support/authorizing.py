"""A project's authorization without a graph host: the answers to the questions that a host would get."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from typing import Any

from langgraph_sdk import Auth

from workers.graph_host.user_code.auth import ProjectAuth


def request(**facts: Any) -> dict[str, Any]:
    """The question who makes this request."""
    return {
        "op": "authenticate",
        "request": {
            "method": "GET",
            "path": "/threads",
            "query": "",
            "headers": [],
            "client": ["10.0.0.1", 5000],
            "url": "http://service.test/d/app/threads",
            **facts,
        },
    }


def ask(
    resource: str, action: str, value: Mapping[str, Any], user: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """The question whether a user may do this."""
    asks = [{"resource": resource, "action": action, "value": value}]
    return {"op": "authorize", "user": user or {"identity": "ann"}, "asks": asks}


def answer(auth: Auth | ProjectAuth, document: Mapping[str, Any]) -> dict[str, Any]:
    """What the project's functions answer, through JSON both ways."""
    own = auth if isinstance(auth, ProjectAuth) else ProjectAuth(auth)
    return json.loads(json.dumps(asyncio.run(own.answer(json.loads(json.dumps(document))))))
