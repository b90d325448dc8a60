"""Agent cards: what an assistant takes and returns, and where. A card has the fields of both protocol versions."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from flask import request

from shared.infra.postgres import Row
from web.deployment_api.protocols.a2a.parts import A2UI_MODE, A2UI_MODES, FILE_MODES, JSON_MODE, TEXT_MODE
from web.deployment_api.protocols.a2a.shapes import CONTEXT, SCOPES
from web.deployment_api.protocols.conversation import input_fields, takes_messages
from web.gate.context import configured_url, deployment
from web.gate.routing import deployment_url

VERSIONS = ("1.0", "0.3")
VERSION = "A2A-Version"  # header or query parameter
_VERSION = re.compile(r"(0\.3|1\.0)(\.\d+)?", re.ASCII)
BINDING = "JSONRPC"
SCOPE_HEADER = "LangGraph-A2A-History-Scope"
HISTORY_SCOPE = {
    "uri": "https://langchain.com/a2a/extensions/history-scope/v1",
    "description": "Selects the history that a task shows: of its whole context, or of the task alone",
    "required": False,
    "params": {"header": SCOPE_HEADER, "values": list(SCOPES), "default": CONTEXT},
}
KEY = {"location": "header", "name": "X-Api-Key"}
ONLY_03 = ("url", "preferredTransport", "protocolVersion", "supportsAuthenticatedExtendedCard", "security")

EXTENSIONS = ("A2A-Extensions", "X-A2A-Extensions")  # headers that name the extensions of a call
A2UI = "https://a2ui.org/a2a-extension/a2ui/"
A2UI_VERSION = "v0.9"  # of an assistant whose metadata names none


def requested_version() -> str | None:
    """Return the protocol version that the request names: `1.0` or `0.3`, empty if none. None if it is not served."""
    sent = (request.headers.get(VERSION) or request.args.get(VERSION) or "").strip()
    match = _VERSION.fullmatch(sent)
    return match[1] if match else (None if sent else "")


def _options(agent: Row) -> dict[str, Any]:
    """Return the settings of an assistant: the key `a2a` of its metadata."""
    options = (agent["metadata"] or {}).get("a2a")
    return options if isinstance(options, dict) else {}


def _texts(value: Any) -> list[str]:
    return [text for text in value if isinstance(text, str) and text] if isinstance(value, list) else []


def a2ui_extensions(agent: Row) -> list[str]:
    """Return the URIs of the versions of A2UI that an assistant offers. Empty unless its metadata turns A2UI on."""
    offered = _options(agent).get("a2ui")
    versions = [A2UI_VERSION] if offered is True else _texts(offered)
    return [f"{A2UI}{version}" for version in versions]


def active_extensions(agent: Row) -> list[str]:
    """Return the extensions that the assistant offers and the request's headers name."""
    named = {uri.strip() for header in EXTENSIONS for uri in request.headers.get(header, "").split(",")}
    return [uri for uri in a2ui_extensions(agent) if uri in named]


def input_modes(agent: Row) -> list[str]:
    """Return the media types that an assistant takes: those of its metadata, else those that follow from its schema."""
    own = _texts(_options(agent).get("input_modes"))
    by_schema = [JSON_MODE, *([TEXT_MODE, *FILE_MODES] if takes_messages(agent["input_schema"]) else [])]
    return _with_a2ui(agent, [mode.lower() for mode in own] or by_schema)


def _output_modes(agent: Row) -> list[str]:
    own = _texts(_options(agent).get("output_modes"))
    by_schema = [JSON_MODE, TEXT_MODE, *(FILE_MODES if takes_messages(agent["input_schema"]) else [])]
    return _with_a2ui(agent, own or by_schema)


def _with_a2ui(agent: Row, modes: Sequence[str]) -> list[str]:
    has_a2ui = not a2ui_extensions(agent) or any(mode in A2UI_MODES for mode in modes)
    return list(modes) if has_a2ui else [*modes, A2UI_MODE]


def card(agent: Row) -> dict[str, Any]:
    """Return an assistant's card. A request that names version 1.0 gets only the fields of that version."""
    whole = _card(agent)
    if requested_version() != "1.0":
        return whole
    shown = {name: value for name, value in whole.items() if name not in ONLY_03}
    shown["capabilities"] = {
        name: value for name, value in whole["capabilities"].items() if name != "stateTransitionHistory"
    }
    shown["securitySchemes"] = {"api_key": {"apiKeySecurityScheme": KEY}}
    return shown


def _card(agent: Row) -> dict[str, Any]:
    name = agent["name"] or agent["graph_id"]
    description = agent["description"] or f"Runs the assistant {name!r}."
    inputs, outputs = input_modes(agent), _output_modes(agent)
    url = f"{deployment_url(deployment(), configured_url())}/a2a/{agent['assistant_id']}"
    known = ", ".join(input_fields(agent["input_schema"])) or "of a JSON object"
    skill = {
        "id": str(agent["assistant_id"]),
        "name": name,
        "description": f"{description} Its input has the fields {known}.",
        "tags": ["assistant", agent["graph_id"]],
        "examples": [],
        "inputModes": inputs,
        "outputModes": outputs,
    }
    a2ui = [
        {"uri": uri, "description": "Passes user interfaces in A2UI through", "required": False}
        for uri in a2ui_extensions(agent)
    ]
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
            "extensions": [HISTORY_SCOPE, *a2ui],
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
