"""Who may call a deployment without a key: a developer at their own machine, under `runyard dev`.

Why so many conditions: any page that a browser shows can send requests to this machine. One that comes from
another site says so (`Origin`, `Sec-Fetch-Site`), one that rebinds a name of its own to 127.0.0.1 has that name
in `Host`, and one that a proxy passes on has headers that say so. The control plane, where code comes in and
keys are made, wants its key even here. One origin may be let in (`dev_origin`), by a developer who trusts its pages.
"""

from __future__ import annotations

from ipaddress import ip_address
from urllib.parse import urlsplit

from flask import current_app, request

from shared.access import api_keys
from shared.access.api_keys import Caller
from shared.settings import Settings
from web.addresses import deployment_path

LOCAL_NAMES = frozenset({"localhost", "127.0.0.1", "::1"})
PROXY_HEADERS = ("Forwarded", "X-Forwarded-For", "X-Forwarded-Host", "X-Real-IP", "Via")
OWN_SITES = ("same-origin", "same-site", "none")


def developer() -> Caller | None:
    """The caller of this request when it needs no key: the operator; None where it does need one."""
    settings: Settings = current_app.config["SETTINGS"]
    if settings.dev_deployment is None or settings.api_key is None:
        return None
    if deployment_path(request.path) is None or not is_local():
        return None
    return api_keys.authenticate(settings.api_key, bootstrap=settings.api_key)


def is_local() -> bool:
    """Whether the request was made on this machine, by its user and no other site's page."""
    if not _is_loopback(request.remote_addr or "") or any(name in request.headers for name in PROXY_HEADERS):
        return False
    if _host_of(f"//{request.host}") not in LOCAL_NAMES:
        return False
    origin = request.headers.get("Origin")
    if origin is not None:
        return _host_of(origin) in LOCAL_NAMES or origin == current_app.config["SETTINGS"].dev_origin
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
