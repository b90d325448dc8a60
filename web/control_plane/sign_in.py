"""Sign-in of people with OpenID Connect, for the console and for the command line.

The browser goes to `start`, to the provider, and back to `callback`, which sets the session's cookie. What the two
steps share (state, nonce, PKCE verifier) is encrypted in a cookie of the browser: the callback accepts only an answer to
a sign-in that the same browser has started, and strangers who call `start` leave no rows. The cookie holds the sign-ins
of several tabs. An answer to one of them removes it, and no other answer changes the cookie. The command line has no
browser. It shows a code, which a signed-in person confirms in the console.
"""

from __future__ import annotations

import hmac
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, ClassVar
from urllib.parse import quote, urlsplit

import orjson
from flask import Response, after_this_request, jsonify, request
from werkzeug.exceptions import MethodNotAllowed

from shared.access import device_logins, sessions
from shared.access.api_keys import Caller
from shared.access.device_logins import INTERVAL_SECONDS, LIFETIME_SECONDS
from shared.errors import Forbidden, Invalid, NotFound, Unauthenticated
from shared.infra import encryption
from shared.infra.encryption import Undecryptable
from shared.infra.postgres import connection, database_time
from shared.infra.tokens import new_token
from shared.oauth import openid
from shared.records import BOOLEAN, COUNT, TEXT, TEXT_OR_NULL, TIME, one_of, or_null, record
from shared.setting_values import ROLES
from web.control_plane.authentication import CallbackQuery
from web.gate import limits, session_cookie
from web.gate.addresses import PATH_SAFE, client_address, client_network
from web.gate.context import caller, credentials, settings
from web.gate.session_cookie import SESSION, SIGN_IN
from web.http import pages
from web.schemas import fields
from web.schemas.operations import RouteGroup
from web.schemas.validation import load_query

bp = RouteGroup("sign_in", section="Organizations and keys")

SIGN_IN_SECONDS = 600
MAX_ATTEMPTS = 5  # sign-ins of a browser at a time
MAX_COOKIE = 3800  # characters; browsers drop cookies of more than 4096 bytes, with name and attributes
PLACE = r"/[!#-\[\]-~]*"  # a page of the console, as browsers write it in an address: ASCII, without quotes
NOT_CONFIGURED = "Sign-in is not configured: use an API key."
NOT_STARTED = "this sign-in was not started in this browser, or has expired or been used: sign in again"

SIGN_IN_RECORD = record("SignIn", is_configured=BOOLEAN, label=TEXT_OR_NULL, start_url=TEXT_OR_NULL)
SESSION_RECORD = record(
    "Session", csrf_token=TEXT, name=TEXT, role=one_of(*ROLES), organization=TEXT, expires_at=TIME
)
SESSION_STATE = record("SessionState", session=or_null(SESSION_RECORD), ended=TEXT_OR_NULL)
SIGNED_OUT = record("SignedOut", logout_url=TEXT_OR_NULL)
DEVICE_LOGIN = record(
    "DeviceLogin",
    device_code=TEXT,
    user_code=TEXT,
    verification_url=TEXT,
    verification_url_complete=TEXT,
    interval_seconds=COUNT,
    expires_in_seconds=COUNT,
)
DEVICE_POLL = record(
    "DevicePoll",
    status=one_of(*device_logins.STATUSES),
    interval_seconds=COUNT,
    key=TEXT_OR_NULL,
    role=TEXT_OR_NULL,
    name=TEXT_OR_NULL,
    organization=TEXT_OR_NULL,
)
PENDING_DEVICE = record("PendingDevice", device=TEXT, address=TEXT, expires_at=TIME)


class Start(fields.Schema):
    next = fields.StrictString(max_length=2048, pattern=PLACE, load_default="/")


class DeviceBegin(fields.Schema):
    example: ClassVar[dict[str, Any]] = {"device": "ann-laptop"}

    device = fields.StrictString(max_length=100, load_default="a command line")


