"""The documentation as a site: the files that `make docs-site` builds into `web/static/guide`.

It is below `/o/`, a prefix that belongs to the control plane at every address, also where the project's own app has the
root. A service whose installation has not built the site answers 404 and says how to build it.
"""

from __future__ import annotations

import re
from base64 import b64encode
from functools import cache
from hashlib import sha256

from flask import Response

from shared.errors import NotFound
from web.http import static_files
from web.schemas.operations import RouteGroup

bp = RouteGroup("guide")

INDEX = "guide/index.html"
NOT_BUILT = (
    "The documentation is not part of this installation. `make docs-site` in a clone builds it; its pages are also in"
    " the folder docs/ of the repository."
)
# The pages load nothing from elsewhere. A search runs in a worker. The theme has inline styles and scripts; each
# script is named by its hash.
POLICY = (
    "default-src 'none'; script-src 'self' {hashes}; style-src 'self' 'unsafe-inline'; img-src 'self' data:;"
    " font-src 'self'; connect-src 'self'; worker-src 'self'; base-uri 'none'; form-action 'none';"
    " frame-ancestors 'none'"
)
INLINE_SCRIPT = re.compile(rb"<script>(.*?)</script>", re.DOTALL)


def is_built() -> bool:
    return (static_files.STATIC / INDEX).is_file()


@bp.operation("GET /o/guide/", "Get the documentation", role="open", media=("text/html",))
def get_guide() -> Response:
    return get_guide_page("index.html")


@bp.operation("GET /o/guide/<path:name>", "Get a page or a file of the documentation", role="open")
def get_guide_page(name: str) -> Response:
    if not is_built():
        raise NotFound(NOT_BUILT)
    response = static_files.send(f"guide/{name}")
    if response.mimetype == "text/html":
        file = static_files.read(f"guide/{name}")
        response.headers["Content-Security-Policy"] = _policy(file.body)
    return response


@cache
def _policy(page: bytes) -> str:
    hashes = [b64encode(sha256(script).digest()).decode() for script in INLINE_SCRIPT.findall(page)]
    return POLICY.format(hashes=" ".join(f"'sha256-{value}'" for value in hashes))
