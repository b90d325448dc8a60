"""The credentials of a request: keys, sessions, tokens of a deployment's code, a developer at their own machine.

A session counts for requests of the console's pages alone (web/gate/session_cookie.py), and only without a key.

Calls without a key are possible for a developer under `runyard dev`. There are many conditions, because any page that
a browser shows can send requests to this machine. A request from another site says so in `Origin` or
`Sec-Fetch-Site`. A page that rebinds a name of its own to 127.0.0.1 sends that name in `Host`. A request through a
proxy has the proxy's headers. In the control plane, a developer without a key may only read: uploading code and
creating keys need a key even here. A developer who trusts the pages of one other origin may open the deployment to
them (`dev_origin`).
"""

from __future__ import annotations

import re
from base64 import b64decode
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from functools import cached_property
from ipaddress import ip_address
from urllib.parse import unquote_plus, urlsplit

from flask import request

from shared.access import api_keys, organizations, sessions
from shared.access.api_keys import Caller
from shared.errors import Refused
from shared.settings import Settings
from shared.sign_in_settings import LOCAL_NAMES
from shared.user_code import loopback
from shared.user_code.loopback import LoopbackToken
from web.gate import session_cookie
from web.http import headers
from web.schemas import operations

PROXY_HEADERS = ("Forwarded", "X-Forwarded-For", "X-Forwarded-Host", "X-Real-IP", "Via")
# Role of a developer without a key in the control plane, who may call only its routes of the role `read`.
DEVELOPER_ROLE = "run"
SAME_SITES = ("same-origin", "same-site", "none")
STUDIO = "x-auth-scheme", "langsmith"  # the header that the platform's tools send

# Matches the prefix of a key at the start of a word, and a complete key after any character.
KEY_SIGN = re.compile(
    rf"(?<![0-9A-Za-z_-]){api_keys.PREFIX}_"
    rf"|{api_keys.PREFIX}_[0-9A-Za-z]{{{api_keys.ID_LENGTH}}}_[0-9A-Za-z_-]{{{api_keys.SECRET_LENGTH}}}"
)
BASIC = re.compile(r"basic\s+([0-9A-Za-z+/_-]+)", re.IGNORECASE)


class Credentials:
    """The credentials of the current request. Each is looked up at most once, and only if it is needed."""

    def __init__(self, settings: Settings, *, is_for_deployment: bool) -> None:
        self._settings, self._is_for_deployment = settings, is_for_deployment
        self.presented_key = _presented_key()
        self.tenant = (headers.request_header("X-Tenant-Id") or "").strip()
        self.has_loopback_token = headers.request_header(loopback.HEADER) is not None
        self.session_token = None if self.presented_key else session_cookie.presented_session(settings)

    @cached_property
    def loopback(self) -> LoopbackToken | None:
        """The content of the token that a deployment's own code sends, or None without a valid token."""
        return loopback.read(request.headers[loopback.HEADER]) if self.has_loopback_token else None

    @cached_property
    def key_caller(self) -> Caller | None:
        """The caller of the presented key, in the key's own organization. None without a key and for an unknown one."""
        if not self.presented_key:
            return None
        return api_keys.authenticate(self.presented_key, bootstrap=self._settings.api_key)

    @cached_property
    def session_caller(self) -> Caller | None:
        """The person whose session the request presents. None without one and for an unknown one.

        Raises Unauthenticated if the session has ended.
        """
        session = None if self.session_token is None else sessions.find(self.session_token, self._settings)
        return None if session is None else session.caller

    def drop_session(self) -> None:
        """Forget the session. For routes of a project's app, where a session counts for nothing."""
        self.session_token = None
        self.__dict__.pop("session_caller", None)
        self.__dict__.pop("holder", None)

    def acting_caller(self) -> Caller | None:
        """Return the caller of the presented key or session, in the organization that `X-Tenant-Id` names.

        Raises Refused.
        """
        caller = self.key_caller if self.presented_key else self.session_caller
        if caller is None or not self.tenant:
            return caller
        return organizations.acting_for(caller, self.tenant)

    @cached_property
    def holder(self) -> Caller | None:
        """The caller that a key or session identifies. Without either: the local developer, else None."""
        if self.session_token is not None:
            return self._acting_caller_if_valid()
        if not self.presented_key or not is_platform_key(self.presented_key, self._settings):
            return self.local_developer
        return self._acting_caller_if_valid()

    def _acting_caller_if_valid(self) -> Caller | None:
        try:
            return self.acting_caller()
        except Refused:
            return None

    @cached_property
    def local_developer(self) -> Caller | None:
        """The operator as the caller if this request needs no key, else None."""
        settings = self._settings
        if settings.dev_deployment is None or settings.api_key is None:
            return None
        if not is_local(dev_origin=settings.dev_origin if self._is_for_deployment else None):
            return None
        operator = api_keys.authenticate(settings.api_key, bootstrap=settings.api_key)
        if self._is_for_deployment or operator is None:
            return operator
        operation = operations.current()
        is_read_only = operation is not None and operation.role == "read"
        return replace(operator, role=DEVELOPER_ROLE) if is_read_only else None

    @property
    def is_of_foreign_page(self) -> bool:
        """Whether the request would need no key, if a page of another site had not sent it."""
        settings = self._settings
        is_open = settings.dev_deployment is not None and self._is_for_deployment and _is_from_machine()
        return is_open and not _is_own_page(settings.dev_origin)

    def is_of_studio(self) -> bool:
        """Return whether the request says that it comes from one of the platform's tools."""
        name, value = STUDIO
        return request.headers.get(name, "").strip().lower() == value