class DeviceToken(fields.Schema):
    example: ClassVar[dict[str, Any]] = {"device_code": "of the login"}

    device_code = fields.StrictString(required=True, max_length=100)


class DeviceCode(fields.Schema):
    user_code = fields.StrictString(required=True, max_length=40)


class DeviceAnswer(fields.Schema):
    example: ClassVar[dict[str, Any]] = {"user_code": "BCDF-GHJK", "approve": True}

    user_code = fields.StrictString(required=True, max_length=40)
    approve = fields.StrictBoolean(required=True)


@bp.operation("GET /v2/sign-in", "Get how people sign in", role="open", answer=SIGN_IN_RECORD)
def get_sign_in() -> Response:
    """Return whether people can sign in with OpenID Connect, the provider's name, and where a browser begins."""
    issuer = settings().oidc_issuer
    if issuer is None:
        return jsonify(is_configured=False, label=None, start_url=None)
    label = settings().oidc_label or urlsplit(issuer).hostname
    return jsonify(is_configured=True, label=label, start_url=f"{_root()}/v2/sign-in/start")


@bp.operation(
    "GET /v2/sign-in/start",
    "Begin a sign-in in the browser",
    role="open",
    query=Start,
    status=302,
    errors=(404, 502),
)
def start(query: dict[str, Any]) -> Any:
    """Redirect the browser to the provider. `next` is the page of the console that it gets afterwards."""
    return _for_browser(lambda: _start(query["next"]))


def _start(place: str) -> Response:
    _require_configured()
    limits.count_address(client_network(settings()))
    attempt = {
        "state": new_token(),
        "nonce": new_token(),
        "verifier": new_token(),
    }
    url = openid.authorization_url(settings(), redirect_uri=_redirect_uri(), **attempt)
    begun = {**attempt, "next": place, "expires_at": database_time().timestamp() + SIGN_IN_SECONDS}
    response = Response(status=302, headers={"Location": url})
    _set_attempts(response, [*_attempts(), begun])
    return pages.uncached(response)


def _attempts() -> Sequence[Mapping[str, Any]]:
    """Return the sign-ins that this browser has started and not completed, oldest first."""
    attempts: list[Mapping[str, Any]] = []
    for value in session_cookie.values_of(SIGN_IN, settings()):
        with suppress(Undecryptable, ValueError):
            attempts += orjson.loads(encryption.decrypt(value.encode()))
    return [attempt for attempt in attempts if attempt["expires_at"] > database_time().timestamp()]


def _set_attempts(response: Response, attempts: Sequence[Mapping[str, Any]]) -> None:
    """Set the cookie to the newest sign-ins that it can hold."""
    for number in range(min(len(attempts), MAX_ATTEMPTS), 0, -1):
        value = encryption.encrypt(orjson.dumps(attempts[-number:]).decode()).decode()
        if len(value) <= MAX_COOKIE:
            session_cookie.set_cookie(
                response,
                settings(),
                SIGN_IN,
                value,
                seconds=SIGN_IN_SECONDS,
                same_site="Lax",  # the provider's redirect comes from another site
            )
            return
    session_cookie.delete_cookie(response, settings(), SIGN_IN)


@bp.operation(
    "GET /v2/sign-in/callback",
    "Complete a sign-in when the provider redirects the browser",
    role="open",
    query=CallbackQuery,
    status=303,
    errors=(400, 403, 404, 502),
)
def complete() -> Any:
    """Check the provider's answer, set the session's cookie and redirect to the console.

    Errors are returned as a page to browsers, and as JSON to other clients.
    """
    if request.method == "HEAD":  # sent for previews of links, and must not use up the code
        raise MethodNotAllowed(["GET"])
    return _for_browser(_complete)


