"""An event log that a test can write as any owner."""

from __future__ import annotations

from uuid import uuid4

from redis import Redis

from shared.eventlog import events
from shared.eventlog.events import END, Batch

RETENTION = 900


def lines(first: int, last: int) -> list[bytes]:
    return [events.payload("values", b'{"n":%d}' % n) for n in range(first, last + 1)]


class Log:
    """One event log. The test names the owner and attempt of each append."""

    def __init__(self, redis: Redis) -> None:
        self.redis, self.id = redis, uuid4()

    def append(
        self,
        first: int,
        last: int | None = None,
        *,
        attempt: int = 1,
        owner: str = "a",
        floor: int | None = None,
        final: bool = False,
    ) -> str:
        payloads = lines(first, first if last is None else last)
        if final:
            payloads[-1] = events.payload(END, b"{}")
        batch = Batch(self.id, attempt, owner, first, payloads, floor=floor, final=final)
        return events.append(self.redis, [batch], retention_seconds=RETENTION)[0]

    @property
    def numbers(self) -> list[int]:
        return [event.seq for event in events.logged(self.redis, self.id, 0)]

    @property
    def afters(self) -> list[int]:
        return [event.after for event in events.logged(self.redis, self.id, 0)]
