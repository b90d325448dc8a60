"""`/openapi.json`: the API document of the service, or of one deployment at its own address."""

from __future__ import annotations

from typing import Any

import orjson
from flask import Response, current_app

from shared import assistants
from shared.deployments.deployments import NO_USER_CODE, DeploymentRef
from shared.infra.postgres import connection
from shared.records import OBJECT
from web.gate import deployments
from web.gate.context import address, context, credentials
from web.gate.routing import has_disabled
from web.ops import openapi_merge
from web.schemas.openapi import document, paths
from web.schemas.openapi_examples import with_graph
from web.schemas.operations import JSON, RouteGroup

bp = RouteGroup("openapi", section="Service", switches=("disable_meta",))


@bp.operation("GET /openapi.json", "Get the OpenAPI document", role="open", answer=OBJECT, errors=(404, 503))
def get_openapi() -> Response:
    """Return the OpenAPI 3.1 description of the service, or of one deployment."""
    return Response(orjson.dumps(document_for_request()), mimetype=JSON)


def document_for_request() -> dict[str, Any]:
    """Return the document at the address of the current request, for its caller."""
    known: dict[bool, dict[str, Any]] = current_app.extensions.setdefault("runyard_openapi", {})
    name, authorization = address().name, context().authorization
    of_deployment = name is not None
    if of_deployment not in known:  # the routes of an app never change: generated once
        known[of_deployment] = document(current_app, of_deployment=of_deployment)
    described = dict(known[of_deployment])
    if name is not None:
        described["info"] = {**described["info"], "title": f"runyard: {name}"}
        described = _for_caller(described, name)
    deployment = None if authorization is None else authorization.unchecked_deployment
    if deployment is not None and (deployment.http or deployment.user_code is not NO_USER_CODE):
        described = openapi_merge.merged(_without_disabled(described, deployment), deployment)
    described["servers"] = [{"url": address().root_path or "/"}]
    return described


def _without_disabled(document: dict[str, Any], deployment: DeploymentRef) -> dict[str, Any]:
    """Return the document without the interfaces that the deployment has disabled."""
    is_off = {path: has_disabled(deployment, rule) for path, rule in paths(current_app, True)}
    return openapi_merge.without_switched_off(document, is_off)


def _for_caller(document: dict[str, Any], name: str) -> dict[str, Any]:
    """Return the document with a graph of the deployment in its examples, if the caller may read the deployment.

    A developer at their own machine needs no key, and the document asks for none.
    """
    if credentials().local_developer is not None:
        components = {
            part: content for part, content in document["components"].items() if part != "securitySchemes"
        }
        document = {**document, "components": components, "security": []}
    holder = credentials().holder
    serving = None if holder is None else deployments.of_organization(holder.organization_id, name)
    if serving is None:
        return document
    with connection() as conn:
        known = assistants.graph_ids(conn, serving)
        if not known:
            return document
        schemas = assistants.graph(conn, serving, known[0])["schemas"]
    return with_graph(document, known[0], schemas.get("input_schema"))
