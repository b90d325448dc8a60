"""Is it up, which version, how much waits: `/ok`, `/info`, `/metrics`, also at a deployment's address.

They answer without a key. With one, a deployment's address also tells what only its organization may know.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from flask import Blueprint, Response, current_app, jsonify, request
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector
from sqlalchemy import func, select, text

from shared import __version__, workers
from shared.database import Row, connection
from shared.errors import NotFound
from shared.models import Deployment, Revision, Run, RunStatus
from web.auth import identify
from web.bounds import Streams
from web.openapi import operation
from web.validation import QueryBoolean, Schema, load_query

bp = Blueprint("health", __name__)

# What clients may rely on; a flag appears when its feature does.
FLAGS = {"assistants": True}
METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class OkQuery(Schema):
    check_db = QueryBoolean(load_default=False)


@bp.get("/", strict_slashes=False)
@bp.get("/ok")
@operation("Is the service up?", query=OkQuery, errors=(503,))
def get_ok(deployment: str | None = None) -> Response:
    """With `check_db=1` the database must answer too."""
    if load_query(OkQuery)["check_db"]:
        with connection() as conn:
            conn.execute(text("SELECT 1"))
    return jsonify(ok=True, services={})


@bp.get("/info")
@operation("Which version, and what it can do")
def get_info(deployment: str | None = None) -> Response:
    """With a key: how well user code is kept in; at a deployment's address its ids and its graph library too."""
    place: dict[str, Any] = {"kind": "self-hosted"}
    library = None
    if identify() is not None:
        with connection() as conn:
            place["isolation"] = workers.isolation(conn)
    found = _deployment(deployment)
    if found is not None:
        place |= {
            "project_id": found.id,
            "tenant_id": found.organization_id,
            "revision_id": found.active_revision_id,
            "host_revision_id": found.active_revision_id,
        }
        library = _pinned(found.requirements, "langgraph")
    return jsonify(version=__version__, langgraph_py_version=library, flags=FLAGS, host=place, metadata=place)


@bp.get("/metrics")
@operation("Queue figures for Prometheus", media="text/plain")
def get_metrics(deployment: str | None = None) -> Response:
    """`?format=json` gives the same figures as JSON; at a deployment's address, with a key, its own."""
    found = _deployment(deployment)
    figures = queue_figures(found.id if found is not None else None)
    with connection() as conn:
        counted = workers.counted(conn)
    streams: Streams = current_app.extensions["runyard_streams"]
    if request.args.get("format") == "json":
        return jsonify(
            queue=_totals(figures), workers=_capacity(counted), api={"open_streams": streams.count}
        )
    registry = CollectorRegistry()
    registry.register(Figures(figures, counted, streams.count))
    return Response(generate_latest(registry), content_type=METRICS_TYPE)


@dataclass(frozen=True)
class Figure:
    """Runs of one pool in one status."""

    pool: str
    status: str
    runs: int
    oldest_seconds: float


def queue_figures(deployment_id: UUID | None = None) -> list[Figure]:
    """Pending and running runs by pool, and for how many seconds the oldest has been so."""
    since = func.coalesce(Run.started_at, Run.created_at)
    query = (
        select(
            Run.pool,
            Run.status,
            func.count(),
            func.extract("epoch", func.max(func.now() - since)),
        )
        .where(Run.status.in_((RunStatus.PENDING, RunStatus.RUNNING)))
        .group_by(Run.pool, Run.status)
        .order_by(Run.pool, Run.status)
    )
    if deployment_id is not None:
        query = query.where(Run.deployment_id == deployment_id)
    with connection() as conn:
        rows = conn.execute(query).all()
    return [Figure(pool, status, runs, float(oldest)) for pool, status, runs, oldest in rows]


WORKER_FIGURES = (
    ("workers", "workers", "Runners and builders"),
    ("worker_slots", "slots", "Runs or builds they can have at a time"),
    ("worker_running", "running", "Runs or builds they have"),
    ("graph_hosts", "hosts", "Graph hosts they keep"),
    ("runs_ended_a_minute", "ended", "Runs that ended within the last minute"),
)


class Figures(Collector):
    """The figures as Prometheus gauges. But for the streams they come from rows: every process tells the same."""

    def __init__(self, figures: Sequence[Figure], counted: Sequence[Row], open_streams: int) -> None:
        self.figures = figures
        self.counted = counted
        self.open_streams = open_streams

    def collect(self) -> Iterator[GaugeMetricFamily]:
        yield from self._of_runs()
        yield from self._of_workers()
        yield GaugeMetricFamily(
            "runyard_open_streams", "Long answers this web process gives", value=self.open_streams
        )

    def _of_workers(self) -> Iterator[GaugeMetricFamily]:
        for name, column, what in WORKER_FIGURES:
            family = GaugeMetricFamily(f"runyard_{name}", what, labels=("kind", "pool", "state"))
            for row in self.counted:
                family.add_metric((row["kind"], row["pool"] or "", row["state"]), row[column])
            yield family

    def _of_runs(self) -> Iterator[GaugeMetricFamily]:
        labels = ("pool", "status")
        runs = GaugeMetricFamily("runyard_runs", "Runs that have not ended", labels=labels)
        oldest = GaugeMetricFamily(
            "runyard_oldest_run_seconds", "Since when the oldest of them is so", labels=labels
        )
        for row in self.figures:
            runs.add_metric((row.pool, row.status), row.runs)
            oldest.add_metric((row.pool, row.status), row.oldest_seconds)
        yield runs
        yield oldest


def _totals(figures: Sequence[Figure]) -> dict[str, Any]:
    def total(status: RunStatus) -> int:
        return sum(row.runs for row in figures if row.status == status)

    waits = [row.oldest_seconds for row in figures if row.status == RunStatus.PENDING]
    return {
        "n_pending": total(RunStatus.PENDING),
        "n_running": total(RunStatus.RUNNING),
        "pending_runs_wait_time_max_secs": max(waits, default=0.0),
    }


def _capacity(counted: Sequence[Row]) -> dict[str, int]:
    """Runners' slots, as the protocol's clients know them."""
    runners = [row for row in counted if row["kind"] == "runner"]
    most = sum(row["slots"] for row in runners if row["state"] == workers.READY)
    active = sum(row["running"] for row in runners)
    return {"max": most, "active": active, "available": max(most - active, 0)}


@dataclass(frozen=True)
class Serving:
    """A deployment and what it runs."""

    id: UUID
    organization_id: UUID
    active_revision_id: UUID | None
    requirements: str | None


def _deployment(name: str | None) -> Serving | None:
    """The deployment at this address; None at the root, and for a caller without a key."""
    asking = identify() if name is not None else None
    if asking is None:
        return None
    query = (
        select(
            Deployment.id, Deployment.organization_id, Deployment.active_revision_id, Revision.requirements
        )
        .outerjoin(Revision, Revision.id == Deployment.active_revision_id)
        .where(
            Deployment.organization_id == asking.organization_id,
            Deployment.name == name,
            Deployment.deleted_at.is_(None),
        )
    )
    with connection() as conn:
        found = conn.execute(query).one_or_none()
    if found is None:
        raise NotFound()
    return Serving(*found)


def _pinned(requirements: str | None, package: str) -> str | None:
    """The version of a package in a resolved set of `name==version` lines."""
    for line in (requirements or "").splitlines():
        name, _, version = line.partition("==")
        if name.strip() == package:
            return version.split()[0].rstrip("\\") if version.split() else None
    return None
