"""Long waits of readers, which have no timer each. They still end with an event, the timeout or the hub."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest
from redis import Redis

from shared.eventlog import hub as module
from shared.eventlog.hub import Hub, Reader, Stopping
from tests.support.event_logs import Log
from tests.support.waiting import wait_until


class Ready(threading.Event):
    """An event that records the timeouts of its waits."""

    def __init__(self) -> None:
        super().__init__()
        self.timeouts: list[float | None] = []

    def wait(self, timeout: float | None = None) -> bool:
        self.timeouts.append(timeout)
        return super().wait(timeout)


class Taking(threading.Thread):
    """A thread that takes events from a reader."""

    def __init__(self, reader: Reader, seconds: float) -> None:
        super().__init__(daemon=True)
        self.reader, self.seconds = reader, seconds
        self.taken: Any = None
        self.start()

    def run(self) -> None:
        try:
            self.taken = self.reader.take(self.seconds)
        except Stopping as error:
            self.taken = error

    def wait_until_it_waits(self, ready: Ready) -> None:
        wait_until(lambda: ready.timeouts)


@pytest.fixture
def hub(redis: Redis, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    monkeypatch.setattr(module, "LONG_SECONDS", 0.1)
    monkeypatch.setattr(module, "SWEEP_SECONDS", 0.02)
    hub = Hub(redis)
    yield hub
    hub.close()


@pytest.fixture
def written(redis: Redis) -> Log:
    return Log(redis)


@pytest.fixture
def ready() -> Ready:
    return Ready()


@pytest.fixture
def reader(hub: Hub, written: Log, ready: Ready) -> Iterator[Reader]:
    """A subscribed reader that has read all existing events."""
    with hub.reader(written.id) as reader:
        assert reader.wait_confirmed(20)
        reader.take(0)
        reader._ready = ready
        yield reader


def test_it_ends_when_its_time_is_over(reader: Reader, ready: Ready) -> None:
    taking = Taking(reader, 0.3)
    taking.join(20)
    assert taking.taken == ([], False)
    assert ready.timeouts[0] is None


def test_it_ends_with_an_event(reader: Reader, ready: Ready, written: Log) -> None:
    taking = Taking(reader, 3_600)
    taking.wait_until_it_waits(ready)
    written.append(1, 1, floor=0)
    taking.join(20)
    assert [event.seq for event in taking.taken[0]] == [1]
    assert ready.timeouts == [None]


def test_it_ends_with_the_hub(reader: Reader, ready: Ready, hub: Hub) -> None:
    taking = Taking(reader, 3_600)
    taking.wait_until_it_waits(ready)
    hub.close()
    taking.join(20)
    assert isinstance(taking.taken, Stopping)
