"""Call a project's authorization without a graph host, with the same documents that a host receives."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from typing import Any

from langgraph_sdk import Auth

from workers.graph_host.project.auth import ProjectAuth


def request(**facts: Any) -> dict[str, Any]:
    """Return an `authenticate` document for this request."""
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
    """Return an `authorize` document with one ask."""
    asks = [{"resource": resource, "action": action, "value": value}]
    return {"op": "authorize", "user": user or {"identity": "ann"}, "asks": asks}


def answer(auth: Auth | ProjectAuth, document: Mapping[str, Any]) -> dict[str, Any]:
    """Return the answer of the project's handlers. Both documents pass through JSON, as between runner and host."""
    own = auth if isinstance(auth, ProjectAuth) else ProjectAuth(auth)
    return json.loads(json.dumps(asyncio.run(own.answer(json.loads(json.dumps(document))))))
