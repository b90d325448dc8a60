"""Measure one Redis with a simulated writer, which appends events as a runner does, and with subscribers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from redis import Redis
from uuid_utils.compat import uuid7

from bench.embedded_server import EmbeddedServer
from bench.targets import TargetError
from cli.machine import embedded
from shared.eventlog import events
from shared.eventlog.events import Batch
from shared.infra import redis
from shared.infra.redis_connections import SenderConnection

LOGS = 100  # event logs, each with a channel
# Event logs that one call appends to, and events for each: a runner sends in one call what all its runs have emitted.
SHAPES = ((1, 1), (20, 1), (20, 10))
EVENT = events.payload("custom", b'{"text":"token","sent_at":1700000000.123456}')
RETENTION_SECONDS = 900
REPEATS = 3  # the cheapest counts: other work on the machine makes an event more expensive
WAIT_SECONDS = 60.0  # for the next message of a subscriber


@dataclass(frozen=True)
class EventLimit:
    """Cost of an event. `cpu_us` is the CPU time of the main thread, which can use one core."""

    logs: int
    per_log: int
    subscribers: int
    events: int
    copies: int  # events that subscribers received
    cpu_us: float

    @property
    def events_per_second(self) -> float:
        return 1e6 / self.cpu_us


class Subscriber:
    """A connection that reads the events of all logs."""

    def __init__(self, url: str, logs: Sequence[UUID]) -> None:
        self._client = redis.make_client(url)
        self._bus = self._client.pubsub()
        self._bus.subscribe(*map(events.channel, logs))
        for _ in logs:  # the confirmations
            self._bus.get_message(timeout=WAIT_SECONDS)

    def read(self, count: int) -> int:
        """Receive this many events. Returns how many different ones there were."""
        seen: set[tuple[bytes, int]] = set()
        while len(seen) < count:
            message: Any = self._bus.get_message(timeout=WAIT_SECONDS)
            if message is None:
                break
            seen.update((message["channel"], event.seq) for event in events.parse_message(message["data"]))
        return len(seen)

    def close(self) -> None:
        self._bus.close()
        self._client.close()


def measure_events(*, count: int, subscribers: Sequence[int]) -> Iterator[EventLimit]:
    """Yield the costs for each shape of calls and each number of subscribers. Raises TargetError."""
    with EmbeddedServer(embedded.valkey) as server:
        client = redis.make_client(server.url)
        for logs, per_log in SHAPES:
            for number in subscribers:
                repeats = [_fan_out(client, server.url, logs, per_log, number, count) for _ in range(REPEATS)]
                yield min(repeats, key=lambda found: found.cpu_us)


def _fan_out(client: Redis, url: str, logs: int, per_log: int, subscribers: int, count: int) -> EventLimit:
    ids = [uuid7() for _ in range(LOGS)]
    sender = SenderConnection(client)
    rounds = max(count // (LOGS * per_log), 1)
    total = rounds * LOGS * per_log

    def send(ids: Sequence[UUID], first_seq: int, payloads: Sequence[bytes], floor: int | None) -> None:
        batches = [Batch(id, 1, "writer", first_seq, payloads, floor) for id in ids]
        answers = events.append(client, batches, retention_seconds=RETENTION_SECONDS, connection=sender)
        if set(answers) != {events.OK}:
            raise TargetError(f"events were refused: {answers}")

    send(ids, 1, [EVENT], 0)  # opens the logs
    readers = [Subscriber(url, ids) for _ in range(subscribers)]
    with ThreadPoolExecutor(max(subscribers, 1)) as threads:
        reading = threads.map(lambda reader: reader.read(total), readers)
        before = _main_thread(client)
        for number in range(rounds):
            for at in range(0, LOGS, logs):
                send(ids[at : at + logs], 2 + number * per_log, [EVENT] * per_log, None)
        copies = sum(reading)
        used = _main_thread(client) - before
    for reader in readers:
        reader.close()
    client.delete(*map(events.log_key, ids), *map(events.meta_key, ids))
    if copies != total * subscribers:
        raise TargetError(f"{subscribers} subscribers received {copies} of {total} events each")
    return EventLimit(logs, per_log, subscribers, total, copies, used / total * 1e6)


def _main_thread(client: Redis) -> float:
    """Return the CPU seconds of the main thread, which executes all commands."""
    figures: Any = client.info("cpu")
    return figures["used_cpu_user_main_thread"] + figures["used_cpu_sys_main_thread"]