def _complete() -> Response:
    query = load_query(CallbackQuery, refuse_repeated=True)  # RFC 6749, 3.1
    _require_configured()
    limits.count_address(client_network(settings()))
    attempts = _attempts()
    attempt = next((one for one in attempts if _is_of_state(one, query["state"])), None)
    if attempt is None:
        raise Invalid(NOT_STARTED, loc=("query", "state"), status=400)

    @after_this_request
    def remove_attempt(response: Response) -> Response:
        _set_attempts(response, [other for other in attempts if other is not attempt])
        return response

    openid.check_redirect(settings(), query.get("iss"))
    if query.get("error") is not None:
        word = query["error"] if re.fullmatch(r"[a-z_]{1,40}", query["error"]) else "an error"
        raise Invalid(f"the provider answered {word}", loc=("query", "error"), status=400)
    if not query.get("code"):
        raise Invalid("the provider sent no code", loc=("query", "code"), status=400)
    identity = openid.identify(
        settings(),
        code=query["code"],
        redirect_uri=_redirect_uri(),
        verifier=attempt["verifier"],
        nonce=attempt["nonce"],
    )
    with connection() as conn:
        token = sessions.start(conn, identity, settings(), address=client_address(settings()))
    place = quote(attempt["next"], safe=f"{PATH_SAFE}?%-._")
    response = Response(status=303, headers={"Location": f"{_root()}/#{place}"})
    session_cookie.set_cookie(
        response, settings(), SESSION, token, seconds=settings().session_seconds, same_site="Strict"
    )
    return pages.uncached(response)


def _is_of_state(attempt: Mapping[str, Any], state: str) -> bool:
    return hmac.compare_digest(attempt["state"].encode(), state.encode())


def _for_browser(respond: Callable[[], Response]) -> Response:
    return pages.for_browser(respond, "Not signed in", link=(f"{_root()}/", "To the sign-in page"))


def _root() -> str:
    return settings().url.rstrip("/")


def _redirect_uri() -> str:
    return f"{_root()}/v2/sign-in/callback"


def _require_configured() -> None:
    if settings().oidc_issuer is None:
        raise NotFound(NOT_CONFIGURED)


@bp.operation(
    "GET /v2/sign-in/session",
    "Get the session of the console",
    role="open",
    answer=SESSION_STATE,
    errors=(403,),
)
def get_session() -> Response:
    """Return the browser's session with its CSRF token, or why it has ended. Only for pages of the console.

    The request must carry the header `X-Runyard-CSRF` with any value. Later requests carry the token there.
    """
    if settings().oidc_issuer is None:
        return pages.uncached(jsonify(session=None, ended=None))
    if not session_cookie.is_from_console(settings()):
        raise Forbidden("Only the console may read the session")
    limits.count_address(client_network(settings()))
    tokens, ended = session_cookie.session_tokens(settings()), None
    for token in tokens:
        try:
            session = sessions.find(token, settings())
        except Unauthenticated as error:
            ended = error.message
        else:
            if session is not None:
                return pages.uncached(jsonify(session=_session_record(session, token), ended=None))
    response = pages.uncached(jsonify(session=None, ended=ended or (sessions.ENDED if tokens else None)))
    if tokens:
        session_cookie.delete_cookie(response, settings(), SESSION)
    return response


def _session_record(session: sessions.Session, token: str) -> dict[str, Any]:
    return {
        "csrf_token": sessions.csrf_token(token),
        "name": session.caller.name,
        "role": session.caller.role,
        "organization": session.caller.organization_name,
        "expires_at": session.expires_at,
    }


@bp.operation(
    "POST /v2/sign-out", "End the session of the console", role="open", answer=SIGNED_OUT, errors=(403,)
)
def sign_out() -> Response:
    """End the browser's session and delete its cookie. `logout_url`, if set, ends the session at the provider as well."""
    # Also without a cookie: browsers send none with the form of another site's page, but obey a response that deletes it.
    if not session_cookie.is_from_console(settings()):
        raise Forbidden("Only the console may end the session")
    token = credentials().session_token
    if token is None and session_cookie.session_tokens(settings()):
        raise Forbidden("The CSRF token is not that of the session")
    id_token = None if token is None else sessions.end(token, address=client_address(settings()))
    url = None
    if id_token is not None:
        url = openid.logout_url(settings(), id_token=id_token, return_to=f"{_root()}/")
    response = pages.uncached(jsonify(logout_url=url))
    session_cookie.delete_cookie(response, settings(), SESSION)
    return response


