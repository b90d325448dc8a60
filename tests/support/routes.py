"""The table of all routes: required role, stream slot, smallest body.

A test compares the table with the app's routes, so that a new route fails until it has a row. Other tests iterate over
the table with a key of each role, a key of another organization, and users of a deployment's own authorization.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import text
from werkzeug.test import TestResponse

from shared.infra.postgres import connection
from tests.contract.conftest import ControlPlane

Route = tuple[str, str]  # method and rule

MOUNT = "/d/<deployment>"
RUN = {"assistant_id": "agent"}
CRON = {**RUN, "schedule": "0 * * * *"}
ITEM = {"namespace": ["any"], "key": "k"}
AG_UI = {"threadId": "<thread_id>", "runId": "1", "messages": []}
MESSAGE = {"messageId": "m", "role": "user", "parts": [{"text": "hello"}]}
GET_TREE = {"id": 1, "method": "agent.getTree"}
EVENTS = f"{MOUNT}/threads/<thread_id>/stream/events"
COMMANDS = f"{MOUNT}/threads/<thread_id>/commands"


def rpc(method: str, **params: Any) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}


@dataclass(frozen=True)
class Call:
    """A route and how to call it. Words in angle brackets are replaced by the ids of records."""

    role: str  # lowest role of an API key that may call the route; "open" needs no key
    body: Any = None  # smallest body that passes validation, if an empty object does not
    query: Mapping[str, str] = field(default_factory=dict)
    foreign: int = 404  # status for ids of another organization
    slot: bool | str = False  # whether the route holds a stream slot; "wait": with this query parameter


# fmt: off
CALLS: dict[Route, Call] = {
    ("GET", "/"): Call("open"),
    ("GET", "/ok"): Call("open"),
    ("GET", "/info"): Call("open"),
    ("GET", "/metrics"): Call("open"),
    ("GET", "/docs"): Call("open"),
    ("GET", "/openapi.json"): Call("open"),
    ("GET", "/d/<deployment>/"): Call("open"),
    ("GET", "/d/<deployment>/ok"): Call("open"),
    ("GET", "/d/<deployment>/info"): Call("open"),
    ("GET", "/d/<deployment>/metrics"): Call("open"),
    ("GET", "/d/<deployment>/docs"): Call("open"),
    ("GET", "/d/<deployment>/openapi.json"): Call("open"),
    ("GET", "/d/<deployment>/.well-known/oauth-protected-resource/<path:resource>"): Call("open"),
    ("GET", "/o/"): Call("open"),
    ("GET", "/o/answer"): Call("open"),
    ("GET", "/o/static/<version>/<path:name>"): Call("open"),
    ("GET", "/o/guide/"): Call("open"),
    ("GET", "/o/guide/<path:name>"): Call("open"),
    ("GET", "/o/<tenant>/host/deployments/<deployment_id>"): Call("open"),
    ("PUT", "/v2/uploads/<token>"): Call("open"),

    ("GET", "/v2/deployments"): Call("read"),
    ("POST", "/v2/deployments"): Call("deploy"),
    ("DELETE", "/v2/deployments"): Call("deploy", query={"deployment_ids": "00000000-0000-0000-0000-00000000dead"}),
    ("GET", "/v2/deployments/<deployment_id>"): Call("read"),
    ("PATCH", "/v2/deployments/<deployment_id>"): Call("deploy"),
    ("DELETE", "/v2/deployments/<deployment_id>"): Call("deploy"),
    ("POST", "/v2/deployments/<deployment_id>/upload-url"): Call("deploy"),
    ("POST", "/v2/deployments/<deployment_id>/push-token"): Call("deploy"),
    ("GET", "/v2/deployments/<deployment_id>/revisions"): Call("read"),
    ("POST", "/v2/deployments/<deployment_id>/revisions"): Call("deploy"),
    ("GET", "/v2/deployments/<deployment_id>/revisions/<revision_id>"): Call("read", slot="wait"),
    ("GET", "/v2/deployments/<deployment_id>/revisions/<revision_id>/stream"): Call("read", slot=True),
    ("POST", "/v2/deployments/<deployment_id>/revisions/<revision_id>/redeploy"): Call("deploy"),
    ("POST", "/v2/deployments/<deployment_id>/revisions/<revision_id>/interrupt"): Call("deploy"),
    ("POST", "/v2/deployments/<deployment_id>/traffic/promote"): Call("deploy", body={"revision_id": "<revision_id>"}),
    ("POST", "/v2/deployments/<deployment_id>/traffic/abort"): Call("deploy"),
    ("GET", "/v2/deployments/<deployment_id>/previews"): Call("read"),
    ("GET", "/v2/deployments/<deployment_id>/replays"): Call("read"),
    ("POST", "/v2/deployments/<deployment_id>/replays"): Call("deploy"),
    ("GET", "/v2/deployments/<deployment_id>/replays/<replay_id>"): Call("read"),
    ("DELETE", "/v2/deployments/<deployment_id>/replays/<replay_id>"): Call("deploy"),
    ("GET", "/v2/deployments/<deployment_id>/replays/<replay_id>/cases"): Call("read"),
    ("GET", "/v2/deployments/<deployment_id>/replays/<replay_id>/cases/<position>"): Call("read"),
    ("POST", "/v2/deployments/<deployment_id>/replays/<replay_id>/cancel"): Call("deploy"),
    ("DELETE", "/v2/deployments/<deployment_id>/previews/<name>"): Call("deploy"),
    ("POST", "/v1/projects/<deployment_id>/revisions/<revision_id>/interrupt"): Call("deploy"),
    ("POST", "/v1/projects/<deployment_id>/revisions/<revision_id>/build_logs"): Call("read"),
    ("POST", "/v1/projects/<deployment_id>/revisions/<revision_id>/deploy_logs"): Call("read"),
    ("POST", "/v1/projects/<deployment_id>/deploy_logs"): Call("read", slot="wait"),
    ("GET", "/v2/listeners"): Call("read"),
    ("POST", "/v2/listeners"): Call("deploy"),
    ("GET", "/v2/listeners/<listener_id>"): Call("read"),
    ("PATCH", "/v2/listeners/<listener_id>"): Call("deploy"),
    ("DELETE", "/v2/listeners/<listener_id>"): Call("deploy"),
    ("GET", "/v1/integrations/github/install"): Call("read"),
    ("GET", "/v1/integrations/github/<integration_id>/repos"): Call("read", foreign=200),  # the list is always empty

    ("GET", "/v2/me"): Call("read"),
    ("GET", "/v2/organizations"): Call("read"),
    ("GET", "/v2/inbox"): Call("read"),
    ("GET", "/v2/inbox/<question_id>"): Call("read"),
    ("PATCH", "/v2/inbox/<question_id>"): Call("run"),
    ("POST", "/v2/inbox/<question_id>/answer"): Call("run", body={"answer": True}),
    ("POST", "/v2/inbox/<question_id>/link"): Call("run"),
    ("GET", "/v2/inbox/<question_id>/links"): Call("read"),
    ("DELETE", "/v2/inbox/links/<link_id>"): Call("run"),
    ("POST", "/v2/inbox/link/question"): Call("open", body={"token": "unknown"}),
    ("POST", "/v2/inbox/link/answer"): Call("open", body={"token": "unknown", "answer": True}),
    ("POST", "/v2/inbox/answer"): Call("run", body={"ids": ["00000000-0000-0000-0000-00000000dead"], "answer": True}, foreign=200),
    ("GET", "/v2/workers"): Call("read"),
    ("GET", "/v2/metrics/series"): Call("read"),
    ("GET", "/v2/metrics/overview"): Call("read"),
    ("GET", "/v2/metrics/failures"): Call("read"),
    ("GET", "/v2/audit"): Call("read"),
    ("POST", "/v2/workers/<worker_id>/drain"): Call("operator", foreign=403),
    ("POST", "/v2/workers/<worker_id>/resume"): Call("operator", foreign=403),
    ("GET", "/v2/usage"): Call("read"),
    ("POST", "/v2/organizations"): Call("operator"),
    ("GET", "/v2/organizations/<organization_id>"): Call("read"),
    ("PATCH", "/v2/organizations/<organization_id>"): Call("operator", foreign=403),
    ("DELETE", "/v2/organizations/<organization_id>"): Call("operator", foreign=403),
    ("GET", "/v2/keys"): Call("admin"),
    ("POST", "/v2/keys"): Call("admin"),
    ("GET", "/v2/keys/<key_id>"): Call("admin"),
    ("PATCH", "/v2/keys/<key_id>"): Call("admin", body={"name": "mine"}),
    ("DELETE", "/v2/keys/<key_id>"): Call("admin"),

    ("GET", "/v2/sign-in"): Call("open"),
    ("GET", "/v2/sign-in/start"): Call("open"),
    ("GET", "/v2/sign-in/callback"): Call("open"),
    ("GET", "/v2/sign-in/session"): Call("open"),
    ("POST", "/v2/sign-out"): Call("open"),
    ("POST", "/v2/sign-in/device"): Call("open"),
    ("POST", "/v2/sign-in/device/token"): Call("open", body={"device_code": "c"}),
    ("GET", "/v2/sign-in/device"): Call("read", query={"user_code": "c"}, foreign=403),
    ("POST", "/v2/sign-in/device/answer"): Call("read", body={"user_code": "c", "approve": True}, foreign=403),

    ("GET", "/v2/auth/callback/<provider_id>"): Call("open"),
    ("POST", "/v2/auth/callback/<provider_id>"): Call("run", body={"code": "c", "state": "s"}),
    ("POST", "/v2/auth/providers"): Call("deploy"),
    ("POST", "/v2/auth/providers/mcp-discover"): Call("deploy"),
    ("GET", "/v2/auth/providers"): Call("read"),
    ("GET", "/v2/auth/providers/<provider_id>"): Call("read"),
    ("PATCH", "/v2/auth/providers/<provider_id>"): Call("deploy"),
    ("DELETE", "/v2/auth/providers/<provider_id>"): Call("deploy"),
    ("POST", "/v2/auth/authenticate"): Call("run", body={"provider": "<provider_id>", "scopes": []}),
    ("GET", "/v2/auth/wait/<auth_id>"): Call("run", foreign=200, slot=True),  # with the status not_found
    ("GET", "/v2/auth/tokens"): Call("read", query={"provider_id": "<provider_id>"}),
    ("GET", "/v2/auth/tokens/exists"): Call("read", query={"provider_id": "<provider_id>"}),
    ("DELETE", "/v2/auth/tokens"): Call("run", query={"provider_id": "<provider_id>"}),
    ("DELETE", "/v2/auth/tokens/<token_id>"): Call("run"),
    ("PATCH", "/v2/auth/tokens/<token_id>/metadata"): Call("run"),

    ("POST", "/d/<deployment>/assistants"): Call("run", body={"graph_id": "agent"}),
    ("GET", "/d/<deployment>/assistants/<assistant_id>"): Call("read"),
    ("PATCH", "/d/<deployment>/assistants/<assistant_id>"): Call("run"),
    ("DELETE", "/d/<deployment>/assistants/<assistant_id>"): Call("run"),
    ("POST", "/d/<deployment>/assistants/search"): Call("read"),
    ("POST", "/d/<deployment>/ui/<component_set>"): Call("read", body={"name": "weather"}),
    ("GET", "/d/<deployment>/ui/<component_set>/<file>"): Call("open"),
    ("POST", "/d/<deployment>/assistants/count"): Call("read"),
    ("POST", "/d/<deployment>/assistants/<assistant_id>/versions"): Call("read"),
    ("POST", "/d/<deployment>/assistants/<assistant_id>/latest"): Call("run", body={"version": 1}),
    ("GET", "/d/<deployment>/assistants/<assistant_id>/graph"): Call("read"),
    ("GET", "/d/<deployment>/assistants/<assistant_id>/schemas"): Call("read"),
    ("GET", "/d/<deployment>/assistants/<assistant_id>/subgraphs"): Call("read"),
    ("GET", "/d/<deployment>/assistants/<assistant_id>/subgraphs/<path:namespace>"): Call("read"),
    ("POST", "/d/<deployment>/threads"): Call("run"),
    ("GET", "/d/<deployment>/threads/<thread_id>"): Call("read"),
    ("PATCH", "/d/<deployment>/threads/<thread_id>"): Call("run", body={"metadata": {}}),
    ("DELETE", "/d/<deployment>/threads/<thread_id>"): Call("run"),
    ("POST", "/d/<deployment>/threads/<thread_id>/copy"): Call("run", foreign=409),  # as in the published API
    ("POST", "/d/<deployment>/threads/prune"): Call("run", body={"thread_ids": ["<thread_id>"]}),
    ("GET", "/d/<deployment>/threads/<thread_id>/storage"): Call("read"),
    ("POST", "/d/<deployment>/threads/search"): Call("read"),
    ("POST", "/d/<deployment>/threads/count"): Call("read"),
    ("GET", "/d/<deployment>/threads/<thread_id>/state"): Call("read"),
    ("POST", "/d/<deployment>/threads/<thread_id>/state"): Call("run", body={"values": {}}),
    ("PATCH", "/d/<deployment>/threads/<thread_id>/state"): Call("run", body={"metadata": {}}),
    ("GET", "/d/<deployment>/threads/<thread_id>/state/<checkpoint_id>"): Call("read"),
    ("POST", "/d/<deployment>/threads/<thread_id>/state/checkpoint"): Call("read", body={"checkpoint": {"checkpoint_id": "1"}}),
    ("GET", "/d/<deployment>/threads/<thread_id>/history"): Call("read"),
    ("POST", "/d/<deployment>/threads/<thread_id>/history"): Call("read"),
    ("GET", "/d/<deployment>/threads/<thread_id>/runs"): Call("read"),
    ("POST", "/d/<deployment>/threads/<thread_id>/runs"): Call("run", body=RUN),
    ("POST", "/d/<deployment>/threads/<thread_id>/runs/stream"): Call("run", body=RUN, slot=True),
    ("POST", "/d/<deployment>/threads/<thread_id>/runs/wait"): Call("run", body=RUN, slot=True),
    ("GET", "/d/<deployment>/threads/<thread_id>/runs/<run_id>"): Call("read"),
    ("DELETE", "/d/<deployment>/threads/<thread_id>/runs/<run_id>"): Call("run"),
    ("GET", "/d/<deployment>/threads/<thread_id>/runs/<run_id>/timeline"): Call("read"),
    ("GET", "/d/<deployment>/threads/<thread_id>/timeline"): Call("read"),
    ("GET", "/d/<deployment>/threads/<thread_id>/runs/<run_id>/join"): Call("read", slot=True),
    ("GET", "/d/<deployment>/threads/<thread_id>/runs/<run_id>/stream"): Call("read", slot=True),
    ("GET", "/d/<deployment>/threads/<thread_id>/stream"): Call("read", slot=True),
    ("POST", "/d/<deployment>/threads/<thread_id>/stream/events"): Call("read", body={"channels": ["values"]}, foreign=400, slot=True),  # rejected: no channels
    ("GET", "/d/<deployment>/threads/<thread_id>/stream/events"): Call("read", foreign=426, slot=True),  # rejected: not a WebSocket handshake
    ("POST", "/d/<deployment>/threads/<thread_id>/commands"): Call("run", body=GET_TREE, foreign=200),  # an error in the body: no such run
    ("POST", "/d/<deployment>/threads/<thread_id>/runs/<run_id>/cancel"): Call("run", slot="wait"),
    ("POST", "/d/<deployment>/runs/crons"): Call("run", body=CRON),
    ("POST", "/d/<deployment>/threads/<thread_id>/runs/crons"): Call("run", body=CRON),
    ("GET", "/d/<deployment>/runs/crons/<cron_id>"): Call("read"),
    ("GET", "/d/<deployment>/runs/crons/<cron_id>/firings"): Call("read"),
    ("PATCH", "/d/<deployment>/runs/crons/<cron_id>"): Call("run", body={"enabled": False}),
    ("DELETE", "/d/<deployment>/runs/crons/<cron_id>"): Call("run"),
    ("POST", "/d/<deployment>/runs/crons/search"): Call("read"),
    ("POST", "/d/<deployment>/runs/crons/count"): Call("read"),
    ("POST", "/d/<deployment>/inbox/search"): Call("read"),
    ("POST", "/d/<deployment>/inbox/<question_id>/answer"): Call("run", body={"answer": True}),
    ("GET", "/d/<deployment>/store/items"): Call("read", query={"namespace": "any", "key": "k"}),
    ("PUT", "/d/<deployment>/store/items"): Call("run", body={**ITEM, "value": {}}),
    ("DELETE", "/d/<deployment>/store/items"): Call("run", body=ITEM),
    ("POST", "/d/<deployment>/store/items/search"): Call("read"),
    ("POST", "/d/<deployment>/store/namespaces"): Call("read"),
    ("POST", "/d/<deployment>/runs"): Call("run", body=RUN),
    ("POST", "/d/<deployment>/runs/stream"): Call("run", body=RUN, slot=True),
    ("POST", "/d/<deployment>/runs/wait"): Call("run", body=RUN, slot=True),
    ("POST", "/d/<deployment>/runs/batch"): Call("run", body=[RUN]),
    ("GET", "/d/<deployment>/queue"): Call("read"),
    ("POST", "/d/<deployment>/runs/search"): Call("read"),
    ("POST", "/d/<deployment>/runs/bulk"): Call("run", body={"action": "retry", "where": {}}),
    ("GET", "/d/<deployment>/runs/bulk"): Call("read"),
    ("GET", "/d/<deployment>/runs/bulk/<operation_id>"): Call("read"),
    ("GET", "/d/<deployment>/runs/bulk/<operation_id>/runs"): Call("read"),
    ("POST", "/d/<deployment>/runs/bulk/<operation_id>/cancel"): Call("run"),
    ("POST", "/d/<deployment>/threads/<thread_id>/runs/<run_id>/retry"): Call("run"),
    ("POST", "/d/<deployment>/runs/cancel"): Call("run", body={"thread_id": "<thread_id>", "run_ids": ["<run_id>"]}),
    ("POST", "/d/<deployment>/webhooks/search"): Call("read"),
    ("POST", "/d/<deployment>/webhooks/<delivery_id>/retry"): Call("run"),
    ("GET", "/d/<deployment>/runs/<run_id>/feedback"): Call("read"),
    ("POST", "/d/<deployment>/runs/<run_id>/feedback"): Call("run", body={"key": "thumbs"}),
    ("GET", "/d/<deployment>/threads/<thread_id>/runs/<run_id>/feedback"): Call("read"),
    ("POST", "/d/<deployment>/threads/<thread_id>/runs/<run_id>/feedback"): Call("run", body={"key": "thumbs"}),
    ("GET", "/d/<deployment>/feedback/<token>"): Call("open"),
    ("POST", "/d/<deployment>/feedback/<token>"): Call("open"),
    ("GET", "/d/<deployment>/runs/<run_id>/join"): Call("read", slot=True),
    ("GET", "/d/<deployment>/runs/<run_id>/stream"): Call("read", slot=True),
    ("POST", "/d/<deployment>/mcp"): Call("run", body=rpc("tools/list")),
    ("POST", "/d/<deployment>/a2a/<assistant_id>"): Call("run", body=rpc("SendMessage", message=MESSAGE)),
    ("GET", "/d/<deployment>/a2a/<assistant_id>"): Call("read"),
    ("GET", "/d/<deployment>/a2a/<assistant_id>/.well-known/agent-card.json"): Call("read"),
    ("POST", "/d/<deployment>/ag-ui/<assistant_id>"): Call("run", body=AG_UI, slot=True),
    ("GET", "/d/<deployment>/ag-ui/<assistant_id>"): Call("read", query={"threadId": "<thread_id>"}, slot=True),
    ("GET", "/d/<deployment>/ag-ui/<assistant_id>/capabilities"): Call("read"),
    ("GET", "/d/<deployment>/.well-known/agent-card.json"): Call("read", query={"assistant_id": "<assistant_id>"}),
}
# Further calls of these routes: other methods of a protocol, other branches.
OTHERS: list[tuple[Route, Any]] = [
    (("PATCH", f"{MOUNT}/assistants/<assistant_id>"), {"metadata": {"owner": "bob"}}),
    (("PATCH", f"{MOUNT}/assistants/<assistant_id>"), {"graph_id": "unknown"}),
    (("DELETE", f"{MOUNT}/assistants/<assistant_id>?delete_threads=true"), None),
    (("POST", f"{MOUNT}/threads/search"), {"ids": ["<thread_id>"]}),
    (("PATCH", f"{MOUNT}/threads/<thread_id>"), {"metadata": {"owner": "bob"}}),
    (("PATCH", f"{MOUNT}/threads/<thread_id>"), {"ttl": {"ttl": 1}}),
    (("PATCH", f"{MOUNT}/threads/<thread_id>/state"), {"metadata": {"owner": "bob"}}),
    (("GET", f"{MOUNT}/threads/<thread_id>/state/x"), None),
    (("POST", f"{MOUNT}/threads/<thread_id>/state/checkpoint"), {"checkpoint": {}}),
    (("POST", f"{MOUNT}/runs/crons"), {**CRON, "assistant_id": "<assistant_id>"}),
    (("PATCH", f"{MOUNT}/runs/crons/<cron_id>"), {"metadata": {"owner": "bob"}}),
    (("GET", f"{MOUNT}/runs/crons/<thread_cron_id>"), None),
    (("PATCH", f"{MOUNT}/runs/crons/<thread_cron_id>"), {"metadata": {"owner": "bob"}}),
    (("DELETE", f"{MOUNT}/runs/crons/<thread_cron_id>"), None),
    (("POST", f"{MOUNT}/runs/crons/search"), {"thread_id": "<thread_id>"}),
    (("POST", f"{MOUNT}/runs/crons/count"), {"assistant_id": "<assistant_id>"}),
    (("POST", f"{MOUNT}/runs/cancel"), {"status": "all"}),
    *((("POST", f"{MOUNT}/runs{how}"), {"assistant_id": "<assistant_id>"}) for how in ("", "/wait", "/stream")),
    (("POST", f"{MOUNT}/runs/batch"), [RUN, {"assistant_id": "<assistant_id>"}]),
    (("POST", f"{MOUNT}/mcp"), rpc("tools/call", name="agent")),
    *(
        (("POST", f"{MOUNT}/a2a/<assistant_id>"), rpc(method, id="<thread_id>:<run_id>"))
        for method in ("GetTask", "CancelTask", "tasks/get", "tasks/cancel")
    ),
    (("POST", f"{MOUNT}/a2a/<assistant_id>"), rpc("ListTasks")),
    (("POST", f"{MOUNT}/a2a/<assistant_id>"), rpc("GetExtendedAgentCard")),
    (("POST", COMMANDS), {"id": 1, "method": "input.respond", "params": {"interrupt_id": "i"}}),
    (("POST", COMMANDS), {"id": 1, "method": "run.start", "params": RUN}),  # creates the thread
]
# fmt: on


def filled(value: Any, ids: Mapping[str, str]) -> Any:
    """Replace words in angle brackets by ids, in a rule, text or body."""
    if isinstance(value, dict):
        return {key: filled(inner, ids) for key, inner in value.items()}
    if isinstance(value, list):
        return [filled(inner, ids) for inner in value]
    if not isinstance(value, str):
        return value
    return re.sub(r"<(?:\w+:)?(\w+)>", lambda match: ids.get(match[1], match[0]), value)


def body_of(route: Route) -> Any:
    body = CALLS[route].body
    return {} if body is None and route[0] not in ("GET", "DELETE") else body


def send(who: ControlPlane, ids: Mapping[str, str], route: Route, body: Any) -> TestResponse:
    method, rule = route
    query = filled(CALLS[route].query, ids) if route in CALLS else None
    headers = {"Accept": "application/json, text/event-stream"}
    return who.call(method, filled(rule, ids), filled(body, ids), query_string=query or None, headers=headers)


def erased(answer: str, ids: Mapping[str, str]) -> str:
    """Remove ids from the text of an answer, to make answers for different ids comparable."""
    for value in sorted(ids.values(), key=len, reverse=True):
        answer = answer.replace(value, "…") if len(value) >= 6 else answer
    return answer


def stored(tables: Mapping[str, str], **parameters: Any) -> dict[str, list[str]]:
    """Return the rows of each table that satisfy its SQL condition, as text."""
    selects = [
        f"SELECT '{table}', array(SELECT x::text FROM \"{table}\" x WHERE {condition} ORDER BY 1)"
        for table, condition in tables.items()
    ]
    with connection() as conn:
        found = conn.execute(text(" UNION ALL ".join(selects)), parameters).all()
    return {table: list(rows) for table, rows in found}
