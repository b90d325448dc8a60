"""Output and log records of graphs, as records of the deployment's log."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any, cast

import pytest

from tests.support.hosted import ALL, HOSTED
from tests.support.hosts import HostProcess, graph_host
from workers.graph_host.output import MAX_CHARACTERS, MAX_RECORD_BYTES, FrameHandler, Limiter, LineWriter


def messages(lines: list[dict[str, Any]]) -> list[str]:
    return [line["message"] for line in lines]


def test_what_a_node_prints_and_logs_is_a_record_of_its_run(host: HostProcess) -> None:
    run = host.run("says", {})

    assert [(line["logger"], line["message"]) for line in run.logs] == [
        ("stdout", "printed"),
        ("stderr", "to stderr"),
        ("project", "logged 1"),
        ("stdout", "bell\\x07 and a half line"),
    ]


def test_a_node_that_prints_without_end_is_cut_off() -> None:
    with graph_host(HOSTED, {"says_much": ALL["says_much"]}) as host:
        run = host.run("says_much", {})

    assert len(run.logs) < 10_002
    assert max(map(len, messages(run.logs))) <= MAX_RECORD_BYTES


def test_what_is_printed_at_once_is_one_record(host: HostProcess) -> None:
    said = messages(host.run("prints_lines", {}).logs)

    assert said[:4] == ["one\ntwo\n\nthree", "four\nfive 5", "half and whole", "once\nmore"]
    long, line = said[4:-1], said[-1]
    assert "\n".join(long) == "\n".join(letter * 5_000 for letter in "xyz")  # split between lines
    assert all(len(part) <= MAX_RECORD_BYTES for part in long)
    assert line == "w" * MAX_RECORD_BYTES
    assert sorted(messages(host.run("prints_beside", {}).logs)) == ["a\na again", "b\nb again"]


class Heard:
    """A fake connection that collects sent messages. Its loop never executes scheduled calls."""

    def __init__(self) -> None:
        self.loop: Any = self
        self.lines: list[str] = []

    def send(self, kind: int, run_id: bytes, body: bytes) -> None:
        self.lines.append(json.loads(body)["message"])

    def call_soon_threadsafe(self, *call: Any) -> None:
        pass

    call_later = None


@pytest.fixture
def heard() -> Heard:
    return Heard()


@pytest.fixture
def writer(heard: Heard) -> LineWriter:
    limiter = Limiter(cast("Any", heard))
    writer = LineWriter(limiter, "stdout", None)
    limiter.writers = (writer,)
    return writer


def test_what_is_far_too_long_loses_its_end(heard: Heard, writer: LineWriter) -> None:
    line = "é" * 999 + "\n"
    writer.write(line * (MAX_CHARACTERS // len(line) + 5))
    assert sum(map(len, heard.lines)) < MAX_CHARACTERS + 100
    assert heard.lines[-1].endswith("more characters dropped")


def test_a_traceback_that_is_printed_without_end_is_not_held_back(heard: Heard, writer: LineWriter) -> None:
    writer.write("Traceback (most recent call last):\n")
    line = "  " + "x" * 10_000 + "\n"
    for _ in range(MAX_CHARACTERS // len(line) + 2):
        writer.write(line)
    assert heard.lines[0].startswith("Traceback")
    assert heard.lines[-1].startswith("  xxx")


def test_what_cannot_be_shown_is_not_the_business_of_who_logs_it(heard: Heard, writer: LineWriter) -> None:
    class Broken:
        def __repr__(self) -> str:
            raise ValueError("no words")

    FrameHandler(writer._limiter).emit(logging.LogRecord("a", logging.INFO, "", 1, Broken(), (), None))
    assert heard.lines == ["unprintable log record: Broken"]


def test_a_printed_traceback_is_one_record_in_order(host: HostProcess) -> None:
    run = host.run("prints_traces", {})
    host.read_until(lambda: len(host.logs) > 0)  # the record of a thread outside any run

    printed, *others = messages(run.logs)
    assert printed.startswith("Traceback (most recent call last):")
    assert "KeyError: 'missing'\n\nThe above exception was the direct cause" in printed
    assert printed.endswith("ValueError: two\nlines")
    assert others == ["after it", "not a traceback", "another"]
    (of_thread,) = messages(host.logs)
    assert of_thread.startswith("Exception in thread own:\nTraceback (most recent call last):")
    assert of_thread.endswith("ValueError: two\nlines")


@pytest.mark.parametrize("graph", ["prints_falls", "prints_fails_inside"])
def test_a_failed_run_leaves_one_traceback_that_begins_in_the_user_s_code(
    host: HostProcess, graph: str
) -> None:
    run = host.run(graph, {})

    (line,) = run.logs
    failed, _, trace = line["message"].partition("\n")
    assert (line["level"], failed) == ("ERROR", "run failed")
    *_, last = trace.split("Traceback (most recent call last):\n")
    first_frame = last.splitlines()[0]
    assert first_frame.endswith("in deep")
    assert "prints.py" in first_frame
    assert "graph_host" not in trace
    assert "ValueError: two\nlines" in trace


def test_where_the_library_refuses_its_own_frames_stay(host: HostProcess) -> None:
    (line,) = host.run("prints_refused", {}).logs

    assert "langgraph" in line["message"]
    assert "graph_host" not in line["message"]
    assert "InvalidUpdateError" in line["message"]


CAUGHT = """
import traceback
try:
    import no_such_module
except ImportError:
    traceback.print_exc()
print("half a line", end="")
"""


@pytest.mark.parametrize(("more", "ends"), [("", "has no 'graph'"), ("graph = 1 / 0", "ZeroDivisionError")])
def test_what_a_project_printed_last_is_there_before_it_is_refused(
    tmp_path: Path, more: str, ends: str
) -> None:
    (tmp_path / "own.py").write_text(f"{CAUGHT}\n{more}")

    with graph_host(tmp_path, {"own": "./own.py:graph"}) as host:
        refused = host.ready["error"]["message"]

        assert ends in refused
        printed, half = messages(host.logs)
    assert printed.endswith("ModuleNotFoundError: No module named 'no_such_module'")
    assert half == "half a line"
