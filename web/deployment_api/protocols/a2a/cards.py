"""The A2A card of an assistant: its description, its address, and the key that a call needs."""

from __future__ import annotations

from typing import Any

from shared.infra.postgres import Row
from web.deployment_api.protocols.graph_input import fields, takes_messages
from web.gate.addresses import deployment_address
from web.gate.context import configured_url, deployment, settings

VERSIONS = ("1.0", "0.3")
BINDING = "JSONRPC"
SCOPE_HEADER = "LangGraph-A2A-History-Scope"
SCOPES = CONTEXT, TASK = "context", "task"
HISTORY_SCOPE = {
    "uri": "https://langchain.com/a2a/extensions/history-scope/v1",
    "description": "Selects the history that a task shows: of its whole context, or of the task alone",
    "required": False,
    "params": {"header": SCOPE_HEADER, "values": list(SCOPES), "default": CONTEXT},
}
KEY = {"location": "header", "name": "X-Api-Key"}


def card(agent: Row) -> dict[str, Any]:
    """Return the card of an assistant, for clients of either version."""
    name = agent["name"] or agent["graph_id"]
    description = agent["description"] or f"Runs the assistant {name!r}."
    schema = agent["input_schema"]
    inputs = ["application/json", *(["text/plain"] if takes_messages(schema) else [])]
    outputs = ["application/json", "text/plain"]
    served = deployment()
    address = deployment_address(
        settings(), configured_url(), served.address_name, served.http.get("mount_prefix")
    )
    url = f"{address}/a2a/{agent['assistant_id']}"
    skill = {
        "id": str(agent["assistant_id"]),
        "name": name,
        "description": f"{description} Its input has the fields {', '.join(fields(schema)) or 'of a JSON object'}.",
        "tags": ["assistant", agent["graph_id"]],
        "examples": [],
        "inputModes": inputs,
        "outputModes": outputs,
    }
    return {
        "name": name,
        "description": description,
        "version": str(agent["version"]),
        "url": url,
        "preferredTransport": BINDING,
        "protocolVersion": "0.3.0",
        "supportedInterfaces": [
            {"url": url, "protocolBinding": BINDING, "protocolVersion": version} for version in VERSIONS
        ],
        "capabilities": {
            "streaming": True,
            "pushNotifications": False,
            "stateTransitionHistory": False,
            "extendedAgentCard": True,
            "extensions": [HISTORY_SCOPE],
        },
        "supportsAuthenticatedExtendedCard": True,
        "defaultInputModes": inputs,
        "defaultOutputModes": outputs,
        "skills": [skill],
        # the last field is for version 1.0, the others are for 0.3
        "securitySchemes": {
            "api_key": {"type": "apiKey", "in": "header", "name": KEY["name"], "apiKeySecurityScheme": KEY}
        },
        "security": [{"api_key": []}],
        "securityRequirements": [{"schemes": {"api_key": {"list": []}}}],
    }
