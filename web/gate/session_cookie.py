"""The cookies of people who sign in, and the checks of requests that carry them.

The cookie of a session is sent with every request of the browser to this host, also with those for a project's app.
`Cookies` therefore takes the service's cookies and CSRF header out of each request before anything else reads it: no
later stage can forward them to user code, log them or select them for runs.

A session counts only if all of these hold:

- The request has the session's CSRF token as a header. Browsers send such a header to another origin only after a
  preflight request, and the control plane allows none.
- The request comes from a page of the service's origin. `Sec-Fetch-Site` must be `same-origin` and `Origin` must be that
  of RUNYARD_URL; an unsafe method needs one of the two. Pages of a project's app are in a sandbox without
  `allow-same-origin`, so that their origin is `null` and their requests are cross-site. Browsers send no
  `SameSite=Strict` cookie with those. A deployment at its own domain has another origin.
- The request is for the service's own host name, and not for a route of a project's app (web/gate/gate.py).
- The request has no API key, which takes precedence.

With https the names begin with `__Host-`. Browsers accept such a cookie only from this host over https, so that no page
of a sibling domain can replace it. An app cannot set one of these cookies (web/deployment_api/user_app/heads.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from flask import Response, request

from shared.access import sessions
from shared.settings import Settings
from web.gate.addresses import AT_ROOT

SESSION, SIGN_IN = "runyard_session", "runyard_sign_in"
HOST_PREFIX = "__Host-"
NAMES = frozenset({SESSION, SIGN_IN, f"{HOST_PREFIX}{SESSION}", f"{HOST_PREFIX}{SIGN_IN}"})
CSRF_HEADER = "X-Runyard-CSRF"
MAX_VALUES = 5
SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})
_CSRF = "HTTP_" + CSRF_HEADER.upper().replace("-", "_")
_TAKEN_COOKIES, _TAKEN_CSRF = "runyard.cookies", "runyard.csrf"  # keys in the WSGI environment

Wsgi = Callable[[dict[str, Any], Callable[..., Any]], Iterable[bytes]]


class Cookies:
    """WSGI middleware that takes the service's cookies and CSRF header out of every request."""

    def __init__(self, app: Wsgi) -> None:
        self.app = app

    def __call__(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        environ[_TAKEN_CSRF] = environ.pop(_CSRF, "")
        kept, taken = [], []
        for pair in environ.get("HTTP_COOKIE", "").split(";"):
            name, _, value = pair.partition("=")
            if name.strip() in NAMES:
                taken.append((name.strip(), value.strip()))
            else:
                kept.append(pair)
        environ[_TAKEN_COOKIES] = taken
        if taken:
            environ["HTTP_COOKIE"] = ";".join(kept).strip()
            if not environ["HTTP_COOKIE"]:
                del environ["HTTP_COOKIE"]
        return self.app(environ, start_response)


def presented_session(settings: Settings) -> str | None:
    """Return the session's token if the request proves that a page of the console sent it, else None."""
    csrf: str = request.environ.get(_TAKEN_CSRF, "")
    if not is_from_console(settings):
        return None
    return next((token for token in session_tokens(settings) if sessions.is_csrf_token(csrf, token)), None)


def session_tokens(settings: Settings) -> Sequence[str]:
    """Return the session tokens in the request's cookies: usually one. Another path may have a cookie of this name."""
    return values_of(SESSION, settings)


def values_of(name: str, settings: Settings) -> Sequence[str]:
    """Return the values of one of the service's cookies, at most MAX_VALUES: each is looked up or decrypted."""
    expected = full_name(name, settings)
    values = [value for sent, value in request.environ.get(_TAKEN_COOKIES, ()) if sent == expected and value]
    return values[:MAX_VALUES]


def is_from_console(settings: Settings) -> bool:
    """Return whether a page of the service's own origin sent the request, with the CSRF header, whatever its value."""
    if settings.oidc_issuer is None or not request.environ.get(_TAKEN_CSRF) or AT_ROOT in request.environ:
        return False
    site, origin = request.headers.get("Sec-Fetch-Site"), request.headers.get("Origin")
    if (site or "same-origin") != "same-origin" or (origin or settings.origin) != settings.origin:
        return False
    return request.method in SAFE_METHODS or site is not None or origin is not None


def full_name(name: str, settings: Settings) -> str:
    """Return the name under which browsers keep a cookie of the service."""
    return f"{HOST_PREFIX}{name}" if _is_secure(settings) else name


def set_cookie(
    response: Response, settings: Settings, name: str, value: str, *, seconds: float, same_site: str
) -> None:
    """Set a cookie that scripts cannot read and that no other host gets."""
    response.set_cookie(
        full_name(name, settings),
        value,
        max_age=int(seconds),
        path="/",
        secure=_is_secure(settings),
        httponly=True,
        samesite=same_site,
    )


def delete_cookie(response: Response, settings: Settings, name: str) -> None:
    set_cookie(response, settings, name, "", seconds=0, same_site="Strict")


def _is_secure(settings: Settings) -> bool:
    return settings.url.startswith("https://")
