"""Prometheus collectors: queues and workers, runs and builds, and the servers of this installation.

The figures come from database rows, so every process returns the same. Figures by deployment need a key: an
organization sees its own deployments, an operator all of them. Figures of the servers (PostgreSQL, Redis, upkeep,
webhooks, backups) are for operators only.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

import gevent
from cachetools import TTLCache
from flask import current_app
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeHistogramMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
)
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString
from redis import Redis
from redis.exceptions import RedisError
from sqlalchemy import Connection

from shared import fleet
from shared.access.api_keys import OPERATOR, Caller
from shared.figures import reading
from shared.figures.reading import STATUSES, DeploymentTotals, Histogram, cumulative
from shared.infra import redis
from shared.infra.postgres import Row, connection
from shared.sql import statement

_QUEUES = statement("figures.queues")
_SERVERS = statement("figures.servers")


@dataclass(frozen=True)
class QueueFigure:
    """Runs of one pool in one status, and how long they have been in it. Waiting time begins when a run is due."""

    pool: str
    status: str
    runs: int
    oldest_seconds: float
    median_seconds: float
    oldest_unblocked_seconds: float  # among runs that are the first of their thread


def queue_figures(conn: Connection, deployment_id: UUID | None = None) -> list[QueueFigure]:
    """Return the figures of pending and running runs by pool."""
    return [QueueFigure(**row) for row in _QUEUES.rows(conn, deployment_id=deployment_id)]


WORKER_FIGURES = (
    ("workers", "workers", "Number of runners and builders"),
    ("worker_slots", "slots", "Number of runs or builds that the workers can execute at a time"),
    ("worker_running", "running", "Number of runs or builds that the workers execute now"),
    ("worker_available", "available", "Number of further runs or builds that the workers could start now"),
    ("graph_hosts", "hosts", "Number of graph hosts of the workers"),
    ("runs_ended_a_minute", "ended", "Number of runs that ended within the last minute"),
)


RUN_FIGURES = (
    ("runs", "runs", "Number of runs that have not ended"),
    (
        "oldest_run_seconds",
        "oldest_seconds",
        "Seconds that the oldest run has been pending since it was due, or running",
    ),
    (
        "median_run_seconds",
        "median_seconds",
        "Median of the seconds that runs have been pending since they were due, or running",
    ),
    (
        "oldest_unblocked_run_seconds",
        "oldest_unblocked_seconds",
        "Like runyard_oldest_run_seconds, of runs without an earlier live run on their thread",
    ),
)


class QueueMetrics(Collector):
    """The figures of queues and workers as Prometheus gauges. `workers` are rows of `fleet.counted`."""

    def __init__(self, figures: Sequence[QueueFigure], workers: Sequence[Row]) -> None:
        self._figures, self._workers = figures, workers

    def collect(self) -> Iterator[GaugeMetricFamily]:
        yield from self._of_runs()
        yield from self._of_workers()

    def _of_workers(self) -> Iterator[GaugeMetricFamily]:
        for name, column, what in WORKER_FIGURES:
            family = GaugeMetricFamily(f"runyard_{name}", what, labels=("kind", "pool", "state"))
            for row in self._workers:
                family.add_metric((row["kind"], row["pool"] or "", row["state"]), row[column])
            yield family

    def _of_runs(self) -> Iterator[GaugeMetricFamily]:
        for name, field, what in RUN_FIGURES:
            family = GaugeMetricFamily(f"runyard_{name}", what, labels=("pool", "status"))
            for figure in self._figures:
                family.add_metric((figure.pool, figure.status), getattr(figure, field))
            yield family


LABELS = ("organization", "deployment")
SECONDS_FIGURES = {
    "wait": "Seconds from the time at which a run was due to its start",
    "duration": "Seconds from the start of a run to its end",
    "first_token": "Seconds from the creation of a run to the first token that a model streamed",
}


@dataclass(frozen=True)
class VisibleTotals:
    """The figures that one caller may see."""

    deployments: Sequence[DeploymentTotals]
    builds: Mapping[str, tuple[float, Histogram]]
    queues: Mapping[str, tuple[float, Histogram]]


def visible_totals(caller: Caller | None, deployment_id: UUID | None) -> VisibleTotals:
    """Return the caller's figures. They are cached briefly, since these requests are not rate-limited."""
    cache: TTLCache[Any, VisibleTotals] = current_app.extensions["runyard_figures"]
    organization_id = None if caller is None or caller.may(OPERATOR) else caller.organization_id
    key = ("runs", caller is not None, organization_id, deployment_id)
    visible = cache.get(key)
    if visible is None:
        with connection() as conn:
            deployments = (
                []
                if caller is None
                else reading.of_deployments(
                    conn, organization_id=organization_id, deployment_id=deployment_id
                )
            )
            visible = VisibleTotals(deployments, reading.of_builds(conn), reading.of_queues(conn))
        cache[key] = visible
    return visible


