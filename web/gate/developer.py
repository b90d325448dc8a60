"""Calls without a key: a developer at their own machine, under `runyard dev`.

There are many conditions, because any page that a browser shows can send requests to this machine. A request from
another site says so in `Origin` or `Sec-Fetch-Site`. A page that rebinds a name of its own to 127.0.0.1 sends that
name in `Host`. A request through a proxy has the proxy's headers.

In the control plane, a developer without a key may only read: uploading code and creating keys need a key even here.
A developer who trusts the pages of one other origin may open the deployment to them (`dev_origin`).
"""

from __future__ import annotations

from dataclasses import replace
from ipaddress import ip_address
from urllib.parse import urlsplit

from flask import current_app, request

from shared.access import api_keys
from shared.access.api_keys import Caller
from shared.settings import Settings
from web.gate.addresses import deployment_path
from web.schemas import operations

LOCAL_NAMES = frozenset({"localhost", "127.0.0.1", "::1"})
PROXY_HEADERS = ("Forwarded", "X-Forwarded-For", "X-Forwarded-Host", "X-Real-IP", "Via")
AT_CONTROL_PLANE = "run"  # the role shown to the developer, who may use the deployment in full
OWN_SITES = ("same-origin", "same-site", "none")


def developer() -> Caller | None:
    """Return the operator as the caller if this request needs no key, else None."""
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
    """Return whether the request is for a route of the control plane that changes nothing."""
    asked = operations.requested()
    return asked is not None and asked.role == "read"


def is_local(*, dev_origin: str | None = None) -> bool:
    """Return whether the request was made on this machine, by its user or a page of this site or `dev_origin`."""
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
