"""Addresses of deployments."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import quote, urlsplit

PREVIEW_SIGN = "--"  # between the names of a deployment and its preview, as in the preview's address


def address_of(url: str, record: Mapping[str, Any]) -> str:
    """Return a deployment's address: from its record, else derived from the service's `url`."""
    return address_in(record) or f"{url}/d/{record['name']}"


def served_at(url: str, name: str, shown: str | None) -> str:
    """Return the address below the service's `url` where a deployment or preview is called.

    `shown` is the address in its record, which may name any host. Only its mount prefix is used, so that an API key
    goes to no other service than the one at `url`. This address also works through a tunnel or a proxy.
    """
    path = urlsplit(shown or "").path
    _, is_below, prefix = path.partition(f"/d/{name}")
    return f"{url}/d/{quote(name, safe='')}{prefix if is_below else path}".rstrip("/")


def address_in(record: Mapping[str, Any]) -> str | None:
    """Return the address in a deployment's record; None until a revision serves."""
    config = record.get("source_config")
    return config.get("custom_url") if isinstance(config, Mapping) else None
