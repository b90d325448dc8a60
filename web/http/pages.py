"""Pages for people whose browser opens an address of the API."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Callable
from hashlib import sha256
from html import escape
from http import HTTPStatus

from flask import Response, request

from shared.errors import RunyardError, TooMany
from web.http.errors import detail_of, status_of

STYLE = "body{font:1rem/1.5 system-ui;max-width:32rem;margin:20vh auto;padding:0 1rem}"
PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="robots" content="noindex"><title>{title}</title>
<meta name="viewport" content="width=device-width"><style>{style}</style></head>
<body><h1>{title}</h1>{body}</body></html>
"""
STYLE_HASH = b64encode(sha256(STYLE.encode()).digest()).decode()
PAGE_POLICY = (
    f"default-src 'none'; style-src 'sha256-{STYLE_HASH}'; base-uri 'none'; form-action {{forms}};"
    " frame-ancestors 'none'"
)


def page(title: str, text: str, *, link: tuple[str, str] | None = None) -> Response:
    """Return a page with a text. `link` is an address and its text."""
    anchor = "" if link is None else f'<p><a href="{escape(link[0])}">{escape(link[1])}</a></p>'
    return html_page(title, f"<p>{escape(text)}</p>{anchor}")


def html_page(title: str, body: str, *, has_form: bool = False) -> Response:
    """Return a page that loads nothing and does not send its address as a referrer. `body` is HTML."""
    response = Response(PAGE.format(title=escape(title), body=body, style=STYLE), mimetype="text/html")
    response.headers["Content-Security-Policy"] = PAGE_POLICY.format(forms="'self'" if has_form else "'none'")
    response.headers["Referrer-Policy"] = "no-referrer"
    return uncached(response)


def uncached(response: Response) -> Response:
    """Forbid caches to store a response."""
    response.headers["Cache-Control"] = "no-store"
    return response


def for_browser(
    respond: Callable[[], Response], title: str, *, link: tuple[str, str] | None = None
) -> Response:
    """Return the response. An error becomes a page of this title for browsers; other clients get it as JSON."""
    try:
        return respond()
    except RunyardError as error:
        status = status_of(error)
        if status == HTTPStatus.INTERNAL_SERVER_ERROR or "text/html" not in request.headers.get("Accept", ""):
            raise
        response = page(title, _sentence_of(error, status), link=link)
        response.status_code = status
        if isinstance(error, TooMany):
            response.headers["Retry-After"] = str(error.retry_after_seconds)
        return response


def _sentence_of(error: RunyardError, status: int) -> str:
    """Return the text of an error as a sentence."""
    detail = detail_of(error, status)
    if not isinstance(detail, str):
        detail = "; ".join(
            item["msg"] if item["type"] == "value_error" else f"{item['loc'][-1]}: {item['msg']}"
            for item in detail
        )
    return f"{detail[:1].upper()}{detail[1:].rstrip('.')}."
