"""Request metrics of one `web` server: requests by route and status, seconds until each response, open streams.

Several processes of one server (`web/gunicorn.py`) count in files of a common folder, and each returns the sums.
"""

from __future__ import annotations

import os
import struct
import time
from collections.abc import Iterable, Iterator
from typing import Any

from flask import Flask, request
from prometheus_client import Counter, Gauge, Histogram, disable_created_metrics
from prometheus_client.multiprocess import MultiProcessCollector
from prometheus_client.registry import Collector

SHARED_FOLDER = "PROMETHEUS_MULTIPROC_DIR"  # read by prometheus_client when it is imported
UNKNOWN = "unknown"  # label of requests without a route, since callers must not be able to create labels
SECONDS = (0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)

# A process that starts creates its files empty and writes them afterwards.
READ_TRIES, READ_PAUSE_SECONDS = 20, 0.05

disable_created_metrics()


def _collect_shared() -> Iterable[Any]:
    """Return the sums over the processes of this server. Waits for files that a starting process has not written yet."""
    collector = MultiProcessCollector(None)
    for _ in range(READ_TRIES):
        try:
            return collector.collect()
        except struct.error:
            time.sleep(READ_PAUSE_SECONDS)
    return collector.collect()


class Traffic(Collector):
    """Counts since the server started. Excludes the seconds of long responses, which depend on the run."""

    def __init__(self) -> None:
        self._requests = Counter(
            "runyard_http_requests",
            "Number of requests that this web server has answered",
            ("method", "route", "status"),
            registry=None,
        )
        self._seconds = Histogram(
            "runyard_http_request_seconds",
            "Seconds until a response began, without streams and waits for runs",
            buckets=SECONDS,
            registry=None,
        )
        self.open_streams = Gauge(
            "runyard_open_streams",
            "Number of open long responses of this web server: streams, waits and long polls",
            registry=None,
            multiprocess_mode="livesum",
        )

    def answered(self, status: int, seconds: float | None) -> None:
        """Count the current request. `seconds` is None for a long response."""
        rule = request.url_rule
        self._requests.labels(request.method, UNKNOWN if rule is None else rule.rule, status).inc()
        if seconds is not None:
            self._seconds.observe(seconds)

    def collect(self) -> Iterator[Any]:
        if SHARED_FOLDER in os.environ:
            yield from _collect_shared()
            return
        for own in (self._requests, self._seconds, self.open_streams):
            yield from own.collect()

    def totals(self) -> dict[str, Any]:
        """Return the sums over all routes. The mean is None before the first response."""
        samples = [one for family in self.collect() for one in family.samples]
        counted = [one for one in samples if one.name == "runyard_http_requests_total"]
        failed = sum(one.value for one in counted if one.labels["status"].startswith("5"))
        sums = {one.name: one.value for one in samples if not one.labels}
        timed = sums.get("runyard_http_request_seconds_count")
        return {
            "open_streams": int(sums.get("runyard_open_streams", 0)),
            "n_requests": int(sum(one.value for one in counted)),
            "n_server_errors": int(failed),
            "latency_mean_secs": sums["runyard_http_request_seconds_sum"] / timed if timed else None,
        }


def start(app: Flask) -> None:
    """Start counting, at zero."""
    app.extensions["runyard_traffic"] = Traffic()
