"""Components of generative UI: the HTML that loads one into a page, and the files that this HTML names.

A browser sends no key for `<script src>`, so the files are public. Their names are digests of their content, which
only an authenticated caller gets.
"""

from __future__ import annotations

import html
import json
import re
from typing import Any, ClassVar
from urllib.parse import quote

from flask import Response

from shared.deployments import components
from shared.deployments.components import DIGEST_LENGTH, Bundle
from shared.errors import NotFound
from shared.infra.postgres import connection
from web.deployment_api.user_app.proxy import refuse_script_of_console
from web.gate import limits
from web.gate.addresses import client_network
from web.gate.context import address, configured_url, settings, unchecked_deployment
from web.gate.routing import deployment_url
from web.http import static_files
from web.schemas import fields
from web.schemas.operations import RouteGroup

bp = RouteGroup("components", section="Generative UI", switches=("disable_ui",))

FILE = re.compile(rf"([0-9a-f]{{{DIGEST_LENGTH}}})\.({'|'.join(Bundle.KINDS)})")
ROOT = "{{shadowRootId}}"  # the client replaces it by the id of the element for the component
SCRIPT = '<script src="{address}" onload="{call}"></script>\n'
STYLES = '<link rel="stylesheet" href="{address}">\n'
ALL_ORIGINS = "cross-origin"


class ComponentChoice(fields.Schema):
    example: ClassVar[dict[str, Any]] = {"name": "weather"}

    name = fields.StrictString(required=True, max_length=1024)


@bp.operation(
    "POST /ui/<component_set>", "Get the HTML that loads a component", role="read", body=ComponentChoice, media=("text/html",),
    errors=(404,),
)  # fmt: skip
def get_component(component_set: str, body: dict[str, Any]) -> Response:
    """Return the HTML that loads a component of `ui` in langgraph.json and renders it in a shadow root.

    The path names a set of components, or an assistant for the set with the name of its graph.
    `LoadExternalComponent` of `@langchain/langgraph-sdk/react-ui` calls this route.
    """
    served = unchecked_deployment()
    with connection() as conn:
        files = components.files(conn, served.id, served.active_revision_id, component_set)
    if "js" not in files:
        raise NotFound(f"There are no components of the name {component_set!r}")
    root = deployment_url(served, configured_url())
    addresses = {
        kind: html.escape(f"{root}/ui/{quote(set_name, safe='')}/{digest}.{kind}")
        for kind, (set_name, digest) in files.items()
    }
    set_name, _ = files["js"]
    call = f"{components.global_name(set_name)}.render({json.dumps(body['name'])}, '{ROOT}')"
    text = SCRIPT.format(address=addresses["js"], call=html.escape(call))
    if "css" in addresses:
        text = STYLES.format(address=addresses["css"]) + text
    return Response(text, mimetype="text/html")


@bp.operation(
    "GET /ui/<component_set>/<file>", "Get a file of components", role="open", media=tuple(Bundle.KINDS.values()), errors=(404,)
)  # fmt: skip
def get_component_file(component_set: str, file: str) -> Response:
    """Return a script or styles. The file of a name never changes, and is kept as long as a revision with it."""
    refuse_script_of_console()
    limits.count_address(client_network(settings()))
    match = FILE.fullmatch(file)
    name = address().name
    if match is None or name is None:
        raise NotFound
    digest, kind = match.groups()
    with connection() as conn:
        zipped = components.compressed(conn, name, component_set, kind, digest)
    if zipped is None:
        raise NotFound
    response = static_files.respond(
        None, zipped, Bundle.KINDS[kind], digest, cache_control=static_files.IMMUTABLE
    )
    response.headers["Cross-Origin-Resource-Policy"] = ALL_ORIGINS
    return response
