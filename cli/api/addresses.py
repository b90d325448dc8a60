"""Addresses of deployments."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

PREVIEW_SIGN = "--"  # between the names of a deployment and its preview, as in the preview's address


def address_of(url: str, record: Mapping[str, Any]) -> str:
    """Return a deployment's address: from its record, else derived from the service's `url`."""
    return address_in(record) or f"{url}/d/{record['name']}"


def address_in(record: Mapping[str, Any]) -> str | None:
    """Return the address in a deployment's record; None until a revision serves."""
    config = record.get("source_config")
    return config.get("custom_url") if isinstance(config, Mapping) else None
