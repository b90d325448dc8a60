"""`/docs`: the API document as a page.

A project writes parts of a deployment's document, and RapiDoc turns Markdown and HTML in them into elements. The page
therefore treats the document as hostile:

- The page loads nothing. The viewer and the document are part of it, because a project can have a route at any address
  of its deployment.
- The policy names the viewer's script by its hash. No other script runs, not even in a frame inside the document.
- Its requests go below the deployment's address and follow no redirect, so that a key that a person types stays there.
- The page of a deployment has an opaque origin (`sandbox` without `allow-same-origin`). It can read neither the storage
  nor the windows of the console, and calls the deployment like a page of another site. The page of `runyard dev` keeps
  its origin, because the origin identifies a developer without a key.
"""

from __future__ import annotations

import re
import zlib
from base64 import b64encode
from functools import cache
from hashlib import blake2b, sha256

import orjson
from flask import Response

from web.gate.context import address, credentials
from web.http import static_files
from web.ops.api_document import document_for_request
from web.schemas.operations import RouteGroup

bp = RouteGroup("docs", switches=("disable_meta",))

SCRIPT = re.compile(rb'<script type="module">(.*)</script>', re.DOTALL)
# Text that makes the HTML parser begin or end a script, even inside a script element.
MARKUP = re.compile(rb"<(?=!--|/?script)", re.IGNORECASE)
# The viewer styles its own elements in the page, hence inline styles. Styles cannot load anything: a URL in a style
# could reveal what a person has typed.
POLICY = (
    "default-src 'none'; script-src 'sha256-{hash}'; style-src 'unsafe-inline'; img-src data:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
SANDBOX = "; sandbox allow-scripts allow-downloads allow-popups allow-popups-to-escape-sandbox"
GZIP = zlib.MAX_WBITS + 16


@bp.operation("GET /docs", "Get the API document as a web page", role="open")
def get_docs() -> Response:
    """Return the page. It asks for a key, unless the caller needs none."""
    is_developer = credentials().local_developer is not None
    rest = _rest(orjson.dumps(document_for_request()), asks_for_key=not is_developer)
    body = _head() + rest
    etag = blake2b(body, digest_size=16).hexdigest()
    response = static_files.respond(body, _compressed(rest), "text/html", etag)
    is_sandboxed = address().name is not None and not is_developer
    response.headers["Content-Security-Policy"] = _policy() + (SANDBOX if is_sandboxed else "")
    return response


@cache
def _head() -> bytes:
    """Return the page up to and including the viewer. This part is the same for every document."""
    template, _, _ = static_files.read("docs.html").body.partition(b"  <body>")
    viewer = MARKUP.sub(rb"\\x3C", static_files.read("rapidoc-min.js").body)
    return template.replace(b"%VIEWER%", viewer)


def _rest(document: bytes, *, asks_for_key: bool) -> bytes:
    """Return the page below its head, which contains the document as data."""
    _, body, template = static_files.read("docs.html").body.partition(b"  <body>")
    asks = b"true" if asks_for_key else b"false"
    data = document.replace(b"<", rb"\u003c")
    return body + template.replace(b"%AUTHENTICATION%", asks).replace(b"%DOCUMENT%", data)


@cache
def _policy() -> str:
    script = SCRIPT.search(_head())
    assert script is not None
    return POLICY.format(hash=b64encode(sha256(script[1]).digest()).decode())


def _compressed(rest: bytes) -> bytes:
    """Return the page as gzip. The head is compressed only once, since it takes ten times as long as the rest."""
    head, state = _compressed_head()
    compressor = state.copy()
    return head + compressor.compress(rest) + compressor.flush()


@cache
def _compressed_head() -> tuple[bytes, zlib._Compress]:
    compressor = zlib.compressobj(wbits=GZIP)
    return compressor.compress(_head()), compressor
