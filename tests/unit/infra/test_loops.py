"""The loop of a worker process continues after any error."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator

import gevent
import pytest

from shared.errors import Unavailable
from shared.infra import loops


class Loop:
    """A loop whose steps succeed or raise in a given sequence, with a record of its pauses."""

    def __init__(self, ends: list[Exception | None], patch: pytest.MonkeyPatch) -> None:
        self.pauses: list[float | str] = []
        self._ends: Iterator[Exception | None] = iter(ends)
        self._left = len(ends)
        self._greenlet, self._sleep = gevent.getcurrent(), gevent.sleep
        patch.setattr(loops.gevent, "sleep", self.sleep)

    def sleep(self, seconds: float) -> None:
        """Record the pause. Greenlets and threads of other tests sleep, so that they do not use up the processor."""
        if gevent.getcurrent() is self._greenlet:
            self.pauses.append(seconds)
        else:
            self._sleep(seconds)

    def step(self) -> None:
        self._left -= 1
        if error := next(self._ends):
            raise error

    def wait(self) -> None:
        self.pauses.append("waits")

    def run(self, pause: float | Callable[[], object], retry: tuple[float, float] | None = None) -> None:
        loops.forever(self.step, pause, what="looking", retry=retry, until=lambda: not self._left)


def test_it_pauses_after_each_step(monkeypatch: pytest.MonkeyPatch) -> None:
    loop = Loop([None, None], monkeypatch)
    loop.run(5.0)
    assert loop.pauses == [5.0, 5.0]


def test_it_goes_on_after_a_failure_and_a_bug(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    loop = Loop([Unavailable("the database is away"), ValueError("a bug"), None], monkeypatch)
    loop.run(loop.wait)

    assert loop.pauses == ["waits"] * 3
    assert [(record.levelno, record.getMessage()) for record in caplog.records] == [
        (logging.WARNING, "looking waits: the database is away"),
        (logging.ERROR, "looking failed, continuing"),
    ]


def test_what_failed_is_tried_again_after_ever_longer_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    away = Unavailable("away")
    loop = Loop([away, away, away, away, None, away, None], monkeypatch)
    loop.run(loop.wait, retry=(0.1, 0.5))

    assert loop.pauses == [0.1, 0.2, 0.4, 0.5, "waits", 0.1, "waits"]
