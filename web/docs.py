"""`/docs`: the API document as a page. Its viewer is served from here, so it works without the internet."""

from __future__ import annotations

from flask import Blueprint, Response

from web import static_files
from web.developer import developer
from web.operations import operation

bp = Blueprint("docs", __name__)

ASKS_FOR_KEY, ASKS_FOR_NONE = (f'allow-authentication="{asks}"' for asks in ("true", "false"))

# The viewer styles its own elements in the page, hence inline styles; scripts come from files alone.
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data:; "
    "connect-src 'self'; font-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)


@bp.get("/docs")
@operation("The API document as a page", role="open")
def get_docs(deployment: str | None = None) -> Response:
    """Whoever needs no key is not asked for one."""
    if developer() is None:
        return send_page("docs.html")
    page = static_files.read("docs.html").body.decode().replace(ASKS_FOR_KEY, ASKS_FOR_NONE)
    return Response(page, mimetype="text/html", headers={"Content-Security-Policy": POLICY})


@bp.get("/static/<path:name>")
@operation("A file of our pages", role="open")
def get_static(name: str, deployment: str | None = None) -> Response:
    return static_files.send(name)


def send_page(name: str) -> Response:
    """A page of ours, whose addresses are relative: it knows no prefix it may be served under."""
    response = static_files.send(name)
    response.headers["Content-Security-Policy"] = POLICY
    return response
