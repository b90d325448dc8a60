"""Readers of the control plane's error responses."""

from __future__ import annotations

from typing import Any


def detail(response: Any) -> Any:
    return response.json["detail"]


def place(response: Any) -> tuple[list[Any], str]:
    """Return `loc` and `type` of the only violation in a 422 response."""
    assert response.status_code == 422, response.text
    [item] = detail(response)
    return item["loc"], item["type"]
