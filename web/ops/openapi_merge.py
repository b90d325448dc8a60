"""Merging of a deployment's API document: the built-in routes, the app's own document, and the `auth.openapi`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from copy import deepcopy
from typing import Any

from shared.deployments.deployments import DeploymentRef

METHODS = frozenset({"get", "put", "post", "delete", "options", "head", "patch", "trace"})
Document = dict[str, Any]


def merged(built_in: Mapping[str, Any], deployment: DeploymentRef) -> Document:
    """Return the built-in document, with the project's parts taking precedence. Neither is changed."""
    found: Document = deepcopy(dict(built_in))
    app, auth = deployment.user_code.app, deployment.user_code.auth
    if auth is not None:
        _take_keys_away(found)
    if app is not None and app.openapi:
        is_guarded = auth is not None and bool(deployment.http.get("enable_custom_route_auth"))
        _add_app(found, deepcopy(dict(app.openapi)), is_open=not is_guarded)
    if auth is not None and auth.openapi:
        _add_auth(found, deepcopy(dict(auth.openapi)))
    return found


def without_switched_off(document: Mapping[str, Any], is_off: Mapping[str, bool]) -> Document:
    """Return the document without the disabled paths."""
    return {
        **document,
        "paths": {path: item for path, item in document["paths"].items() if not is_off.get(path)},
    }


def _take_keys_away(found: Document) -> None:
    """Remove platform keys from the document: users of a deployment with its own authorization need none."""
    found["security"] = []
    found.setdefault("components", {})["securitySchemes"] = {}


def _add_app(found: Document, app: Document, *, is_open: bool) -> None:
    components = found.setdefault("components", {})
    _rename_taken(app, components)
    for section, parts in (app.get("components") or {}).items():
        components.setdefault(section, {}).update(parts)
    for path, item in (app.get("paths") or {}).items():
        for operation in _operations(item):
            if is_open and "security" not in operation:
                operation["security"] = app.get("security", [])
        found["paths"][path] = {**found["paths"].get(path, {}), **item}
    known = {tag.get("name") for tag in found.get("tags", [])}
    found["tags"] = [
        *found.get("tags", []),
        *(tag for tag in app.get("tags", []) if tag.get("name") not in known),
    ]
    if app.get("info"):
        needed = {name: found["info"][name] for name in ("title", "version")}
        found["info"] = {**needed, **app["info"]}


def _add_auth(found: Document, auth: Document) -> None:
    components = found.setdefault("components", {})
    schemes = {**auth.get("securitySchemes", {}), **(auth.get("components") or {}).get("securitySchemes", {})}
    components["securitySchemes"] = {**components.get("securitySchemes", {}), **schemes}
    if "security" in auth:
        found["security"] = auth["security"]
    for path, item in (auth.get("paths") or {}).items():
        found["paths"][path] = {**found["paths"].get(path, {}), **item}


def _rename_taken(app: Document, components: Mapping[str, Any]) -> None:
    """Rename the app's components that have the name of a different built-in component."""
    renamed: dict[str, str] = {}
    for section, parts in (app.get("components") or {}).items():
        taken = components.get(section, {})
        for name in [name for name in parts if name in taken and taken[name] != parts[name]]:
            new = _free(f"App{name}", {*taken, *parts})
            renamed[f"#/components/{section}/{name}"] = f"#/components/{section}/{new}"
            parts[new] = parts.pop(name)
    if renamed:
        _point(app, renamed)


def _free(name: str, taken: set[str]) -> str:
    while name in taken:
        name += "_"
    return name


def _point(part: Any, renamed: Mapping[str, str]) -> None:
    """Update every reference in this part of a document to the new names."""
    if isinstance(part, dict):
        reference = part.get("$ref")
        if isinstance(reference, str) and reference in renamed:
            part["$ref"] = renamed[reference]
    for inner in part.values() if isinstance(part, dict) else part if isinstance(part, list) else ():
        _point(inner, renamed)


def _operations(item: Any) -> Iterator[Document]:
    for method, operation in item.items() if isinstance(item, dict) else ():
        if method.lower() in METHODS and isinstance(operation, dict):
            yield operation
