"""The `webhooks` key of a langgraph.json: allowed webhook addresses, and headers added to each delivery."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from shared.infra import egress
from shared.runs.webhooks import TEMPLATE
from workers.builder.config.checks import check_keys, refused

PREFIX = "LG_WEBHOOK_"  # default prefix of the variables that header values may refer to
KNOWN = ("env_prefix", "url", "headers")
RULES = ("require_https", "allowed_domains", "allowed_ports", "max_url_length", "disable_loopback")
NOT_ALLOWED = "false is not allowed by this service: its operator can (RUNYARD_ALLOWED_ADDRESSES=127.0.0.1)"
MAX_HEADERS = 50
HEADER = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]{1,100}")
VALUE = re.compile(r"[\x20-\x7e]{0,4096}")
DOMAIN = re.compile(r"(\*\.)?[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*|[0-9A-Fa-f:.]+")
# Headers that the service sets itself: addressing, content and signature.
OWN_HEADERS = re.compile(
    r"host|connection|content-.*|transfer-encoding|te|trailer|upgrade|expect|accept-encoding|webhook-.*",
    re.IGNORECASE,
)


def read(config: Any, env: Mapping[str, str]) -> dict[str, Any]:
    """Return the validated `url` rules and `headers`, with the project's own `env` substituted into the headers.

    Raises BuildFailed, naming the key.
    """
    if config is None:
        return {}
    check_keys("webhooks", config, KNOWN)
    prefix = config.get("env_prefix", PREFIX)
    if not isinstance(prefix, str) or not prefix:
        raise refused("webhooks.env_prefix", "must be a non-empty string")
    return {"url": _rules(config.get("url")), "headers": _headers(config.get("headers"), prefix, env)}


def _rules(rules: Any) -> dict[str, Any]:
    if rules is None:
        return {}
    check_keys("webhooks.url", rules, RULES)
    for name in ("require_https", "disable_loopback"):
        if not isinstance(rules.get(name, False), bool):
            raise refused(f"webhooks.url.{name}", "must be true or false")
    has_loopback = not rules.get("disable_loopback", True)
    if has_loopback and not egress.allows_loopback():
        raise refused("webhooks.url.disable_loopback", NOT_ALLOWED)
    longest = rules.get("max_url_length")
    if longest is not None and (type(longest) is not int or longest < 1):
        raise refused("webhooks.url.max_url_length", "must be a positive number")
    domains, ports = rules.get("allowed_domains") or [], rules.get("allowed_ports") or []
    if not isinstance(domains, list) or not all(isinstance(d, str) and DOMAIN.fullmatch(d) for d in domains):
        raise refused(
            "webhooks.url.allowed_domains", 'must be an array of names like "a.example" or "*.example"'
        )
    if not isinstance(ports, list) or not all(type(port) is int and 0 < port < 65536 for port in ports):
        raise refused("webhooks.url.allowed_ports", "must be an array of port numbers")
    return {
        "require_https": rules.get("require_https", False),
        "allowed_domains": [domain.lower() for domain in domains],
        "allowed_ports": ports,
        "max_url_length": longest,
        "disable_loopback": not has_loopback,
    }


def _headers(headers: Any, prefix: str, env: Mapping[str, str]) -> dict[str, str]:
    if headers is None:
        return {}
    if not isinstance(headers, dict) or len(headers) > MAX_HEADERS:
        raise refused("webhooks.headers", f"must be an object of at most {MAX_HEADERS} strings")
    return {
        name: _header(f"webhooks.headers.{name}", name, value, prefix, env) for name, value in headers.items()
    }


def _header(key: str, name: str, value: Any, prefix: str, env: Mapping[str, str]) -> str:
    """Return the header's value. Variables missing in the project's `env` stay templates for the deployment."""
    if not HEADER.fullmatch(name) or OWN_HEADERS.fullmatch(name):
        raise refused(key, "cannot be set")
    if not isinstance(value, str):
        raise refused(key, "must be a string")
    for variable in TEMPLATE.findall(value):
        if not variable.startswith(prefix):
            raise refused(key, f"the variable {variable} does not begin with {prefix}")
    if "${{" in TEMPLATE.sub("", value):
        raise refused(key, "a template must have the form ${{ env.NAME }}")
    filled = TEMPLATE.sub(lambda match: env.get(match[1], match[0]), value)
    if not VALUE.fullmatch(filled):
        raise refused(key, "must be at most 4096 printable ASCII characters")
    return filled
