"""Inspection of a revision's code: a graph host loads it once, and describes its graphs, authorization and app.

User code runs in that host and may have sent its own description. It can affect only its own deployment, so only shapes
and sizes are checked: the service must be able to read the description later. A description is reused while the
environment and the variables have not changed.
"""

from __future__ import annotations

import functools
import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import NoneType
from typing import Any
from uuid import UUID

import gevent
import orjson
from sqlalchemy import Connection, text

from shared.deployments import secrets
from shared.deployments.user_code import ANY
from shared.errors import BuildFailed, HostUnusable
from shared.infra.encryption import Undecryptable
from shared.infra.json_text import document_holds_nul
from shared.infra.postgres import dumps
from shared.settings import Settings
from shared.sql import statement
from workers.builder import built_in_routes
from workers.builder.config import fields
from workers.builder.config.fields import refused
from workers.builder.config.manifest import Manifest
from workers.builder.config.schema import Cors
from workers.builder.environments import Environment
from workers.builder.host_command import GRAPH_HOST, NODE_HOST, host_command
from workers.builder.node import reasons, typed_states
from workers.builder.steps import WriteLine
from workers.runner.host import Host

STEP = "graphs"
WATCH_SECONDS = 0.5
PARTS = ("description", "drawings", "schemas", "subgraphs")  # of a graph's description
ACTIONS = {
    "threads": "create read update delete search create_run".split(),
    "assistants": "create read update delete search".split(),
    "crons": "create read update delete search".split(),
    "store": "put get search delete list_namespaces".split(),
}
KNOWN_RESOURCES = frozenset({ANY, *ACTIONS})
KNOWN_ACTIONS = frozenset({ANY}.union(*ACTIONS.values()))
KINDS = ("http", "websocket", "mount")
METHOD = re.compile(r"[A-Z]{1,20}")
VERSION = re.compile(r"[0-9A-Za-z.+-]{1,50}")
MAX_NAMES = 100
MAX_NAME = 200
MAX_ROUTES = 1000
MAX_PATH = 500
MAX_PARAMETERS = 10  # of a route's path, which is converted to a regular expression
MAX_OPENAPI_BYTES = 1024 * 1024
SHOWN_ROUTES = 20
CORS_LISTS = ("allow_origins", "allow_methods", "allow_headers", "expose_headers")

Graphs = Mapping[str, dict[str, Any]]


_INSPECTED = statement("builds.inspected")
DESCRIPTIONS = text(
    "SELECT graph_id, description, drawings, schemas, subgraphs FROM graph WHERE revision_id = :id"
)


class InvalidDescription(Exception):
    """The host has sent an invalid description."""


@dataclass(frozen=True)
class Inspected:
    """The description of a project's code."""

    graphs: Graphs
    user_code: Mapping[str, Any] | None = None  # the document that `shared.deployments.user_code` reads
    http: Mapping[str, Any] = field(default_factory=dict)  # `http` of langgraph.json, completed by the app
    langgraph_version: str | None = None


def inspect(
    settings: Settings,
    revision_id: UUID,
    environment: Environment,
    variables: Mapping[str, str],
    write_line: WriteLine,
) -> Inspected:
    """Load the project's code once, in a graph host, and describe it. Raises BuildFailed."""
    write_line("INFO", f"loading {_listed(environment.manifest)}")
    command = host_command(settings, environment, variables, inspect=True)
    here = f"{environment.workspace.project}/"  # removed from messages, so that paths are relative to the project

    def write_output(level: str, message: str, _: UUID | None) -> None:
        write_line(level, message.replace(here, ""))

    try:
        host = Host(revision_id, command, settings, write_output)
    except HostUnusable as error:
        raise BuildFailed(STEP, error.message) from error
    watcher = gevent.spawn(_watch, host)
    try:
        answer = host.wait_ready()
        inspected = Inspected(
            describe_graphs(answer, environment.manifest.graphs),
            describe_user_code(answer, environment.manifest, write_line),
            effective_http(answer, environment.manifest),
            langgraph_version(answer),
        )
    except HostUnusable as error:
        has_died = error.message == host.died  # before it could report a reason
        reason = f"the process that loads them {error.message}" if has_died else error.message
        if environment.node is not None:
            reason = reasons.of_loading(reason)
        raise BuildFailed(STEP, reason.replace(here, "")) from error
    finally:
        watcher.kill()
        host.kill("its graphs have been inspected")
        host.wait_output()
    if environment.node is not None:
        typed_states.add_types(settings, environment, inspected.graphs, write_line)
    for graph_id, graph in inspected.graphs.items():
        if graph.get("error"):
            write_line("WARNING", f"graph {graph_id!r}: {graph['error']}".replace(here, ""))
    return inspected


def _listed(manifest: Manifest) -> str:
    count = len(manifest.graphs)
    parts = [f"{count} graph{'' if count == 1 else 's'}"]
    parts += ["the project's authorization"] if manifest.auth else []
    parts += ["its app"] if manifest.has_app else []
    return " and ".join(part for part in (", ".join(parts[:-1]), parts[-1]) if part)


