"""Assistants of a deployment by name: the names that lists show, and the name that an option accepts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cli.client.client import Client
from cli.client.names import is_id, is_part, only_match, with_part
from cli.errors import CommandFailed

SEARCHED = 1000
SELECTED = ["assistant_id", "name", "graph_id"]

Row = dict[str, Any]


def assistant_names(api: Client) -> dict[str, str]:
    """Return the name of each assistant by its id. Returns an empty dict if the deployment refuses the search."""
    try:
        return {row["assistant_id"]: assistant_name(row) for row in _search(api)}
    except CommandFailed:
        return {}


def assistant_name(row: Mapping[str, Any]) -> str:
    return row.get("name") or row["graph_id"]


def run_assistant(row: Mapping[str, Any], names: Mapping[str, str]) -> str | None:
    """Return the name of a run's assistant, or its graph if the assistant was deleted."""
    return names.get(str(row.get("assistant_id"))) or (row.get("metadata") or {}).get("graph_id")


def find_assistant(api: Client, text: str) -> str:
    """Return the graph or the assistant's id that a text stands for: a graph, a name, an id, or the end of an id.

    A text that matches nothing is returned unchanged, because the service's error names it. Raises BadUsage if several
    assistants match.
    """
    if is_id(text):
        return text
    try:
        rows = _search(api)
    except CommandFailed:  # the deployment's own auth may allow runs and refuse searches
        return text
    if any(row["graph_id"] == text for row in rows):
        return text
    matches = [row for row in rows if row.get("name") == text]
    if not matches and is_part(text):
        matches = with_part(rows, text, key="assistant_id")
    if not matches:
        return text
    return only_match(matches, text, "assistants", missing="", key="assistant_id", label=assistant_name)[
        "assistant_id"
    ]


def _search(api: Client) -> list[Row]:
    body = {"limit": SEARCHED, "select": SELECTED}
    return api.send("POST", "/assistants/search", body, repeat=True)
