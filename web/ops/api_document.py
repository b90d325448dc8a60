"""`/openapi.json`: the API document of the service, or of one deployment at its own address.

The document of a deployment merges the built-in routes, the app's own document, and the `auth.openapi`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from copy import deepcopy
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
    cache: dict[bool, dict[str, Any]] = current_app.extensions.setdefault("runyard_openapi", {})
    name, authorization = address().name, context().authorization
    of_deployment = name is not None
    if of_deployment not in cache:  # the built-in routes never change
        cache[of_deployment] = document(current_app, of_deployment=of_deployment)
    described = dict(cache[of_deployment])
    if name is not None:
        described["info"] = {**described["info"], "title": f"runyard: {name}"}
        described = _for_caller(described, name)
    deployment = None if authorization is None else authorization.unchecked_deployment
    if deployment is not None and (deployment.http or deployment.user_code is not NO_USER_CODE):
        described = merge_project(_without_disabled(described, deployment), deployment)
    described["servers"] = [{"url": address().root_path or "/"}]
    return described


def _without_disabled(document: dict[str, Any], deployment: DeploymentRef) -> dict[str, Any]:
    """Return the document without the interfaces that the deployment has disabled."""
    disabled = {path for path, rule in paths(current_app, True) if has_disabled(deployment, rule)}
    return {
        **document,
        "paths": {path: item for path, item in document["paths"].items() if path not in disabled},
    }


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
        graph_ids = assistants.graph_ids(conn, serving)
        if not graph_ids:
            return document
        schemas = assistants.graph(conn, serving, graph_ids[0])["schemas"]
    return with_graph(document, graph_ids[0], schemas.get("input_schema"))


METHODS = frozenset({"get", "put", "post", "delete", "options", "head", "patch", "trace"})
Document = dict[str, Any]


def merge_project(built_in: Mapping[str, Any], deployment: DeploymentRef) -> Document:
    """Return the built-in document, with the project's parts taking precedence. Neither is changed."""
    document: Document = deepcopy(dict(built_in))
    app, auth = deployment.user_code.app, deployment.user_code.auth
    if auth is not None:
        _remove_keys(document)
    if app is not None and app.openapi:
        is_guarded = auth is not None and bool(deployment.http.get("enable_custom_route_auth"))
        _add_app(document, deepcopy(dict(app.openapi)), is_open=not is_guarded)
    if auth is not None and auth.openapi:
        _add_auth(document, deepcopy(dict(auth.openapi)))
    return document


def _remove_keys(document: Document) -> None:
    """Remove platform keys from the document: users of a deployment with its own authorization need none."""
    document["security"] = []
    document.setdefault("components", {})["securitySchemes"] = {}


def _add_app(document: Document, app: Document, *, is_open: bool) -> None:
    components = document.setdefault("components", {})
    _rename_conflicting(app, components)
    for section, parts in (app.get("components") or {}).items():
        components.setdefault(section, {}).update(parts)
    for path, item in (app.get("paths") or {}).items():
        for operation in _operations(item):
            if is_open and "security" not in operation:
                operation["security"] = app.get("security", [])
        document["paths"][path] = {**document["paths"].get(path, {}), **item}
    known = {tag.get("name") for tag in document.get("tags", [])}
    document["tags"] = [
        *document.get("tags", []),
        *(tag for tag in app.get("tags", []) if tag.get("name") not in known),
    ]
    if app.get("info"):
        needed = {name: document["info"][name] for name in ("title", "version")}
        document["info"] = {**needed, **app["info"]}


def _add_auth(document: Document, auth: Document) -> None:
    components = document.setdefault("components", {})
    schemes = {**auth.get("securitySchemes", {}), **(auth.get("components") or {}).get("securitySchemes", {})}
    components["securitySchemes"] = {**components.get("securitySchemes", {}), **schemes}
    if "security" in auth:
        document["security"] = auth["security"]
    for path, item in (auth.get("paths") or {}).items():
        document["paths"][path] = {**document["paths"].get(path, {}), **item}


def _rename_conflicting(app: Document, components: Mapping[str, Any]) -> None:
    """Rename the app's components that have the name of a different built-in component."""
    renamed: dict[str, str] = {}
    for section, parts in (app.get("components") or {}).items():
        existing = components.get(section, {})
        for name in [name for name in parts if name in existing and existing[name] != parts[name]]:
            new = _unused_name(f"App{name}", {*existing, *parts})
            renamed[f"#/components/{section}/{name}"] = f"#/components/{section}/{new}"
            parts[new] = parts.pop(name)
    if renamed:
        _update_references(app, renamed)


def _unused_name(name: str, used: set[str]) -> str:
    while name in used:
        name += "_"
    return name


def _update_references(part: Any, renamed: Mapping[str, str]) -> None:
    """Update every reference in this part of a document to the new names."""
    if isinstance(part, dict):
        reference = part.get("$ref")
        if isinstance(reference, str) and reference in renamed:
            part["$ref"] = renamed[reference]
    for inner in part.values() if isinstance(part, dict) else part if isinstance(part, list) else ():
        _update_references(inner, renamed)


def _operations(item: Any) -> Iterator[Document]:
    for method, operation in item.items() if isinstance(item, dict) else ():
        if method.lower() in METHODS and isinstance(operation, dict):
            yield operation
