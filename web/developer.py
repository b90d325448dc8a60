"""Who may call a deployment without a key: a developer at their own machine, under `runyard dev`.

Why so many conditions: any page that a browser shows can send requests to this machine. One that comes from
another site says so (`Origin`, `Sec-Fetch-Site`), one that rebinds a name of its own to 127.0.0.1 has that name
in `Host`, and one that a proxy passes on has headers that say so. Of the control plane they may look at what a key with the role `read`
may: where code comes in and keys are made, a key is wanted even here. One origin may be let in (`dev_origin`) to the
deployment, by a developer who trusts its pages.
"""

from __future__ import annotations

from dataclasses import replace
from ipaddress import ip_address
from urllib.parse import urlsplit

from flask import current_app, request

from shared.access import api_keys
from shared.access.api_keys import Caller
from shared.settings import Settings
from web import operations
from web.addresses import deployment_path

LOCAL_NAMES = frozenset({"localhost", "127.0.0.1", "::1"})
PROXY_HEADERS = ("Forwarded", "X-Forwarded-For", "X-Forwarded-Host", "X-Real-IP", "Via")
AT_CONTROL_PLANE = "run"  # what they may do in all: their deployment is theirs to use
OWN_SITES = ("same-origin", "same-site", "none")


def developer() -> Caller | None:
    """The caller of this request when it needs no key: the operator; None where it does need one."""
    settings: Settings = current_app.config["SETTINGS"]
    if settings.dev_deployment is None or settings.api_key is None:
        return None
    is_theirs = deployment_path(request.path) is not None
    if not is_local(dev_origin=settings.dev_origin if is_theirs else None):
        return None
    operator = api_keys.authenticate(settings.api_key, bootstrap=settings.api_key)
    if is_theirs or operator is None:
        return operator
    return replace(operator, role=AT_CONTROL_PLANE) if _looks_only() else None


def _looks_only() -> bool:
    """Whether the request is for a route of the control plane that changes nothing."""
    asked = operations.requested()
    return asked is not None and asked.role == "read"


def is_local(*, dev_origin: str | None = None) -> bool:
    """Whether the request was made on this machine, by its user and no page of a site but this one."""
    if not _is_loopback(request.remote_addr or "") or any(name in request.headers for name in PROXY_HEADERS):
        return False
    if _host_of(f"//{request.host}") not in LOCAL_NAMES:
        return False
    origin = request.headers.get("Origin")
    if origin is not None:
        return _host_of(origin) in LOCAL_NAMES or origin == dev_origin
    return request.headers.get("Sec-Fetch-Site", "none") in OWN_SITES


def _is_loopback(address: str) -> bool:
    try:
        return ip_address(address).is_loopback
    except ValueError:
        return False


def _host_of(url: str) -> str | None:
    try:
        return urlsplit(url).hostname
    except ValueError:
        return None
