"""Where a deployment is served, as its record says or as the service's address implies."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def address_of(url: str, record: Mapping[str, Any]) -> str:
    """A deployment's address; `url` is the service's."""
    return address_in(record) or f"{url}/d/{record['name']}"


def address_in(record: Mapping[str, Any]) -> str | None:
    """The address in a deployment's record: it has one as soon as it serves."""
    config = record.get("source_config")
    return config.get("custom_url") if isinstance(config, Mapping) else None
