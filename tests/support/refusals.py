"""Refusals of the control plane, as tests read them."""

from __future__ import annotations

from typing import Any


def detail(response: Any) -> Any:
    return response.json["detail"]


def place(response: Any) -> tuple[list[Any], str]:
    """Where the one violation is, and its word."""
    assert response.status_code == 422, response.text
    [item] = detail(response)
    return item["loc"], item["type"]
