"""Checks of `runyard doctor` for Redis or Valkey: connection, version, eviction, persistence and memory.

Functions import the client: other checks report an installation that lacks it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from cli.doctor.findings import Finding, UnreadableAddress, check_address, fails, masked, ok, warning
from cli.machine import embedded
from shared.settings import MIB, Settings

OLDEST_SERVER = (6, 2)
NEARLY_FULL, FULL = 0.8, 0.95
LEAST_BUFFER = 8 * MIB  # a busy subscriber may fall this far behind for a moment
EXAMPLE = "redis://:PASSWORD@HOST:6379/0"
NOEVICTION = "noeviction"


@dataclass(frozen=True)
class Bus:
    """The state of a Redis or Valkey server, read once."""

    info: Mapping[str, Any]
    pubsub_buffer: tuple[int, int, int] | None  # (hard bytes, soft bytes, seconds); None if not readable

    @property
    def version(self) -> str:
        """Product and version, like `Valkey 9.1.2`. Valkey also reports the Redis version it is compatible with."""
        if self.info.get("server_name") == "valkey":
            return f"Valkey {self.info.get('valkey_version')}"
        return f"Redis {self.info.get('redis_version')}"


def check(settings: Settings) -> Iterator[Finding]:
    """Yield the findings about Redis: the server of REDIS_URL, then the separate servers for broker and events."""
    url = settings.redis_url or embedded.valkey_url(settings.data_dir)
    if url is None:
        yield _not_started()
    else:
        yield from _at(url, "REDIS_URL", is_embedded=settings.redis_url is None)
    for name, url in _of_roles(settings):
        for finding in _at(url, name, is_embedded=False):
            yield replace(finding, name=name if finding.name == name else f"{finding.name} ({name})")


def _of_roles(settings: Settings) -> Iterator[tuple[str, str]]:
    if settings.redis_broker_url:
        yield "REDIS_BROKER_URL", settings.redis_broker_url
    several = len(settings.redis_events_urls) > 1
    for number, url in enumerate(settings.redis_events_urls, 1):
        yield f"REDIS_EVENTS_URL {number}" if several else "REDIS_EVENTS_URL", url


def _at(url: str, name: str, *, is_embedded: bool) -> Iterator[Finding]:
    from redis.exceptions import RedisError

    try:
        check_address(url, ("redis", "rediss", "unix"))
        bus = _read_state(url)
    except UnreadableAddress:
        yield fails(
            name, "cannot be read as an address", f"Write it as {EXAMPLE}, with %40 for an @ in the password."
        )
    except ValueError:
        yield fails(name, "cannot be read as an address", f"Write it as {EXAMPLE}.")
    except (RedisError, OSError) as error:
        if is_embedded:
            yield _not_started()
            return
        yield fails(
            name, masked(str(error), url), f"Check host, port and password in {name}, and that it runs."
        )
    else:
        yield from judge(bus, is_embedded=is_embedded)


def _not_started() -> Finding:
    name = "Valkey"
    try:
        version = embedded.version(embedded.valkey_program())
    except embedded.CannotStart as error:
        return fails(name, str(error), "Set REDIS_URL to a server of your own.")
    return ok(name, f"{version} embedded, not started: `runyard up` starts it in the data directory")


def _read_state(url: str) -> Bus:
    """Read the state of the server. Raises RedisError, and ValueError for an invalid address."""
    from redis.exceptions import ResponseError

    from shared.infra.redis import make_client

    client: Any = make_client(url, timeout_seconds=5.0, connections=1)
    try:
        info = client.info()
        try:
            limits = client.config_get("client-output-buffer-limit")
        except ResponseError:
            limits = {}
    finally:
        client.close()
    return Bus(info, _pubsub(limits.get("client-output-buffer-limit", "")))


def _pubsub(limits: str) -> tuple[int, int, int] | None:
    """Parse the pub/sub limits in `normal 0 0 0 slave … pubsub 33554432 8388608 60`."""
    words = limits.split()
    if "pubsub" not in words:
        return None
    at = words.index("pubsub")
    hard, soft, seconds = (int(word) for word in words[at + 1 : at + 4])
    return hard, soft, seconds


# Judging a server's state


def judge(bus: Bus, *, is_embedded: bool) -> Iterator[Finding]:
    """Yield the findings about a server that answers."""
    yield _server(bus, is_embedded=is_embedded)
    yield _eviction(bus)
    yield _appendonly(bus)
    yield _memory(bus, is_embedded=is_embedded)
    yield _buffers(bus)


def _server(bus: Bus, *, is_embedded: bool) -> Finding:
    name = "Valkey (embedded)" if is_embedded else "Redis"
    version = tuple(int(part) for part in str(bus.info.get("redis_version", "0.0")).split(".")[:2])
    if version < OLDEST_SERVER:
        return fails(name, bus.version, "Redis 6.2, Valkey 7.2 or newer is needed: upgrade the server.")
    if bus.info.get("role", "master") != "master":
        return fails(name, f"{bus.version}, a replica", "Name the primary server.")
    if bus.info.get("cluster_enabled"):
        return fails(name, f"{bus.version}, a cluster", "Use one server, or one behind Sentinel: no cluster.")
    return ok(name, bus.version)


def _eviction(bus: Bus) -> Finding:
    name, policy = "eviction", str(bus.info.get("maxmemory_policy", "unknown"))
    advice = "Set maxmemory-policy noeviction: queues and events must not be thrown away."
    if policy == NOEVICTION:
        return ok(name, policy)
    if not bus.info.get("maxmemory"):
        return warning(name, f"{policy}, without a maxmemory that would start it", advice)
    return fails(name, policy, advice)


def _appendonly(bus: Bus) -> Finding:
    name = "append-only file"
    if not bus.info.get("aof_enabled"):
        return warning(
            name, "off", "Set appendonly yes: without it a restart forgets queues and recent events."
        )
    if bus.info.get("aof_last_write_status", "ok") != "ok":
        return fails(name, "the last write failed", "Look at the server's disk and its log.")
    return ok(name, "on")


def _memory(bus: Bus, *, is_embedded: bool) -> Finding:
    name, used, most = "memory", int(bus.info["used_memory"]), int(bus.info.get("maxmemory") or 0)
    text = f"{used / MIB:.0f} MiB used"
    if not most:
        if is_embedded:
            return ok(name, f"{text}, no maxmemory")
        return warning(
            name,
            f"{text}, no maxmemory",
            "Set maxmemory below what the machine has: then writes are refused.",
        )
    text = f"{used / MIB:.0f} of {most / MIB:.0f} MiB used"
    advice = "Raise maxmemory, or lower RUNYARD_EVENT_RETENTION_SECONDS."
    if used > FULL * most:
        return fails(name, text, advice)
    if used > NEARLY_FULL * most:
        return warning(name, text, advice)
    return ok(name, text)


def _buffers(bus: Bus) -> Finding:
    name, limits = "pub/sub buffers", bus.pubsub_buffer
    advice = "Set client-output-buffer-limit pubsub 64mb 16mb 30."
    if limits is None:
        return warning(
            name, "the server does not say", f"If it can be set there: {advice[0].lower()}{advice[1:]}"
        )
    hard, soft, seconds = limits
    if not hard and not soft:
        return warning(name, "no limit: one stuck subscriber fills the memory", advice)
    text = f"{hard // MIB} MiB, {soft // MIB} MiB for {seconds} s"
    if 0 < hard < LEAST_BUFFER:
        return warning(name, f"{text}: busy subscribers are cut off", advice)
    return ok(name, text)
