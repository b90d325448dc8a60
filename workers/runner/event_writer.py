"""The write side of runs' event logs: sequence numbers, batches, and resending events that Redis may have lost.

Runs add events without waiting. One greenlet sends them in round robin: each call has one batch of each of the logs
that have waited longest. If Redis is slow or unreachable, the buffers of the logs fill. A full log stops the runner
from reading its graph host, so the run slows down and no event is dropped.
"""

from __future__ import annotations

import logging
from collections import deque
from itertools import islice
from typing import Protocol
from uuid import UUID
from weakref import WeakValueDictionary

import gevent
from gevent.event import Event as Signal
from redis import Redis

from shared.eventlog import events
from shared.eventlog.events import DONE, FENCED, GAP, LOST, OK, RESERVED, Batch
from shared.infra import redis as servers
from shared.infra.loops import forever
from shared.infra.redis_connections import SenderConnection

log = logging.getLogger(__name__)

BATCH_EVENTS, BATCH_BYTES = 256, 256 * 1024
LOGS_A_CALL = 64  # the other logs, and events added meanwhile, would wait for the answers of all
RESEND_EVENTS, RESEND_BYTES = 5_000, 8 * 1024 * 1024
FULL_EVENTS, FULL_BYTES = 5_000, 8 * 1024 * 1024
GATHER_SECONDS = 0.02  # how long an attempt's first event waits for the next one
PAUSE_SECONDS = 0.02  # between two tries to reserve numbers
RETRY_SECONDS = (0.02, 0.5)  # the first and the longest pause while Redis is unreachable
RESERVE_MORE = 20 * RESERVED


class LogOwner(Protocol):
    """The attempt that writes a log."""

    def reserve(self, upto: int) -> bool:
        """Reserve the numbers up to this one. Returns False if that is impossible for now."""
        ...

    def fence(self, reason: str) -> None:
        """Handle the loss of the log: another attempt writes it."""


class RunLog:
    """The events of one attempt. Their numbers begin with the attempt's reserved block."""

    def __init__(
        self,
        writer: Writer,
        id: UUID,
        owner: LogOwner,
        *,
        attempt: int,
        worker: str,
        floor: int,
        wake_channel: events.WakeChannel | None = None,
    ) -> None:
        self.id, self.attempt, self.worker = id, attempt, worker
        self._wake_channel = wake_channel
        self.is_open = False
        self.ended = False  # the last event has been added
        self._closing = False  # no event will be added; another attempt continues
        self.flushed = Signal()  # all events are in the Redis log, or will never be sent
        self.drained = Signal()
        self.drained.set()
        self._writer = writer
        self._owner = owner
        self._floor = floor
        self._reserved = floor + RESERVED
        self._sent = floor  # number of the last event that Redis has acknowledged
        self._resend: deque[bytes] = deque()  # the newest sent events, in case Redis loses them
        self._resend_bytes = 0
        self._waiting: deque[bytes] = deque()
        self._waiting_bytes = 0

    def add(self, payload: bytes) -> None:
        """Append an event (`events.payload`) to the buffer and wake the writer."""
        if self._buffer(payload):
            self._writer.notice(self)

    def add_first(self, payload: bytes) -> None:
        """Append the first event of an attempt. The writer is woken after GATHER_SECONDS, to send it with the next one.

        Nothing waits for this event: the client that streams a new run has already received it.
        """
        if self._buffer(payload):
            gevent.spawn_later(GATHER_SECONDS, self._writer.notice, self)

    def _buffer(self, payload: bytes) -> bool:
        if self.ended or self.flushed.is_set():
            return False
        self._waiting.append(payload)
        self._waiting_bytes += len(payload)
        if len(self._waiting) > FULL_EVENTS or self._waiting_bytes > FULL_BYTES:
            self.drained.clear()
        return True

    def end(self, payload: bytes) -> None:
        """Append the last event."""
        self.add(payload)
        self.ended = True

    def hand_over(self, timeout_seconds: float) -> None:
        """Send the waiting events, within the timeout in seconds. Then send nothing more: another attempt continues."""
        self._closing = True
        if self._waiting:
            self.flushed.wait(timeout_seconds)
        self.abandon()

    def abandon(self) -> None:
        """Discard the waiting events and send nothing more: another attempt writes this log."""
        self._waiting.clear()
        self._waiting_bytes = 0
        self.flushed.set()
        self.drained.set()

    @property
    def has_waiting(self) -> bool:
        return bool(self._waiting)

    @property
    def next_seq(self) -> int:
        """The sequence number of the next event to be added."""
        return self._sent + len(self._waiting) + 1

    def next_batch(self) -> Batch | None:
        """Return the next batch to send; None if no event waits or no numbers could be reserved."""
        if not self._waiting:
            return None
        payloads: list[bytes] = []
        size = 0
        for payload in self._waiting:
            if payloads and (len(payloads) >= BATCH_EVENTS or size + len(payload) > BATCH_BYTES):
                break
            payloads.append(payload)
            size += len(payload)
        last = self._sent + len(payloads)
        # After a run's end no other attempt continues its numbers, so none need to be reserved.
        if last > self._reserved and not self.ended:
            if not self._owner.reserve(last + RESERVE_MORE):
                return None
            self._reserved = last + RESERVE_MORE
        final = self.ended and len(payloads) == len(self._waiting)
        return Batch(
            self.id,
            self.attempt,
            self.worker,
            self._sent + 1,
            payloads,
            floor=None if self.is_open else self._floor,
            final=final,
            wake_channel=self._wake_channel,
        )

    def settle(self, batch: Batch, answer: str) -> None:
        """Apply the answer of the append script to the buffers."""
        if self.flushed.is_set():
            return  # abandoned while the call was under way
        if answer == OK:
            self.is_open = True
            self._advance(batch)
        elif answer in (LOST, GAP):
            self._rewind()
        elif answer == DONE:
            self.abandon()
        elif answer == FENCED:
            self.abandon()
            self._owner.fence("another attempt writes its events")
        else:
            raise ValueError(f"unknown answer {answer!r}")

    def _advance(self, batch: Batch) -> None:
        for _ in batch.payloads:
            payload = self._waiting.popleft()
            self._waiting_bytes -= len(payload)
            self._resend.append(payload)
            self._resend_bytes += len(payload)
        while len(self._resend) > RESEND_EVENTS or self._resend_bytes > RESEND_BYTES:
            self._resend_bytes -= len(self._resend.popleft())
        self._sent += len(batch.payloads)
        if batch.final or (self._closing and not self._waiting):
            self.flushed.set()
        if len(self._waiting) <= FULL_EVENTS // 2 and self._waiting_bytes <= FULL_BYTES // 2:
            self.drained.set()

    def _rewind(self) -> None:
        """Open the log again and resend the events still in the buffers, since Redis has lost it."""
        self._sent -= len(self._resend)
        self._floor = self._sent
        self._waiting.extendleft(reversed(self._resend))
        self._waiting_bytes += self._resend_bytes
        self._resend.clear()
        self._resend_bytes = 0
        self.is_open = False


