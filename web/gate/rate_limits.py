"""Limits of this process for each API key: requests per second, and open streams.

The buckets are in the process and not in Redis: on every request, a lookup costs 0.4 µs here and a round trip of
110 µs there. The limits also protect the process itself, whatever share of a key's requests it gets.

Operators' keys have no limit of their own, since the limits protect tenants from each other. Only the maximum share of
all streams applies to them too, since every key must leave streams to others.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from flask import Flask, Response, current_app, g
from prometheus_client import Gauge

from shared.access import api_keys
from shared.access.api_keys import OPERATOR, Caller
from shared.errors import TooMany, Unavailable
from shared.settings import Settings
from web.gate.request_metrics import Traffic
from web.http import sse
from web.schemas import operations

MAX_KEYS = 10_000
STREAM_RETRY_SECONDS = 5
SHARE = 8  # a caller may have this many times the number of streams left for others
IS_NO_KEY = ":"  # in the id of a caller that is not identified by a key


@dataclass(slots=True)
class _Bucket:
    tokens: float
    filled_at: float


class Buckets:
    """A token bucket for each key: `burst` requests at once, `rate` a second in the long run."""

    def __init__(self, rate: float, burst: int) -> None:
        self._rate, self._burst = rate, burst
        self._buckets: dict[str, _Bucket] = {}

    def take(self, key_id: str, now: float) -> float:
        """Take a token. Returns 0 if a token was taken, else the seconds until there is one."""
        bucket = self._buckets.get(key_id)
        if bucket is None:
            if len(self._buckets) >= MAX_KEYS:
                self._buckets.clear()
            bucket = self._buckets[key_id] = _Bucket(self._burst, now)
        bucket.tokens = min(bucket.tokens + (now - bucket.filled_at) * self._rate, self._burst)
        bucket.filled_at = now
        if bucket.tokens < 1:
            return (1 - bucket.tokens) / self._rate
        bucket.tokens -= 1
        return 0.0


class Streams:
    """Counts of open long responses, by key and in total."""

    def __init__(self, settings: Settings, shown: Gauge) -> None:
        self._per_key, self._in_all = settings.streams_per_key, settings.max_streams
        self._open: Counter[str] = Counter()
        self._shown = shown
        self.count = 0

    def open(self, who: Caller) -> Callable[[], None]:
        """Take a slot. Returns the function that releases it. Raises TooMany and Unavailable.

        The share of one caller shrinks with the number of free slots. Another caller therefore always gets a slot,
        however many callers take their share.
        """
        opened = self._open[who.key_id]
        if opened >= self._per_key and not who.may(OPERATOR):
            raise TooMany(
                f"{_called(who)} has {self._per_key} open streams, the maximum: close one first",
                retry_after_seconds=STREAM_RETRY_SECONDS,
            )
        if self.count >= self._in_all:
            raise Unavailable("this process has reached its maximum of open streams: try again later")
        if opened and opened >= SHARE * (self._in_all - self.count - 1):
            raise TooMany(
                f"{_called(who)} has {opened} open streams, and the last free ones are reserved for other callers",
                retry_after_seconds=STREAM_RETRY_SECONDS,
            )
        self._open[who.key_id] += 1
        self.count += 1
        self._shown.inc()
        is_held = True

        def close() -> None:
            nonlocal is_held
            if is_held:
                is_held = False
                self._close(who.key_id)

        return close

    def _close(self, key_id: str) -> None:
        self.count -= 1
        self._shown.dec()
        self._open[key_id] -= 1
        if not self._open[key_id]:
            del self._open[key_id]


def register(app: Flask) -> None:
    """Limit every request that has a caller. Must be registered after authentication and the request metrics."""
    start(app)
    app.before_request(take_slot)
    app.after_request(hand_over_slot)
    app.teardown_request(release_slot)


def start(app: Flask) -> None:
    """Start counting, with full buckets and no open streams."""
    settings: Settings = app.config["SETTINGS"]
    app.extensions["runyard_buckets"] = Buckets(settings.requests_per_second, settings.requests_burst)
    traffic: Traffic = app.extensions["runyard_traffic"]
    app.extensions["runyard_streams"] = Streams(settings, traffic.open_streams)


def count_request(who: Caller) -> None:
    """Count a request of the caller. Raises TooMany if the caller exceeds its rate."""
    if who.may(OPERATOR) or not current_app.config["SETTINGS"].requests_per_second:
        return
    buckets: Buckets = current_app.extensions["runyard_buckets"]
    seconds = buckets.take(who.key_id, time.monotonic())
    if seconds:
        raise TooMany(
            f"{_called(who)} sends too many requests: see Retry-After",
            retry_after_seconds=max(math.ceil(seconds), 1),
        )


def _called(who: Caller) -> str:
    return "This caller" if IS_NO_KEY in who.key_id else "This API key"


def count_address(address: str) -> None:
    """Count a request of an address, for callers that are not yet identified. Raises TooMany."""
    if not current_app.config["SETTINGS"].requests_per_second:
        return
    buckets: Buckets = current_app.extensions["runyard_buckets"]
    seconds = buckets.take(f"address:{address}", time.monotonic())
    if seconds:
        raise TooMany(
            "This address sends too many requests: see Retry-After",
            retry_after_seconds=max(math.ceil(seconds), 1),
        )


def take_slot() -> None:
    """Take a stream slot before a run is created. A run whose stream is refused is then not created."""
    if "caller" in g and operations.may_take_long():
        hold_slot()


def hold_slot() -> None:
    """Take a stream slot for the current request; raises TooMany and Unavailable."""
    hold_slot_of(g.caller)


def hold_slot_of(who: Caller) -> None:
    """Take a stream slot for any caller. The id of a caller without a key has its kind before a colon."""
    streams: Streams = current_app.extensions["runyard_streams"]
    g.close_stream, g.stream_of = streams.open(who), who


def hand_over_slot(response: Response) -> Response:
    """Let a stream keep the slot until its last byte, and end it when the key that opened it is no longer valid."""
    body = response.response
    if "close_stream" in g and isinstance(body, sse.Stream):
        key_id = g.stream_of.key_id
        body.guard(is_allowed=lambda: _is_alive(key_id), on_close=g.pop("close_stream"))
    return response


def release_slot(error: BaseException | None) -> None:
    """Release the slot at the end of the request, unless a stream has taken it over."""
    close = g.pop("close_stream", None)
    if close is not None:
        close()


def _is_alive(key_id: str) -> bool:
    if IS_NO_KEY in key_id:
        return True
    try:
        return api_keys.is_alive(key_id)
    except Unavailable:
        return True  # the database is unavailable: the stream checks again soon
