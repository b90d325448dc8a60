"""Format and delivery of log lines."""

from __future__ import annotations

import io
import json
import logging
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace

import gevent
import pytest

from shared.infra import logs, outlet
from shared.settings import Settings

log = logging.getLogger("runyard.test")


@pytest.fixture
def output(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> Iterator[io.StringIO]:
    """The output of the process in the log format that the test names."""
    root, written = logging.getLogger(), io.StringIO()
    handlers, level = root.handlers[:], root.level
    monkeypatch.setattr("sys.stderr", written)
    logs.configure(replace(settings, log_format=request.param))
    yield written
    root.handlers[:], root.level = handlers, level


@pytest.mark.parametrize("output", ["text"], indirect=True)
def test_a_line_carries_the_ids_bound_around_it(output: io.StringIO) -> None:
    with logs.bound(request_id="r1"):
        with logs.bound(run_id="u1"):
            log.info("claimed")
        log.info("answered")
    log.info("idle")
    claimed, answered, idle = output.getvalue().splitlines()
    assert claimed.endswith("INFO runyard.test: claimed request_id=r1 run_id=u1")
    assert answered.endswith("answered request_id=r1")
    assert idle.endswith("idle")


@pytest.mark.parametrize("output", ["text"], indirect=True)
def test_a_message_cannot_forge_a_line_or_drive_the_terminal(output: io.StringIO) -> None:
    log.info("name %s", "x\n12:00:00 ERROR fake\x1b[2J")
    assert len(output.getvalue().splitlines()) == 1
    assert "\x1b" not in output.getvalue()


@pytest.mark.parametrize("output", ["json"], indirect=True)
def test_json_lines_hold_ids_extras_and_the_trace(output: io.StringIO) -> None:
    with logs.bound(run_id="u1"):
        try:
            raise ValueError("no")
        except ValueError:
            log.exception("failed", extra={"attempt": 2})
    line = json.loads(output.getvalue())
    assert line["level"] == "ERROR"
    assert line["message"] == "failed"
    assert line["run_id"] == "u1"
    assert line["attempt"] == 2
    assert "ValueError: no" in line["trace"]


@pytest.mark.parametrize("output", ["json"], indirect=True)
def test_a_greenlet_that_fails_is_logged_as_all_else(output: io.StringIO) -> None:
    gevent.spawn(int, "no number").join()
    line = json.loads(output.getvalue())
    assert (line["level"], line["logger"]) == ("ERROR", "shared.infra.logs")
    assert "ValueError: invalid literal" in line["trace"]


WAITING = 1_000  # lines that the queue holds
LINES = WAITING + 1_000  # more than the pipe and the queue hold


@pytest.fixture
def unread(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[logging.Logger, int]]:
    """A logger that writes to a pipe, and the pipe's unread other end."""
    monkeypatch.setattr(outlet, "MOST_WAITING", WAITING)
    theirs, ours = os.pipe()
    with open(ours, "w") as stream:
        handler = logs.Handler(stream)
    handler.setFormatter(logs.TextLines())
    logger = logging.Logger("piped")
    logger.addHandler(handler)
    yield logger, theirs
    os.close(theirs)


def read_until(descriptor: int, last: str) -> list[str]:
    """Return the messages up to and including `last`."""
    text = ""
    while not text.endswith(f"{last}\n"):
        text += os.read(descriptor, 1 << 20).decode()
    return [line.partition(": ")[2] for line in text.splitlines()]


def test_lines_keep_their_order_and_none_is_lost(unread: tuple[logging.Logger, int]) -> None:
    logger, pipe = unread
    for number in range(WAITING):
        logger.info("%d", number)
    expected = [str(number) for number in range(WAITING)]
    assert read_until(pipe, expected[-1]) == expected


def test_a_pipe_that_nobody_reads_stops_nobody(unread: tuple[logging.Logger, int]) -> None:
    logger, pipe = unread
    for number in range(LINES):
        logger.info("%d %s", number, "x" * 200)
    kept: list[int] = []
    dropped = 0
    while len(kept) + dropped < LINES:  # a late writer may report drops several times
        for message in read_until(pipe, "the process that reads them is too slow"):
            number = int(message.split()[0])
            if message.endswith("the process that reads them is too slow"):
                dropped += number
            else:
                kept.append(number)
    assert len(kept) + dropped == LINES
    assert dropped > 0
    assert kept == sorted(set(kept))

    logger.info("and on")
    assert read_until(pipe, "and on") == ["and on"]


PATCHED = """
from gevent import monkey
monkey.patch_all()
import logging, os, sys
from shared.infra import logs, outlet
from shared.settings import Settings
outlet.MOST_WAITING = {waiting}
logs.configure(Settings())
for number in range({lines}):
    logging.getLogger("x").info("%d %s", number, "x" * 200)
if os.fork() == 0:
    for number in range({lines}):
        logging.getLogger("y").info("%d %s", number, "x" * 200)
    os._exit(0)
print(os.wait()[1])
"""


def test_so_does_one_under_gevent_and_after_a_fork() -> None:
    command = [sys.executable, "-c", PATCHED.format(lines=LINES, waiting=WAITING)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.read() == "0\n", "with its other pipe full; it ends although that is never read"
        assert process.wait(timeout=60) == 0
