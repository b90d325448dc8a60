"""Limits of this process for each caller: requests per second, open streams, failed authentications per address.

The buckets are in the process and not in Redis: on every request, a lookup costs 0.4 µs here and a round trip of
110 µs there. The limits also protect the process itself, whatever share of a key's requests it gets.

Operators' keys have no limit of their own, since the limits protect tenants from each other. Only the maximum share of
all streams applies to them too, since every key must leave streams to others.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from flask import Flask, Response, current_app, request
from prometheus_client import Gauge

from shared.access import api_keys, sessions
from shared.access.api_keys import OPERATOR, Caller
from shared.deployments.deployments import DeploymentRef
from shared.errors import NotFound, TooMany, Unavailable
from shared.settings import Settings
from web.gate.addresses import client_network
from web.http import sse

MAX_KEYS = 10_000
STREAM_RETRY_SECONDS = 5
SHARE = 8  # maximum ratio of a caller's open streams to the slots that stay free for others
KIND_SEPARATOR = ":"  # in the id of a caller that is not identified by a key
FAILURES_PER_MINUTE = 20
FAILURE_WINDOW_SECONDS = 60
MAX_ADDRESSES = 10_000
MAX_OPEN_BYTES = 1024 * 1024  # of a body from anyone


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

    def __init__(self, settings: Settings, gauge: Gauge) -> None:
        self._max_per_key, self._max = settings.streams_per_key, settings.max_streams
        self._open: Counter[str] = Counter()
        self._gauge = gauge
        self.count = 0

    def open(self, caller: Caller) -> Callable[[], None]:
        """Take a slot. Returns the function that releases it. Raises TooMany and Unavailable.

        The share of one caller shrinks with the number of free slots. Another caller therefore always gets a slot,
        however many callers take their share.
        """
        opened = self._open[caller.key_id]
        if opened >= self._max_per_key and not caller.may(OPERATOR):
            raise TooMany(
                f"{_describe(caller)} has {self._max_per_key} open streams, the maximum: close one first",
                retry_after_seconds=STREAM_RETRY_SECONDS,
            )
        if self.count >= self._max:
            raise Unavailable("this process has reached its maximum of open streams: try again later")
        if opened and opened >= SHARE * (self._max - self.count - 1):
            raise TooMany(
                f"{_describe(caller)} has {opened} open streams, and the last free ones are reserved for other callers",
                retry_after_seconds=STREAM_RETRY_SECONDS,
            )
        self._open[caller.key_id] += 1
        self.count += 1
        self._gauge.inc()
        is_held = True

        def close() -> None:
            nonlocal is_held
            if is_held:
                is_held = False
                self._close(caller.key_id)

        return close

    def _close(self, key_id: str) -> None:
        self.count -= 1
        self._gauge.dec()
        self._open[key_id] -= 1
        if not self._open[key_id]:
            del self._open[key_id]


@dataclass(slots=True)
class _Window:
    opened_at: float
    count: int = 0


class Failures:
    """Failed authentications by address, in windows of a minute."""

    def __init__(self) -> None:
        self._windows: dict[str, _Window] = {}

    def count(self, address: str) -> int:
        """Return the number of failures from this address in the current window."""
        window = self._windows.get(address)
        is_current = window is not None and time.monotonic() - window.opened_at <= FAILURE_WINDOW_SECONDS
        return window.count if window is not None and is_current else 0

    def add(self, address: str) -> int:
        """Count a failure. Returns the number of failures from this address in the current window."""
        now = time.monotonic()
        window = self._windows.get(address)
        if window is None or now - window.opened_at > FAILURE_WINDOW_SECONDS:
            if len(self._windows) >= MAX_ADDRESSES:
                self._windows.clear()
            window = self._windows[address] = _Window(now)
        window.count += 1
        return window.count


class StreamSlot:
    """The stream slot of one request, if it has taken one."""

    __slots__ = ("_caller", "_close")

    def __init__(self) -> None:
        self._caller: Caller | None = None
        self._close: Callable[[], None] | None = None

    def take(self, caller: Caller) -> None:
        """Take a slot. Raises TooMany and Unavailable."""
        streams: Streams = current_app.extensions["runyard_streams"]
        self._close, self._caller = streams.open(caller), caller

    def transfer(self, response: Response) -> None:
        """Let a stream keep the slot until its last byte, and end it when the key or session that opened it ends."""
        body = response.response
        if self._close is not None and self._caller is not None and isinstance(body, sse.Stream):
            caller, settings = self._caller, current_app.config["SETTINGS"]
            body.guard(is_allowed=lambda: _is_alive(caller, settings), on_close=self._close)
            self._close = None

    def release(self) -> None:
        """Release the slot at the end of the request, unless a stream has taken it over."""
        close, self._close = self._close, None
        if close is not None:
            close()


def start(app: Flask) -> None:
    """Start counting, with full buckets, no open streams and no failures. Needs the request metrics."""
    settings: Settings = app.config["SETTINGS"]
    app.extensions["runyard_buckets"] = Buckets(settings.requests_per_second, settings.requests_burst)
    app.extensions["runyard_streams"] = Streams(settings, app.extensions["runyard_traffic"].open_streams)
    start_failures(app)


def start_failures(app: Flask) -> None:
    """Start counting failed authentications, from zero."""
    app.extensions["runyard_failures"] = Failures()


def count_request(caller: Caller) -> None:
    """Count a request of the caller. Raises TooMany if the caller exceeds its rate."""
    if not caller.may(OPERATOR):
        _take_token(caller.key_id, _describe(caller))


def count_address(address: str) -> None:
    """Count a request of an address, for callers that are not yet identified. Raises TooMany."""
    _take_token(f"address:{address}", "This address")


def _take_token(id: str, name: str) -> None:
    if not current_app.config["SETTINGS"].requests_per_second:
        return
    buckets: Buckets = current_app.extensions["runyard_buckets"]
    seconds = buckets.take(id, time.monotonic())
    if seconds:
        raise TooMany(
            f"{name} sends too many requests: see Retry-After",
            retry_after_seconds=max(math.ceil(seconds), 1),
        )


def count_failure(address: str) -> None:
    """Count a failed authentication. Raises TooMany if the address has had too many within a minute."""
    failures: Failures = current_app.extensions["runyard_failures"]
    if failures.add(address) > FAILURES_PER_MINUTE:
        raise TooMany(
            "Too many failed authentications from this address", retry_after_seconds=FAILURE_WINDOW_SECONDS
        )


@contextmanager
def open_to_anyone() -> Iterator[None]:
    """Limit a request without a key: the size of its body, and the requests and unknown tokens of its address.

    Within the block, NotFound means an unknown token. Raises TooMany.
    """
    address = client_network(current_app.config["SETTINGS"])
    count_address(address)
    request.max_content_length = min(MAX_OPEN_BYTES, current_app.config["MAX_CONTENT_LENGTH"])
    try:
        yield
    except NotFound:
        count_failure(address)
        raise


def require_few_failures(person: str) -> None:
    """Raise TooMany if a person has had as many failures as are allowed within a minute. For short codes."""
    failures: Failures = current_app.extensions["runyard_failures"]
    if failures.count(person) >= FAILURES_PER_MINUTE:
        raise TooMany("Too many unknown codes: wait a minute", retry_after_seconds=FAILURE_WINDOW_SECONDS)


def anonymous_caller(deployment: DeploymentRef) -> Caller:
    """Return the rate-limit identity of a caller of a public route: its address."""
    source = client_network(current_app.config["SETTINGS"])
    return Caller(deployment.organization_id, "", f"address{KIND_SEPARATOR}{source}", "run")


def _describe(caller: Caller) -> str:
    return "This caller" if KIND_SEPARATOR in caller.key_id else "This API key"


def _is_alive(caller: Caller, settings: Settings) -> bool:
    try:
        if caller.session is not None:
            return sessions.is_alive(caller.session, settings)
        return KIND_SEPARATOR in caller.key_id or api_keys.is_alive(caller.key_id)
    except Unavailable:
        return True  # the database is unavailable: the stream checks again soon