def _watch(host: Host) -> None:
    """Measure the host until it ends. `measure` kills a host that exceeds its limits."""
    while host.died is None:
        host.measure()
        gevent.sleep(WATCH_SECONDS)


@functools.cache
def inspector() -> str:
    """Return a digest of the code that inspects projects, since another version may describe them differently."""
    code = hashlib.sha256()
    here = Path(__file__)
    hosts = (*sorted(GRAPH_HOST.rglob("*.py")), *sorted(NODE_HOST.rglob("*.mjs")))
    for path in (
        *hosts,
        here,
        *sorted(here.parent.glob("config/*.py")),
        *sorted(here.parent.glob("node/typed_states.*")),
    ):
        code.update(path.read_bytes())
    return code.hexdigest()[:16]


def describe_graphs(answer: Mapping[str, Any], configured: Mapping[str, Any]) -> Graphs:
    """Return the host's description of the graphs after validation. Raises BuildFailed."""
    graphs = answer.get("graphs")
    try:
        if not isinstance(graphs, dict) or graphs.keys() != configured.keys():
            raise TypeError("not the graphs of the configuration")
        for graph in graphs.values():
            if not isinstance(graph["description"], str | None):
                raise TypeError("a description that is no text")
            if not all(isinstance(graph[name], dict) for name in ("drawings", "schemas", "subgraphs")):
                raise TypeError("a description without its parts")
        if document_holds_nul(dumps(graphs)):
            raise TypeError("a NUL character in a schema or description")
    except (KeyError, TypeError) as error:
        raise BuildFailed(STEP, f"the graphs could not be described: {error}") from error
    return graphs


def describe_user_code(
    answer: Mapping[str, Any], manifest: Manifest, write_line: WriteLine
) -> dict[str, Any] | None:
    """Return the revision's `user_code` document; None if the project has none. Raises BuildFailed."""
    described = answer.get("user_code") or {}
    try:
        if not isinstance(described, dict):
            raise InvalidDescription("it is no object")
        auth = _auth(_part(described, "auth", bool(manifest.auth)), manifest.auth, write_line)
        app = _app(_part(described, "app", manifest.has_app), write_line)
        document = {"auth": auth, "app": app}
        if document_holds_nul(dumps(document)):
            raise InvalidDescription("it has a NUL character")
    except (InvalidDescription, orjson.JSONEncodeError) as error:
        raise BuildFailed(STEP, f"the authorization and the app could not be described: {error}") from error
    if app is not None:
        app["routes"] += _scoped(described["app"]["middleware"], manifest.http)
        _warn_of_covered(app, manifest, write_line)
    return None if auth is None and app is None else document


def effective_http(answer: Mapping[str, Any], manifest: Manifest) -> dict[str, Any]:
    """Return the deployment's `http` configuration. Without `cors` in it, uses the app's CORS settings.

    Raises BuildFailed.
    """
    app = (answer.get("user_code") or {}).get("app") or {}
    if "cors" in manifest.http or not app.get("cors"):
        return dict(manifest.http)
    # Starlette also accepts a string where a sequence is expected.
    options = {
        name: [value] if isinstance(value, str) and name in CORS_LISTS else value
        for name, value in app["cors"].items()
    }
    return {**manifest.http, "cors": fields.load(Cors(), options, "http.app: CORSMiddleware")}


def langgraph_version(answer: Mapping[str, Any]) -> str | None:
    """Return the version of LangGraph that the host has loaded; None if it is no version."""
    versions = answer.get("versions")
    version = versions.get("langgraph") if isinstance(versions, dict) else None
    return version if isinstance(version, str) and VERSION.fullmatch(version) else None


def _part(described: Mapping[str, Any], name: str, is_configured: bool) -> dict[str, Any] | None:
    part = described.get(name)
    if not isinstance(part, dict if is_configured else NoneType):
        raise InvalidDescription(f"{name!r} is {'missing' if is_configured else 'not of the configuration'}")
    return part


def _auth(
    part: Mapping[str, Any] | None, config: Mapping[str, Any], write_line: WriteLine
) -> dict[str, Any] | None:
    if part is None:
        return None
    handlers = part.get("handlers")
    if not isinstance(handlers, list) or len(handlers) > MAX_NAMES or not all(map(_is_pair, handlers)):
        raise InvalidDescription("its handlers are no pairs of resource and action")
    known: list[list[str]] = []
    for resource, action in handlers:
        if resource in KNOWN_RESOURCES and action in KNOWN_ACTIONS:
            known.append([resource, action])
        else:
            write_line(
                "WARNING",
                f"auth: the handler of {resource!r}, {action!r} is never called: there is no such action",
            )
    settings = {name: value for name, value in config.items() if name != "path"}
    return {"parameters": _names(part, "parameters"), "handlers": known, **settings}


