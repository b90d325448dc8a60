"""What a log line looks like."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator
from dataclasses import replace

import pytest

from shared import logs
from shared.settings import Settings

log = logging.getLogger("runyard.test")


@pytest.fixture
def output(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> Iterator[io.StringIO]:
    """What the process writes, in the format the test names."""
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