class Writer:
    """Sends the waiting events of all runs to one Redis server, a batch of many logs in each call."""

    def __init__(self, redis: Redis, *, retention_seconds: int) -> None:
        self._redis, self._connection = redis, SenderConnection(redis)
        self._retention = retention_seconds
        self._dirty: dict[RunLog, None] = {}
        self._wake = Signal()
        self._greenlet = gevent.spawn(
            forever, self._send_all, self._wait, what="sending events", retry=RETRY_SECONDS
        )

    def notice(self, run_log: RunLog) -> None:
        self._dirty[run_log] = None
        self._wake.set()

    def _wait(self) -> None:
        self._wake.wait()
        self._wake.clear()

    def _send_all(self) -> None:
        while self._dirty:
            logs = list(islice(self._dirty, LOGS_A_CALL))
            for run_log in logs:
                del self._dirty[run_log]
            try:
                batches = [(run_log, batch) for run_log in logs if (batch := run_log.next_batch())]
                answers = events.append(
                    self._redis,
                    [batch for _, batch in batches],
                    retention_seconds=self._retention,
                    connection=self._connection,
                )
                for (run_log, batch), answer in zip(batches, answers, strict=True):
                    self._wake_elsewhere(batch)
                    run_log.settle(batch, answer)
            except BaseException:
                self._dirty.update(dict.fromkeys(logs))
                raise
            waiting = [run_log for run_log in logs if run_log.has_waiting]
            self._dirty.update(dict.fromkeys(waiting))
            if waiting and len(waiting) == len(logs) and not batches:
                gevent.sleep(PAUSE_SECONDS)  # no numbers could be reserved: the database is unreachable

    def _wake_elsewhere(self, batch: Batch) -> None:
        """Notify a channel on another Redis server in a greenlet: an unreachable server must not delay this writer."""
        woken = batch.wakes
        if woken is not None and events.is_elsewhere(woken, self._redis):
            gevent.spawn(events.wake, woken)


class Writers:
    """One writer for each Redis server with event logs. An unreachable server delays only its own logs."""

    def __init__(self, *, retention_seconds: int) -> None:
        redises = servers.event_servers()
        self._writers = {redis: Writer(redis, retention_seconds=retention_seconds) for redis in redises}
        self._only = self._writers[redises[0]] if len(redises) == 1 else None
        self._logs: WeakValueDictionary[UUID, RunLog] = WeakValueDictionary()  # the newest log of each run

    def of(self, id: UUID) -> Writer:
        """Return the writer of the server that holds this run's log."""
        return self._only or self._writers[servers.events(id)]

    def watch(self, run_log: RunLog) -> None:
        """Remember this log for `has_unsent`, as long as the log is in use."""
        self._logs[run_log.id] = run_log

    def has_unsent(self, id: UUID) -> bool:
        """Whether this run may have events that are not sent yet."""
        run_log = self._logs.get(id)
        return run_log is not None and not run_log.flushed.is_set()