def _app(part: Mapping[str, Any] | None, write_line: WriteLine) -> dict[str, Any] | None:
    if part is None:
        return None
    routes, openapi = part.get("routes"), part.get("openapi")
    if not isinstance(routes, list) or len(routes) > MAX_ROUTES:
        raise InvalidDescription(f"its routes are no array of at most {MAX_ROUTES}")
    if not isinstance(openapi, dict | None):
        raise InvalidDescription("its OpenAPI document is no object")
    middleware = part.get("middleware")
    if not isinstance(middleware, list) or len(middleware) > MAX_NAMES or not all(map(_is_pair, middleware)):
        raise InvalidDescription("its middleware are no pairs of name and path")
    if not isinstance(part.get("cors"), dict | None):
        raise InvalidDescription("its CORS settings are no object")
    if openapi is not None and len(orjson.dumps(openapi)) > MAX_OPENAPI_BYTES:
        size = MAX_OPENAPI_BYTES // 1024
        write_line("WARNING", f"http.app: its OpenAPI document is larger than {size} KiB and is left out")
        openapi = None
    return {"routes": [_route(route) for route in routes], "openapi": openapi}


def _route(route: Any) -> dict[str, Any]:
    if not isinstance(route, dict) or route.get("kind") not in KINDS:
        raise InvalidDescription("a route of an unknown kind")
    path, methods = route.get("path"), route.get("methods")
    is_mount = route["kind"] == "mount"
    if not isinstance(path, str) or len(path) > MAX_PATH or not (path.startswith("/") or is_mount):
        raise InvalidDescription(f"a route's path is not valid: {str(path)[:MAX_NAME]!r}")
    if path.count("{") > MAX_PARAMETERS or path.count(":path}") > 1:
        raise InvalidDescription(f"a route has too many parameters: {path!r}")
    if not isinstance(methods, list) or not all(isinstance(m, str) and METHOD.fullmatch(m) for m in methods):
        raise InvalidDescription(f"a route's methods are not valid: {path!r}")
    return {"path": path, "methods": sorted(set(methods)), "kind": route["kind"]}


def _names(part: Mapping[str, Any], name: str) -> list[str]:
    names = part.get(name)
    if not isinstance(names, list) or len(names) > MAX_NAMES or not all(map(_is_name, names)):
        raise InvalidDescription(f"its {name} are no array of names")
    return names


def _is_name(value: Any) -> bool:
    return isinstance(value, str) and 0 < len(value) <= MAX_NAME


def _is_pair(value: Any) -> bool:
    return isinstance(value, list) and len(value) == 2 and all(map(_is_name, value))


def _scoped(middleware: Sequence[Sequence[str]], config: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the paths below which the app has middleware of its own as routes, since middleware may answer requests.

    Raises BuildFailed if middleware is for built-in routes, too, and the configuration does not limit it to the app's
    own routes. It cannot run for built-in routes, and a guard that silently skips most requests is worse than a failed
    build.
    """
    wide = [
        name for name, path in middleware if "mount_prefix" in config or built_in_routes.may_match_below(path)
    ]
    if wide and "middleware_scope" not in config:
        raise refused(
            f"http.app: its middleware ({', '.join(dict.fromkeys(wide))}) cannot stand around the built-in routes here, which"
            " are answered without user code. If it is meant for the app's own routes alone, say so with"
            ' "http": {"middleware_scope": "custom_routes"}; what guards the built-in ones belongs into `auth`',
        )
    paths = dict.fromkeys(path for _, path in middleware if not built_in_routes.may_match_below(path))
    return [_route({"path": path, "methods": [], "kind": "mount"}) for path in paths]


def _warn_of_covered(app: Mapping[str, Any], manifest: Manifest, write_line: WriteLine) -> None:
    if not manifest.auth or manifest.http.get("enable_custom_route_auth"):
        return
    covered = built_in_routes.covering(app["routes"])
    if covered:
        more = "" if len(covered) <= SHOWN_ROUTES else f" and {len(covered) - SHOWN_ROUTES} more"
        write_line(
            "WARNING",
            "http.app: these routes stand in the place of built-in ones and are open to everybody, since"
            f" http.enable_custom_route_auth is not set: {', '.join(covered[:SHOWN_ROUTES])}{more}",
        )


def earlier_inspection(
    conn: Connection, deployment_id: UUID, revision_id: UUID, build_id: UUID, variables: Mapping[str, str]
) -> Inspected | None:
    """Return the description from an earlier inspection of the same build with the same variables; None if there is none."""
    inspected = _INSPECTED.rows(
        conn, deployment_id=deployment_id, id=revision_id, build_id=build_id, inspector=inspector()
    )
    for row in inspected:
        if not _has_variables(conn, row["id"], variables):
            continue
        if described := conn.execute(DESCRIPTIONS, {"id": row["id"]}).mappings().all():
            graphs = {graph["graph_id"]: {name: graph[name] for name in PARTS} for graph in described}
            return Inspected(graphs, row["user_code"], row["http"] or {}, row["langgraph_version"])
    return None


def _has_variables(conn: Connection, revision_id: UUID, variables: Mapping[str, str]) -> bool:
    try:
        return secrets.secrets_of(conn, revision_id) == variables
    except Undecryptable:
        return False
