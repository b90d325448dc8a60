"""The console: one page for browsers, which calls the public API and nothing else.

The page needs no key, because a browser sends none when it opens a page. These routes return the same to every
client. The page's script asks for a key once and calls the API with it, so nothing is shown without a key.

The console is at `/`, and at `/o/` as well, since the project's own app may have the root under `runyard dev`. Its
files are below `/o/`, a prefix that belongs to the control plane at every address. Their paths change with their
content, so a browser may cache them forever.
"""

from __future__ import annotations

import gzip
import hashlib
import posixpath
import re
from functools import cache
from urllib.parse import quote, urlencode

from flask import Response, request

from web.gate.context import address, settings
from web.http import static_files
from web.ops import guide
from web.schemas.operations import RouteGroup

bp = RouteGroup("console")

# Forbids scripts, styles and addresses from elsewhere, and scripts that turn text into markup.
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types dompurify"
)
# A page that opens the console loses access to its window. It could otherwise replace the console by a look-alike.
# `same-origin` works in every browser, and against every page of another origin. Under `runyard dev`, pages of the
# project's app share the console's origin; only the newer value works against them.
OPENER_POLICY, OPENER_POLICY_OF_DEV = "same-origin", "noopener-allow-popups"
SHELL, MAIN = "console/index.html", "console/main.js"
# The page that a link for one answer opens: shared/inbox. It never has the console's key.
ANSWER_SHELL, ANSWER_MAIN = "console/answer.html", "console/answer.js"
FILES = "%FILES%"  # placeholder in the shell: relative path of its files
IS_DEV = "%DEV%"  # placeholder in the shell: whether this is `runyard dev`, where the page needs no key
HAS_GUIDE = "%GUIDE%"  # placeholder in the shell: whether the documentation has been built
# Placeholder in the shell: all modules that its main script needs to start. Browsers then load them in parallel, instead of
# finding the imports of one module after another.
PRELOADS = "<!-- preloads -->"
PRELOAD = f'<link rel="modulepreload" href="{FILES}/{{}}">\n    '
IMPORT = re.compile(r"""^\s*(?:import|export)\b[^"'()]*["'](\.[^"']+)["']""", re.MULTILINE)
FROM_ROOT, FROM_CONSOLE = "", "../"  # relative paths from the shell's two addresses to the service's root


@bp.operation("GET /o/", "Get the console", role="open", media=("text/html",))
def get_console() -> Response:
    return send_shell(root=FROM_CONSOLE)


@bp.operation("GET /o/answer", "Get the page for one answer", role="open", media=("text/html",))
def get_answer_page() -> Response:
    """Return the page that a link to a question opens. The link's token is in the fragment, which browsers do not send."""
    return send_shell(ANSWER_SHELL, ANSWER_MAIN, root=FROM_CONSOLE)


@bp.operation("GET /o/static/<version>/<path:name>", "Get a file of the console", role="open")
def get_console_file(version: str, name: str) -> Response:
    """Return a file of the console. Under the current version a browser may cache it forever.

    Under another version, the newest file is returned, and the browser must revalidate it.
    """
    is_current = version == current_version()
    cache_control = static_files.IMMUTABLE if is_current else static_files.REVALIDATE
    return static_files.send(name, cache_control=cache_control)


@bp.operation(
    "GET /o/<tenant>/host/deployments/<deployment_id>",
    "Get the console page of a deployment",
    role="open",
    status=302,
)
def get_deployment_page(tenant: str, deployment_id: str) -> Response:
    """Redirect to the console's page of a deployment. Deploy commands print this address.

    The redirect includes the organization for operators, who have access to many.
    """
    to_root = "../../../" if settings().dev_deployment else "../../../../"
    query = urlencode({"organization": tenant})
    place = f"{to_root}#/deployments/{quote(deployment_id, safe='')}?{query}"
    return Response(status=302, headers={"Location": place})


def is_requested() -> bool:
    """Return whether a browser requests the root, and the root is the service's own or that of `runyard dev`."""
    name = address().name
    if name is not None and not (address().is_at_root and name == settings().dev_deployment):
        return False
    return request.accept_mimetypes.best_match(["application/json", "text/html"]) == "text/html"


def send_shell(shell: str = SHELL, main: str = MAIN, *, root: str = FROM_ROOT) -> Response:
    """Return a page that loads a script of the console. Its addresses are relative, since a proxy may add any prefix."""
    text = static_files.read(shell).body.decode()
    text = text.replace(PRELOADS, "".join(PRELOAD.format(name) for name in _imported(main)))
    text = text.replace(FILES, f"{root}o/static/{current_version()}")
    text = text.replace(IS_DEV, "true" if settings().dev_deployment else "false")
    text = text.replace(HAS_GUIDE, "true" if guide.is_built() else "false")
    body = text.encode()
    etag = hashlib.sha256(body).hexdigest()[:32]
    response = static_files.respond(body, gzip.compress(body, mtime=0), "text/html", etag)
    response.headers["Content-Security-Policy"] = POLICY
    opener_policy = OPENER_POLICY_OF_DEV if settings().dev_deployment else OPENER_POLICY
    response.headers["Cross-Origin-Opener-Policy"] = opener_policy
    return response


@cache
def _imported(name: str) -> list[str]:
    """Return the modules that a module imports, directly and indirectly, apart from those loaded later."""
    modules, unread = set[str](), [name]
    while unread:
        module = unread.pop()
        for path in IMPORT.findall(static_files.read(module).body.decode()):
            target = posixpath.normpath(posixpath.join(posixpath.dirname(module), path))
            if target not in modules:
                modules.add(target)
                unread.append(target)
    return sorted(modules)


def current_version() -> str:
    return static_files.version("console", "vendor")
