"""The console: one page for browsers, which calls the public API and nothing else.

Why the page is open to everyone: a browser sends no key. What is served here is the same for everybody; the page's
script asks for a key once and calls the API with it, so that nothing is shown without one.

It is at `/`, and at `/o/` as well: under `runyard dev` the project's own app may have the root. Its files are
below `/o/` too, which is the control plane's at every address, under a name that changes with them: a browser
keeps them for good.
"""

from __future__ import annotations

import gzip
import hashlib
import posixpath
import re
from functools import cache
from urllib.parse import quote, urlencode

from flask import Blueprint, Response, request

from web import static_files
from web.addresses import AT_ROOT
from web.context import settings
from web.operations import operation

bp = Blueprint("console", __name__)

# No script, style or address from elsewhere, and no text that a script could turn into markup.
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types dompurify"
)
# The page that opened the console loses its window. Else that page could replace the console by one that looks like it.
# `same-origin` works in every browser, and against every page of another origin. Under `runyard dev` pages of the project's
# app have the console's origin; only the newer value works against them.
OPENER_POLICY, OPENER_POLICY_OF_DEV = "same-origin", "noopener-allow-popups"
SHELL = "console/index.html"
FILES = "%FILES%"  # in the shell: where its files are, seen from its address
IS_DEV = "%DEV%"  # whether this is `runyard dev`, where the page need not ask for a key
PRELOADS = "<!-- preloads -->"  # in the shell: what main.js cannot begin without, so that nothing waits for another's imports
PRELOAD = f'<link rel="modulepreload" href="{FILES}/{{}}">\n    '
MAIN = "console/main.js"
IMPORT = re.compile(r"""^\s*(?:import|export)\b[^"'()]*["'](\.[^"']+)["']""", re.MULTILINE)
ROOT, OWN = "", "../"  # from the shell's addresses to the service's root


@bp.get("/o/")
@operation("The console, also where a project's own app has the root", role="open", media=("text/html",))
def get_console() -> Response:
    return send_shell(root=OWN)


@bp.get("/o/static/<version>/<path:name>")
@operation("A file of the console", role="open")
def get_console_file(version: str, name: str) -> Response:
    """Kept for good under its version's name; under another's it is the newest, and asked for again."""
    is_current = version == current_version()
    return static_files.send(name, keep=static_files.FOR_GOOD if is_current else static_files.ASK_AGAIN)


@bp.get("/o/<tenant>/host/deployments/<deployment_id>")
@operation("The console's page of a deployment", role="open", status=302)
def get_deployment_page(tenant: str, deployment_id: str) -> Response:
    """Deploy commands print this address. The organization goes along, for operators, who have many."""
    to_root = "../../../" if settings().dev_deployment else "../../../../"
    query = urlencode({"organization": tenant})
    place = f"{to_root}#/deployments/{quote(deployment_id, safe='')}?{query}"
    return Response(status=302, headers={"Location": place})


def is_asked_for(deployment: str | None) -> bool:
    """Whether a request for the root is a browser's, and the root is the service's own or that of `runyard dev`."""
    if deployment is not None and not (
        AT_ROOT in request.environ and deployment == settings().dev_deployment
    ):
        return False
    return request.accept_mimetypes.best_match(["application/json", "text/html"]) == "text/html"


def send_shell(*, root: str = ROOT) -> Response:
    """The page that loads the console; its addresses are relative, since it knows no prefix it may be served under."""
    text = static_files.read(SHELL).body.decode()
    text = text.replace(PRELOADS, "".join(PRELOAD.format(name) for name in _imported(MAIN)))
    text = text.replace(FILES, f"{root}o/static/{current_version()}")
    text = text.replace(IS_DEV, "true" if settings().dev_deployment else "false")
    body = text.encode()
    etag = hashlib.sha256(body).hexdigest()[:32]
    response = static_files.respond(body, gzip.compress(body, mtime=0), "text/html", etag)
    response.headers["Content-Security-Policy"] = POLICY
    opener_policy = OPENER_POLICY_OF_DEV if settings().dev_deployment else OPENER_POLICY
    response.headers["Cross-Origin-Opener-Policy"] = opener_policy
    return response


@cache
def _imported(name: str) -> list[str]:
    """The modules that one imports, and those that these do; not what is loaded later."""
    found, left = set[str](), [name]
    while left:
        module = left.pop()
        for path in IMPORT.findall(static_files.read(module).body.decode()):
            target = posixpath.normpath(posixpath.join(posixpath.dirname(module), path))
            if target not in found:
                found.add(target)
                left.append(target)
    return sorted(found)


def current_version() -> str:
    return static_files.version("console", "vendor")