def _presented_key() -> str | None:
    """Return the credential in the headers that carry platform keys, or None."""
    key = headers.request_header("X-Api-Key")
    if key:
        return key.strip()
    scheme, _, token = (headers.request_header("Authorization") or "").partition(" ")
    return token.strip() if scheme.lower() == "bearer" else None


def is_local(*, dev_origin: str | None = None) -> bool:
    """Return whether the request was made on this machine, by its user or a page of this site or `dev_origin`."""
    return _is_from_machine() and _is_own_page(dev_origin)


def _is_from_machine() -> bool:
    is_proxied = any(name in request.headers for name in PROXY_HEADERS)
    return _is_loopback(request.remote_addr or "") and not is_proxied


def _is_own_page(dev_origin: str | None) -> bool:
    """Return whether no page of another site has sent the request."""
    if _host_of(f"//{request.host}") not in LOCAL_NAMES:
        return False
    origin = request.headers.get("Origin")
    if origin is not None:
        return _host_of(origin) in LOCAL_NAMES or origin == dev_origin
    return request.headers.get("Sec-Fetch-Site", "none") in SAME_SITES


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


def is_platform_key(value: str, settings: Settings) -> bool:
    """Return whether a header's value contains a platform key, or text that looks like one. User code must not see it.

    The whole value is searched, since several headers of one name arrive as one value, and some clients put keys into
    cookies. The search also covers percent-encoded text and the credentials of basic authentication.
    """
    bootstrap = settings.api_key
    return any(
        KEY_SIGN.search(reading) is not None or (bootstrap is not None and bootstrap in reading)
        for reading in _readings(value)
    )


def _readings(value: str) -> Iterator[str]:
    """Yield a value as it is, and each form that a receiver may decode it to."""
    yield value
    if "%" in value:
        once = unquote_plus(value)
        yield from (once, unquote_plus(once))
    for credentials in BASIC.findall(value):
        with suppress(ValueError):
            yield b64decode(credentials + "=" * (-len(credentials) % 4)).decode("latin-1")


def without_keys(query: str, settings: Settings) -> str:
    """Return a query string for user code, without the parameters that contain a platform key."""
    return "&".join(part for part in query.split("&") if not is_platform_key(unquote_plus(part), settings))