@bp.operation(
    "POST /v2/sign-in/device",
    "Begin a sign-in of a command line",
    role="open",
    answer=DEVICE_LOGIN,
    body=DeviceBegin,
    errors=(404,),
)
def begin_device(body: dict[str, Any]) -> Response:
    """Begin a sign-in without a browser (RFC 8628).

    Show `user_code` and `verification_url` to the person, and poll with `device_code` every `interval_seconds`.
    """
    _require_configured()
    address = client_network(settings())
    limits.count_address(address)
    with connection() as conn:
        login = device_logins.begin(conn, device=body["device"], address=address)
    url = f"{_root()}/#/device"
    return pages.uncached(
        jsonify(
            device_code=login.device_code,
            user_code=login.user_code,
            verification_url=url,
            verification_url_complete=f"{url}?code={login.user_code}",
            interval_seconds=INTERVAL_SECONDS,
            expires_in_seconds=LIFETIME_SECONDS,
        )
    )


@bp.operation(
    "POST /v2/sign-in/device/token",
    "Get the key of a command line's sign-in",
    role="open",
    answer=DEVICE_POLL,
    body=DeviceToken,
    errors=(404,),
)
def poll_device(body: dict[str, Any]) -> Response:
    """Return the state of a sign-in, and once the API key, after a person has confirmed the code.

    `slow_down`: the client polled too early; the new interval applies from now on. `expired` also means that the device
    code is unknown or has been used.
    """
    _require_configured()
    address = client_network(settings())
    limits.count_address(address)
    with connection() as conn:
        poll = device_logins.poll(
            conn,
            body["device_code"],
            key_days=settings().oidc_key_days,
            address=client_address(settings()),
        )
    if poll.status == device_logins.EXPIRED:
        limits.count_failure(address)
    return pages.uncached(
        jsonify(
            status=poll.status,
            interval_seconds=poll.interval_seconds,
            key=poll.key,
            role=poll.role,
            name=poll.name,
            organization=poll.organization,
        )
    )


@bp.operation(
    "GET /v2/sign-in/device",
    "Get a command line's sign-in by its code",
    role="read",
    answer=PENDING_DEVICE,
    query=DeviceCode,
    errors=(404,),
)
def get_device(query: dict[str, Any]) -> Response:
    """Return which machine requests a key with this code. Only for people who have signed in."""
    _signed_in()
    with connection() as conn:
        return jsonify(_counted(lambda: device_logins.pending(conn, query["user_code"])))


@bp.operation(
    "POST /v2/sign-in/device/answer",
    "Confirm or refuse a command line's sign-in",
    role="read",
    body=DeviceAnswer,
    status=204,
    errors=(404,),
)
def answer_device(body: dict[str, Any]) -> None:
    """Give the command line with this code an API key with your role, or refuse it. Only for people who have signed in."""
    person = _signed_in()
    with connection() as conn:
        _counted(lambda: device_logins.answer(conn, person, body["user_code"], is_approved=body["approve"]))


def _signed_in() -> Caller:
    """Return the person who has signed in. Raises Forbidden for a key, which could otherwise outlive itself."""
    if caller().session is None:
        raise Forbidden("Only a person who has signed in can confirm the login of a command line")
    return caller()


def _counted(look_up: Callable[[], Any]) -> Any:
    """Return the result. After many unknown codes, even a right one is refused for a while. Raises NotFound, TooMany."""
    person = caller().key_id
    limits.require_few_failures(person)
    try:
        return look_up()
    except NotFound:
        limits.count_failure(person)
        raise