class RunMetrics(Collector):
    """The figures of runs, builds and the ages of queues that one caller may see."""

    def __init__(self, visible: VisibleTotals) -> None:
        self._visible = visible

    def collect(self) -> Iterator[Any]:
        yield self._ended()
        yield self._live()
        yield self._tokens()
        for kind, meaning in SECONDS_FIGURES.items():
            family = HistogramMetricFamily(f"runyard_run_{kind}_seconds", meaning, labels=LABELS)
            for each in self._visible.deployments:
                family.add_metric(_labels(each), buckets(each.histograms[kind]), each.seconds[kind])
            yield family
        builds = HistogramMetricFamily(
            "runyard_build_seconds",
            "Seconds that the last attempt of a build took, by the status of its end",
            labels=("status",),
        )
        for status, (seconds, histogram) in self._visible.builds.items():
            builds.add_metric((status,), buckets(histogram), seconds)
        yield builds
        ages = GaugeHistogramMetricFamily(
            "runyard_queue_age_seconds", "Seconds that the pending runs have waited", labels=("pool",)
        )
        for pool, (seconds, histogram) in self._visible.queues.items():
            ages.add_metric((pool,), buckets(histogram), seconds)
        yield ages

    def _ended(self) -> CounterMetricFamily:
        family = CounterMetricFamily(
            "runyard_runs_ended", "Number of runs that have ended", labels=(*LABELS, "status")
        )
        for each in self._visible.deployments:
            for status in STATUSES:
                family.add_metric((*_labels(each), status), each.counts[status])
        return family

    def _live(self) -> GaugeMetricFamily:
        family = GaugeMetricFamily(
            "runyard_deployment_runs", "Number of runs that have not ended", labels=(*LABELS, "status")
        )
        for each in self._visible.deployments:
            family.add_metric((*_labels(each), "pending"), each.pending)
            family.add_metric((*_labels(each), "running"), each.running)
        return family

    def _tokens(self) -> CounterMetricFamily:
        family = CounterMetricFamily(
            "runyard_tokens", "Number of tokens that models reported for ended runs", labels=(*LABELS, "kind")
        )
        for each in self._visible.deployments:
            for kind in ("input", "output"):
                family.add_metric((*_labels(each), kind), each.counts[f"{kind}_tokens"])
        return family


def _labels(each: DeploymentTotals) -> tuple[str, str]:
    return each.organization, each.deployment


def buckets(histogram: Histogram) -> list[tuple[str, int]]:
    """Return Prometheus buckets, whose limits double from one to the next."""
    return [(floatToGoString(limit), count) for limit, count in cumulative(histogram)]


SERVER_FIGURES = {
    "upkeep_silent_seconds": "Seconds since the process that leads upkeep renewed its lease",
    "expired_leases": "Number of running runs whose lease has expired and that no runner has claimed again",
    "worker_silent_seconds": "Seconds since the last heartbeat of the worker that has been silent for longest",
    "webhooks_waiting": "Number of webhook deliveries in the outbox",
    "webhooks_failing": "Number of webhook deliveries in the outbox whose last attempt failed",
    "webhooks_given_up": "Number of webhook deliveries given up within the last hour",
    "database_connections": "Number of client sessions in PostgreSQL, over all its databases",
    "database_max_connections": "Maximum number of sessions in PostgreSQL (max_connections)",
    "backup_age_seconds": "Seconds since the last backup by `runyard backup`",
}
REDIS_FIGURES: dict[str, tuple[Any, str, str]] = {
    "memory_bytes": (GaugeMetricFamily, "Bytes of memory that Redis uses", "used_memory"),
    "max_memory_bytes": (
        GaugeMetricFamily,
        "Maximum bytes of memory that Redis may use; 0: no limit",
        "maxmemory",
    ),
    "evicted_keys": (
        CounterMetricFamily,
        "Number of keys that Redis evicted because its memory was full",
        "evicted_keys",
    ),
}


class ServerMetrics(Collector):
    """The figures of the servers. A figure without a value is left out."""

    def __init__(
        self, of_database: Mapping[str, Any], of_redis: Mapping[str, Mapping[str, float] | None]
    ) -> None:
        self._of_database = of_database
        self._of_redis = of_redis

    def collect(self) -> Iterator[Any]:
        for name, meaning in SERVER_FIGURES.items():
            if self._of_database[name] is not None:
                yield GaugeMetricFamily(f"runyard_{name}", meaning, value=float(self._of_database[name]))
        up = GaugeMetricFamily("runyard_redis_up", "1 if Redis answers, 0 if not", labels=("role",))
        for role, info in self._of_redis.items():
            up.add_metric((role,), float(info is not None))
        yield up
        for name, (family, meaning, field) in REDIS_FIGURES.items():
            figures = family(f"runyard_redis_{name}", meaning, labels=("role",))
            for role, info in self._of_redis.items():
                if info is not None:
                    figures.add_metric((role,), info[field])
            if figures.samples:
                yield figures


def server_metrics() -> ServerMetrics:
    """Return the figures, cached briefly."""
    cache: TTLCache[Any, ServerMetrics] = current_app.extensions["runyard_figures"]
    metrics = cache.get("servers")
    if metrics is None:
        with connection() as conn:
            (of_database,) = _SERVERS.rows(conn, lease_seconds=fleet.LEASE_SECONDS, upkeep=fleet.UPKEEP)
        metrics = ServerMetrics(of_database, _redis_figures())
        cache["servers"] = metrics
    return metrics


def _redis_figures() -> dict[str, Mapping[str, float] | None]:
    """Return the figures of each Redis server by its role. None stands for a server that does not answer."""
    servers = redis.by_role()
    greenlets = [gevent.spawn(_redis_info, server) for server in servers.values()]
    gevent.joinall(greenlets, raise_error=True)
    return {role: greenlet.value for role, greenlet in zip(servers, greenlets, strict=True)}


def _redis_info(server: Redis) -> Mapping[str, float] | None:
    try:
        info: Any = server.info()
    except RedisError:
        return None
    return {field: float(info.get(field, 0)) for _, _, field in REDIS_FIGURES.values()}
