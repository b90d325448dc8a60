"""Prometheus figures of runs and builds: counters and histograms from database rows, the same in every process.

Figures by deployment need a key: an organization sees its own deployments, an operator all of them. Figures of pools
and builds need no key.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

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

from shared.access.api_keys import OPERATOR, Caller
from shared.figures import reading
from shared.figures.reading import STATUSES, DeploymentTotals, Histogram, cumulative
from shared.infra.postgres import connection

LABELS = ("organization", "deployment")
OF_SECONDS = {
    "wait": "Seconds from the time at which a run was due to its start",
    "duration": "Seconds from the start of a run to its end",
    "first_token": "Seconds from the creation of a run to the first token that a model streamed",
}


@dataclass(frozen=True)
class SeenTotals:
    """The figures that one caller may see."""

    deployments: Sequence[DeploymentTotals]
    builds: Mapping[str, tuple[float, Histogram]]
    queues: Mapping[str, tuple[float, Histogram]]


def seen(caller: Caller | None, deployment_id: UUID | None) -> SeenTotals:
    """Return the caller's figures. They are cached briefly, since these requests are not rate-limited."""
    known: TTLCache[Any, SeenTotals] = current_app.extensions["runyard_figures"]
    organization_id = None if caller is None or caller.may(OPERATOR) else caller.organization_id
    key = ("runs", caller is not None, organization_id, deployment_id)
    found = known.get(key)
    if found is None:
        with connection() as conn:
            deployments = (
                []
                if caller is None
                else reading.of_deployments(
                    conn, organization_id=organization_id, deployment_id=deployment_id
                )
            )
            found = SeenTotals(deployments, reading.of_builds(conn), reading.of_queues(conn))
        known[key] = found
    return found


class RunMetrics(Collector):
    """The figures as Prometheus families."""

    def __init__(self, found: SeenTotals) -> None:
        self._found = found

    def collect(self) -> Iterator[Any]:
        yield self._ended()
        yield self._live()
        yield self._tokens()
        for kind, meaning in OF_SECONDS.items():
            family = HistogramMetricFamily(f"runyard_run_{kind}_seconds", meaning, labels=LABELS)
            for each in self._found.deployments:
                family.add_metric(_named(each), buckets(each.histograms[kind]), each.seconds[kind])
            yield family
        builds = HistogramMetricFamily(
            "runyard_build_seconds",
            "Seconds that the last attempt of a build took, by the status of its end",
            labels=("status",),
        )
        for status, (seconds, histogram) in self._found.builds.items():
            builds.add_metric((status,), buckets(histogram), seconds)
        yield builds
        ages = GaugeHistogramMetricFamily(
            "runyard_queue_age_seconds", "Seconds that the pending runs have waited", labels=("pool",)
        )
        for pool, (seconds, histogram) in self._found.queues.items():
            ages.add_metric((pool,), buckets(histogram), seconds)
        yield ages

    def _ended(self) -> CounterMetricFamily:
        family = CounterMetricFamily(
            "runyard_runs_ended", "Number of runs that have ended", labels=(*LABELS, "status")
        )
        for each in self._found.deployments:
            for status in STATUSES:
                family.add_metric((*_named(each), status), each.counts[status])
        return family

    def _live(self) -> GaugeMetricFamily:
        family = GaugeMetricFamily(
            "runyard_deployment_runs", "Number of runs that have not ended", labels=(*LABELS, "status")
        )
        for each in self._found.deployments:
            family.add_metric((*_named(each), "pending"), each.pending)
            family.add_metric((*_named(each), "running"), each.running)
        return family

    def _tokens(self) -> CounterMetricFamily:
        family = CounterMetricFamily(
            "runyard_tokens", "Number of tokens that models reported for ended runs", labels=(*LABELS, "kind")
        )
        for each in self._found.deployments:
            for kind in ("input", "output"):
                family.add_metric((*_named(each), kind), each.counts[f"{kind}_tokens"])
        return family


def _named(each: DeploymentTotals) -> tuple[str, str]:
    return each.organization, each.deployment


def buckets(histogram: Histogram) -> list[tuple[str, int]]:
    """Return Prometheus buckets, whose limits double from one to the next."""
    return [(floatToGoString(limit), count) for limit, count in cumulative(histogram)]
