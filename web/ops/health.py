"""`/ok`, `/info` and `/metrics`: health of the service, its version, and figures of queues and requests.

These routes need no key. With a key, the routes of a deployment also return data that only its organization may see.
Under the name of a deployment that does not exist they answer 404.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from uuid import UUID

from cachetools import TTLCache
from flask import Flask, Response, current_app, jsonify
from prometheus_client import CollectorRegistry, generate_latest
from sqlalchemy import text

from shared import __version__, fleet
from shared.access.api_keys import OPERATOR, Caller
from shared.deployments import deployments
from shared.deployments.deployments import DeploymentRef
from shared.errors import NotFound, Unavailable
from shared.infra import database_version
from shared.infra.postgres import Row, connection
from shared.infra.writes import WriteCheck
from shared.models import RunStatus
from shared.records import BOOLEAN, OBJECT, TEXT, TEXT_OR_NULL, mapped, record
from web.gate.callers import identify_if_known
from web.gate.context import address, context, credentials, settings
from web.gate.observation import Traffic
from web.ops import console
from web.ops.collectors import (
    QueueFigure,
    QueueMetrics,
    RunMetrics,
    queue_figures,
    server_metrics,
    visible_totals,
)
from web.schemas import fields
from web.schemas.operations import RouteGroup

bp = RouteGroup("health", section="Service", switches=("disable_meta",))


# Features that clients may rely on. A new feature adds its flag.
FLAGS = {"assistants": True, "crons": True, "store": True, "strict_resume": True, "stream_namespaces": True}
SANDBOX = 2  # the isolation level at which user code has temporary folders of its own
# Figures are cached for each deployment and each view of a caller.
CACHE_SECONDS, CACHE_SIZE = 1.0, 1_000
METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"

REFUSALS = (401, 403, 404, 429, 503)  # no key is needed, but one that is sent must be known

UP = record("Up", ok=BOOLEAN, services=OBJECT)
INFO = record(
    "Info",
    version=TEXT,
    langgraph_py_version=TEXT_OR_NULL,
    langgraph_js_version=TEXT_OR_NULL,
    flags=mapped(BOOLEAN),
    host=OBJECT,
    metadata=OBJECT,
)
FIGURES = record("Figures", queue=OBJECT, workers=OBJECT, api=OBJECT)


def start(app: Flask) -> None:
    """Start with an empty cache of figures, and without a check of the database."""
    app.extensions["runyard_figures"] = TTLCache(CACHE_SIZE, CACHE_SECONDS)
    app.extensions["runyard_writes"] = WriteCheck()


class OkQuery(fields.Schema):
    check_db = fields.QueryBoolean(load_default=False)
    ready = fields.QueryBoolean(load_default=False)


class MetricsQuery(fields.Schema):
    format = fields.OneOf("prometheus", "json", load_default="prometheus")


@bp.operation(
    "GET /",
    "Check that the service is up, or get the console in a browser",
    role="open",
    query=OkQuery,
    answer=UP,
    media=("application/json", "text/html"),
    errors=(404, 503),
    strict_slashes=False,
)
def get_root(query: dict[str, Any]) -> Response:
    """Return the console to browsers, at the root of the service and of `runyard dev`. Otherwise answer like `/ok`."""
    response = console.send_shell() if console.is_requested() else get_ok(query)
    response.vary.add("Accept")
    return response


@bp.operation(
    "GET /ok", "Check that the service is up", role="open", query=OkQuery, answer=UP, errors=(404, 503)
)
def get_ok(query: dict[str, Any]) -> Response:
    """Check that the service is up. With `check_db=1` the database must answer too.

    With `ready=1` the database must also have the tables of this release and accept writes. Redis is not checked, since
    the service answers requests and creates runs without it.
    """
    if query["check_db"] or query["ready"]:
        with connection() as conn:
            conn.execute(text("SELECT 1"))
            if query["ready"] and not database_version.is_current(conn):
                raise Unavailable("the database lacks tables of this release: run its migrations")
        if query["ready"]:
            writes: WriteCheck = current_app.extensions["runyard_writes"]
            writes.require()
    return jsonify(ok=True, services={})


@bp.operation(
    "GET /info", "Get the version and features of the service", role="open", answer=INFO, errors=REFUSALS
)
def get_info() -> Response:
    """Return the version and features of the service.

    With a key, `host` also holds the isolation of user code. At a deployment's address, the answer then also holds its
    ids and the version of its graph library.
    """
    host: dict[str, Any] = {"kind": "self-hosted"}
    libraries = dict.fromkeys(LIBRARIES.values())
    if _caller_if_known() is not None:
        with connection() as conn:
            host |= _isolation(fleet.weakest(conn))
    serving = _deployment()
    if serving is not None:
        host |= {
            "project_id": serving.id,
            "tenant_id": serving.organization_id,
            "revision_id": serving.active_revision_id,
            "host_revision_id": serving.active_revision_id,
        }
        with connection() as conn:
            row = conn.execute(LIBRARY, {"id": serving.active_revision_id}).one_or_none()
        if row is not None:
            libraries[LIBRARIES[row.language]] = row.version or _pinned(row.requirements, "langgraph")
    return jsonify(version=__version__, **libraries, flags=FLAGS, host=host, metadata=host)


def _isolation(weakest: fleet.Weakest) -> dict[str, Any]:
    """Return the isolation level, and what enforces each limit: the kernel, counting by the service, or nothing.

    `home` limits the content of a revision's home folder, `temporary` that of a graph host's `/tmp` and `/dev/shm`.
    """
    if weakest.isolation is None:
        return {"isolation": None}
    bounds = {"processes": weakest.bounds_tasks, "memory": weakest.bounds_memory}
    limits = {name: "kernel" if by_kernel else "counted" for name, by_kernel in bounds.items()}
    limits |= {"home": "counted", "temporary": "kernel" if weakest.isolation >= SANDBOX else "none"}
    return {"isolation": weakest.isolation, "limits": limits, "home_mb": settings().host_home_mb}


@bp.operation(
    "GET /metrics",
    "Get queue, worker and request figures for Prometheus",
    role="open",
    slow=True,
    query=MetricsQuery,
    answer=FIGURES,
    media=("text/plain", "application/json"),
    errors=REFUSALS,
)
def get_metrics(query: dict[str, Any]) -> Response:
    """Return figures of queues, workers and requests. With a key, also the figures of its organization's deployments.

    With an operator's key, also the figures of servers, webhooks, upkeep and backups. `format=json` returns sums of
    queue, workers and requests. At a deployment's address, with a key, the queue is the deployment's own.
    """
    serving = _deployment()
    deployment_id = None if serving is None else serving.id
    figures, workers = _queue_and_worker_figures(deployment_id)
    traffic: Traffic = current_app.extensions["runyard_traffic"]
    if query["format"] == "json":
        return jsonify(queue=_totals(figures), workers=_capacity(workers), api=traffic.totals())
    registry = CollectorRegistry()
    registry.register(QueueMetrics(figures, workers))
    registry.register(traffic)
    caller = _caller_if_known()
    registry.register(RunMetrics(visible_totals(caller, deployment_id)))
    if caller is not None and caller.may(OPERATOR):
        registry.register(server_metrics())
    return Response(generate_latest(registry), content_type=METRICS_TYPE)


def _queue_and_worker_figures(deployment_id: UUID | None) -> tuple[list[QueueFigure], list[dict[str, Any]]]:
    """Return the figures of queues and workers. They are cached briefly, since these requests are not rate-limited."""
    cache = current_app.extensions["runyard_figures"]
    figures = cache.get(deployment_id)
    if figures is None:
        with connection() as conn:
            figures = cache[deployment_id] = queue_figures(conn, deployment_id), fleet.counted(conn)
    return figures


def _totals(figures: Sequence[QueueFigure]) -> dict[str, Any]:
    """Return the sums over all pools. The median is the longest median of a pool."""
    waiting = [row for row in figures if row.status == RunStatus.PENDING]
    return {
        "n_pending": sum(row.runs for row in waiting),
        "n_running": sum(row.runs for row in figures if row.status == RunStatus.RUNNING),
        "pending_runs_wait_time_max_secs": max((row.oldest_seconds for row in waiting), default=0.0),
        "pending_runs_wait_time_med_secs": max((row.median_seconds for row in waiting), default=0.0),
        "pending_unblocked_runs_wait_time_max_secs": max(
            (row.oldest_unblocked_seconds for row in waiting), default=0.0
        ),
    }


def _capacity(workers: Sequence[Row]) -> dict[str, int]:
    """Return the slots of all runners, in the form that clients of the protocol know."""
    runners = [row for row in workers if row["kind"] == "runner"]
    return {
        "max": sum(row["slots"] for row in runners if row["state"] == fleet.READY),
        "active": sum(row["running"] for row in runners),
        "available": sum(row["available"] for row in runners),
    }


# The fields of an answer for the version of the graph library, by the language of a revision.
LIBRARIES = {"python": "langgraph_py_version", "javascript": "langgraph_js_version"}
LIBRARY = text(
    "SELECT requirements, coalesce(manifest ->> 'language', 'python') AS language,"
    " manifest ->> 'langgraph_version' AS version FROM revision WHERE id = :id"
)


def _caller_if_known() -> Caller | None:
    """Return the caller if a platform key identifies it, else None. Raises an error for a refused key."""
    authorization = context().authorization
    return identify_if_known(
        credentials(), None if authorization is None else authorization.unchecked_deployment
    )


def _deployment() -> DeploymentRef | None:
    """Return the deployment at this address. None at the root, and for a caller without a key. Raises NotFound."""
    name = address().name
    caller = None if name is None else _caller_if_known()
    if caller is None or name is None:
        return None
    with connection() as conn:
        deployment = deployments.resolve(conn, caller.organization_id, name)
    if deployment is None:
        raise NotFound()
    return deployment


def _pinned(requirements: str | None, package: str) -> str | None:
    """Return the version of a package in resolved `name==version` lines, or None."""
    for line in (requirements or "").splitlines():
        name, _, version = line.partition("==")
        if name.strip() == package:
            return version.split()[0].rstrip("\\") if version.split() else None
    return None
