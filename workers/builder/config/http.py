"""The `http` key of a langgraph.json: the project's own app, disabled interfaces, and CORS."""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Any

from workers.builder.config import entry_points, regexes
from workers.builder.config.checks import refused
from workers.builder.config.source_tree import SourceTree

SWITCHES = (
    "enable_custom_route_auth",
    "disable_assistants",
    "disable_threads",
    "disable_runs",
    "disable_store",
    "disable_mcp",
    "disable_a2a",
    "disable_ui",
    "disable_meta",
    "disable_webhooks",
)
CHOICES = {
    "middleware_order": ("middleware_first", "auth_first"),
    # A project's middleware cannot wrap the built-in routes. The author confirms this by setting `custom_routes`.
    "middleware_scope": ("custom_routes",),
}
PATTERNS = ("configurable_headers", "logging_headers")
CORS_LISTS = ("allow_origins", "allow_methods", "allow_headers", "expose_headers")
KNOWN = {
    "http": (*SWITCHES, *CHOICES, *PATTERNS, "app", "mount_prefix", "cors"),
    "http.cors": (*CORS_LISTS, "allow_credentials", "allow_origin_regex", "max_age"),
    **{f"http.{name}": ("includes", "excludes") for name in PATTERNS},
}
PREFIX = re.compile(r"(/[A-Za-z0-9._~-]+)+")
MAX_PREFIX = 200
MAX_ITEMS = 100
ITEM = re.compile(r"[\x21-\x7e]{1,300}")  # an origin, a method, a header or a pattern of headers
MAX_REGEX = 500
MAX_AGE_SECONDS = 86_400 * 365


def read(tree: SourceTree, config: Any) -> dict[str, Any]:
    """Return the validated `http` settings that are present. Raises BuildFailed, naming the key."""
    if config is None:
        return {}
    if not isinstance(config, dict):
        raise refused("http", "must be an object")
    found: dict[str, Any] = {}
    for name in SWITCHES:
        if config.get(name) is not None:
            found[name] = _switch(f"http.{name}", config[name])
    for name, choices in CHOICES.items():
        if config.get(name) is not None:
            found[name] = _choice(f"http.{name}", config[name], choices)
    for name in PATTERNS:
        if config.get(name) is not None:
            found[name] = _patterns(f"http.{name}", config[name])
    if config.get("app") is not None:
        found["app"] = entry_points.read(tree, "http.app", config["app"], kind="app")
    if prefix := _prefix(config.get("mount_prefix")):
        found["mount_prefix"] = prefix
    if config.get("cors") is not None:
        found["cors"] = cors("http.cors", config["cors"])
    return found


def cors(key: str, config: Any) -> dict[str, Any]:
    """Return the validated CORS settings that are present. Raises BuildFailed, naming the key."""
    if not isinstance(config, dict):
        raise refused(key, "must be an object")
    found: dict[str, Any] = {}
    for name in CORS_LISTS:
        if config.get(name) is not None:
            found[name] = _items(f"{key}.{name}", config[name])
    if config.get("allow_credentials") is not None:
        found["allow_credentials"] = _switch(f"{key}.allow_credentials", config["allow_credentials"])
    if config.get("allow_origin_regex") is not None:
        found["allow_origin_regex"] = _regex(f"{key}.allow_origin_regex", config["allow_origin_regex"])
    age = config.get("max_age")
    if age is not None:
        if type(age) is not int or not 0 <= age <= MAX_AGE_SECONDS:
            raise refused(f"{key}.max_age", "must be a whole number of seconds")
        found["max_age"] = age
    return found


def _switch(key: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise refused(key, "must be true or false")
    return value


def _choice(key: str, value: Any, choices: Collection[str]) -> str:
    if value not in choices:
        raise refused(key, f"must be {' or '.join(choices)}")
    return value


def _patterns(key: str, value: Any) -> dict[str, list[str]]:
    if not isinstance(value, dict):
        raise refused(key, "must be an object with `includes` and `excludes`")
    return {
        name: [pattern.lower() for pattern in _items(f"{key}.{name}", value[name])]
        for name in ("includes", "excludes")
        if value.get(name) is not None
    }


def _items(key: str, value: Any) -> list[str]:
    is_list = isinstance(value, list) and len(value) <= MAX_ITEMS
    if not is_list or not all(isinstance(item, str) and ITEM.fullmatch(item) for item in value):
        raise refused(key, f"must be an array of at most {MAX_ITEMS} strings without spaces")
    return value


def _prefix(value: Any) -> str:
    """Return the validated path prefix without a trailing slash; empty for the root."""
    if value is None:
        return ""
    prefix = value.rstrip("/") if isinstance(value, str) else "?"
    if prefix == "":
        return ""
    if len(prefix) > MAX_PREFIX or not PREFIX.fullmatch(prefix) or {".", ".."} & set(prefix.split("/")):
        raise refused("http.mount_prefix", 'must be a path like "/api"')
    return prefix


def _regex(key: str, value: Any) -> str:
    if not isinstance(value, str) or len(value) > MAX_REGEX:
        raise refused(key, f"must be a regular expression of at most {MAX_REGEX} characters")
    if reason := regexes.why_not(value):
        raise refused(key, reason)
    return value
