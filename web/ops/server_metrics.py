"""Figures of the infrastructure, for operators: PostgreSQL, Redis, upkeep, the webhook outbox and backups."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import gevent
from cachetools import TTLCache
from flask import current_app
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector
from redis import Redis
from redis.exceptions import RedisError
from sqlalchemy import text

from shared import fleet
from shared.infra import redis
from shared.infra.postgres import connection

FIGURES = {
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
OF_REDIS: dict[str, tuple[Any, str, str]] = {
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
QUERY = text(f"""
SELECT
    (SELECT greatest(extract(epoch FROM now() - lease_until) + {fleet.LEASE_SECONDS}, 0) FROM leader
     WHERE role = '{fleet.UPKEEP}') AS upkeep_silent_seconds,
    (SELECT count(*) FROM run WHERE status = 'running' AND lease_until < now()) AS expired_leases,
    (SELECT max(extract(epoch FROM now() - seen_at)) FROM worker) AS worker_silent_seconds,
    (SELECT count(*) FROM webhook_delivery WHERE ended_at IS NULL) AS webhooks_waiting,
    (SELECT count(*) FROM webhook_delivery WHERE ended_at IS NULL AND failure IS NOT NULL) AS webhooks_failing,
    (SELECT count(*) FROM webhook_delivery WHERE ended_at > now() - interval '1 hour' AND failure IS NOT NULL)
        AS webhooks_given_up,
    (SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend') AS database_connections,
    CAST(current_setting('max_connections') AS integer) AS database_max_connections,
    (SELECT extract(epoch FROM now() - made_at) FROM last_backup) AS backup_age_seconds
""")


class ServerMetrics(Collector):
    """The figures as Prometheus families. A figure without a value is left out."""

    def __init__(
        self, of_database: Mapping[str, Any], of_redis: Mapping[str, Mapping[str, float] | None]
    ) -> None:
        self._of_database = of_database
        self._of_redis = of_redis

    def collect(self) -> Iterator[Any]:
        for name, meaning in FIGURES.items():
            if self._of_database[name] is not None:
                yield GaugeMetricFamily(f"runyard_{name}", meaning, value=float(self._of_database[name]))
        up = GaugeMetricFamily("runyard_redis_up", "1 if Redis answers, 0 if not", labels=("role",))
        for role, told in self._of_redis.items():
            up.add_metric((role,), float(told is not None))
        yield up
        for name, (family, meaning, field) in OF_REDIS.items():
            figures = family(f"runyard_redis_{name}", meaning, labels=("role",))
            for role, told in self._of_redis.items():
                if told is not None:
                    figures.add_metric((role,), told[field])
            if figures.samples:
                yield figures


def seen() -> ServerMetrics:
    """Return the figures, cached briefly."""
    known: TTLCache[Any, ServerMetrics] = current_app.extensions["runyard_figures"]
    found = known.get("servers")
    if found is None:
        with connection() as conn:
            of_database = dict(conn.execute(QUERY).one()._mapping)
        found = ServerMetrics(of_database, _of_redis())
        known["servers"] = found
    return found


def _of_redis() -> dict[str, Mapping[str, float] | None]:
    """Return the figures of each Redis server by its role. None stands for a server that does not answer."""
    servers = redis.by_role()
    asked = [gevent.spawn(_info, server) for server in servers.values()]
    gevent.joinall(asked, raise_error=True)
    return {role: told.value for role, told in zip(servers, asked, strict=True)}


def _info(server: Redis) -> Mapping[str, float] | None:
    try:
        told: Any = server.info()
    except RedisError:
        return None
    return {field: float(told.get(field, 0)) for _, _, field in OF_REDIS.values()}
