"""Limits for each API key in this process: requests a second, and open streams.

Why the buckets are in the process and not in Redis: a look costs 0.4 µs here and a round-trip of 110 µs there,
on every request; and it is the process that is to be protected, whatever share of a key's requests it gets.
Operators' keys have no bound of their own: the bounds are there to keep tenants from each other. Only the share of all
streams is theirs too: one key, whosever it is, must leave streams to the others.
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
from web import operations, sse
from web.request_metrics import Traffic

MAX_KEYS = 10_000
STREAM_RETRY_SECONDS = 5
SHARE = 8  # a caller may have so many times the streams that are left to others
IS_NO_KEY = ":"  # in the id of a caller who was known by something else


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
        """Take a token; the seconds until there is one, 0 when it was taken."""
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
    """How many long answers are open, by key and in all."""

    def __init__(self, settings: Settings, shown: Gauge) -> None:
        self._per_key, self._in_all = settings.streams_per_key, settings.max_streams
        self._open: Counter[str] = Counter()
        self._shown = shown
        self.count = 0

    def open(self, who: Caller) -> Callable[[], None]:
        """Take a slot; returns what releases it. Raises TooMany and Unavailable.

        The share of one caller shrinks with what is left, so that however many callers take theirs, another gets one.
        """
        opened = self._open[who.key_id]
        if opened >= self._per_key and not who.may(OPERATOR):
            raise TooMany(
                f"{_called(who)} has {self._per_key} open streams, more it may not have",
                retry_after_seconds=STREAM_RETRY_SECONDS,
            )
        if self.count >= self._in_all:
            raise Unavailable("this process has as many open streams as it can serve")
        if opened and opened >= SHARE * (self._in_all - self.count - 1):
            raise TooMany(
                f"{_called(who)} has {opened} open streams, and the few that are left are for others",
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
    """Bound every request that has a caller; to be registered after authentication and the counts of requests."""
    start(app)
    app.before_request(take_slot)
    app.after_request(hand_over_slot)
    app.teardown_request(release_slot)


def start(app: Flask) -> None:
    """Begin to count, with nothing taken."""
    settings: Settings = app.config["SETTINGS"]
    app.extensions["runyard_buckets"] = Buckets(settings.requests_per_second, settings.requests_burst)
    traffic: Traffic = app.extensions["runyard_traffic"]
    app.extensions["runyard_streams"] = Streams(settings, traffic.open_streams)


def count_request(who: Caller) -> None:
    """Raises TooMany when the key asks faster than it may."""
    if who.may(OPERATOR) or not current_app.config["SETTINGS"].requests_per_second:
        return
    buckets: Buckets = current_app.extensions["runyard_buckets"]
    seconds = buckets.take(who.key_id, time.monotonic())
    if seconds:
        raise TooMany(f"{_called(who)} asks too often", retry_after_seconds=max(math.ceil(seconds), 1))


def _called(who: Caller) -> str:
    return "This caller" if IS_NO_KEY in who.key_id else "This API key"


def count_address(address: str) -> None:
    """The same of an address, for callers of whom nothing else is known yet."""
    if not current_app.config["SETTINGS"].requests_per_second:
        return
    buckets: Buckets = current_app.extensions["runyard_buckets"]
    seconds = buckets.take(f"address:{address}", time.monotonic())
    if seconds:
        raise TooMany("This address asks too often", retry_after_seconds=max(math.ceil(seconds), 1))


def take_slot() -> None:
    """Before a run is created, so that one that cannot be followed is not."""
    if "caller" in g and operations.may_take_long():
        hold_slot()


def hold_slot() -> None:
    """Take a stream slot for the current request; raises TooMany and Unavailable."""
    hold_slot_of(g.caller)


def hold_slot_of(who: Caller) -> None:
    """The same for somebody who is no key: its id says of what kind it is, before a colon."""
    streams: Streams = current_app.extensions["runyard_streams"]
    g.close_stream, g.stream_of = streams.open(who), who


def hand_over_slot(response: Response) -> Response:
    """A stream keeps its slot until its last byte, and lives no longer than the key it was opened with."""
    body = response.response
    if "close_stream" in g and isinstance(body, sse.Stream):
        key_id = g.stream_of.key_id
        body.guard(is_allowed=lambda: _is_alive(key_id), on_close=g.pop("close_stream"))
    return response


def release_slot(error: BaseException | None) -> None:
    """What no stream has taken over ends with the request, whichever way."""
    close = g.pop("close_stream", None)
    if close is not None:
        close()


def _is_alive(key_id: str) -> bool:
    if IS_NO_KEY in key_id:
        return True
    try:
        return api_keys.is_alive(key_id)
    except Unavailable:
        return True  # the database is away: the stream asks again in a moment
