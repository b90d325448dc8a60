"""The `auth` key of a langgraph.json: the project's own authorization and the cache of its answers."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from workers.builder.config import entry_points
from workers.builder.config.checks import refused
from workers.builder.config.source_tree import SourceTree

KNOWN = {
    "auth": ("path", "disable_studio_auth", "openapi", "cache"),
    "auth.cache": ("cache_keys", "ttl_seconds", "max_size"),
    "auth.openapi": ("securitySchemes", "security", "paths"),
}
HEADER = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]{1,100}")
MAX_CACHE_KEYS = 20
MAX_CACHE_SECONDS = 3600
MAX_CACHE_SIZE = 1_000_000


def read(tree: SourceTree, config: Any) -> dict[str, Any]:
    """Return the validated `auth` object; empty if the project has none. Raises BuildFailed, naming the key."""
    if config is None or config == {}:
        return {}
    if not isinstance(config, dict):
        raise refused("auth", "must be an object")
    is_disabled = config.get("disable_studio_auth")
    if not isinstance(is_disabled, bool | None):
        raise refused("auth.disable_studio_auth", "must be true or false")
    return {
        "path": entry_points.read(tree, "auth.path", config.get("path"), kind="authorization"),
        "disable_studio_auth": bool(is_disabled),
        "openapi": _openapi(config.get("openapi")),
        **_cache(config.get("cache")),
    }


def _cache(cache: Any) -> dict[str, Any]:
    """Return the validated cache settings under the field names of `shared.deployments.user_code.Auth`."""
    cache = {} if cache is None else cache
    if not isinstance(cache, dict):
        raise refused("auth.cache", "must be an object")
    keys, seconds, size = (cache.get(name) for name in KNOWN["auth.cache"])
    keys = [] if keys is None else keys
    if not isinstance(keys, list) or len(keys) > MAX_CACHE_KEYS or not all(map(_is_header, keys)):
        raise refused(
            "auth.cache.cache_keys", f"must be an array of at most {MAX_CACHE_KEYS} names of headers"
        )
    if seconds is not None and (type(seconds) not in (int, float) or not 0 <= seconds <= MAX_CACHE_SECONDS):
        raise refused("auth.cache.ttl_seconds", f"must be a number between 0 and {MAX_CACHE_SECONDS}")
    if size is not None and (type(size) is not int or not 0 <= size <= MAX_CACHE_SIZE):
        raise refused("auth.cache.max_size", f"must be a whole number between 0 and {MAX_CACHE_SIZE}")
    return {
        "cache_keys": sorted({key.lower() for key in keys}),
        "cache_seconds": seconds,
        "cache_size": size,
    }


def _is_header(value: Any) -> bool:
    return isinstance(value, str) and HEADER.fullmatch(value) is not None


def _openapi(document: Any) -> Mapping[str, Any]:
    if document is None:
        return {}
    if not isinstance(document, dict):
        raise refused("auth.openapi", "must be an object")
    for name, kind in (("securitySchemes", dict), ("security", list), ("paths", dict)):
        part = document.get(name)
        items = part.values() if isinstance(part, dict) else part or ()
        if not isinstance(part, kind | None) or not all(isinstance(item, dict) for item in items):
            raise refused(f"auth.openapi.{name}", "must be as OpenAPI has it")
    return {name: document[name] for name in KNOWN["auth.openapi"] if document.get(name) is not None}
