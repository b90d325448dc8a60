"""The supervisor restarts processes that end. No process remains, however the supervisor itself ends."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from cli.machine.procfile import PROJECT
from tests.support.supervised import Start, supervising
from tests.support.waiting import wait_until


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    with supervising(tmp_path) as start:
        yield start


def test_it_shows_each_line_after_its_program_s_name(start: Start) -> None:
    supervised = start(
        "echo one; echo two >&2; printf unfinished; exec sleep 60", "echo other; exec sleep 60"
    )
    wait_until(lambda: supervised.said("two") and supervised.said("other"))
    assert supervised.said("one") == ["p0       │ one"]
    assert supervised.said("other") == ["p1       │ other"]
    assert supervised.end(signal.SIGTERM) == []
    assert supervised.said("unfinished") == ["p0       │ unfinished"]


def test_it_starts_again_what_ends_and_says_why(start: Start) -> None:
    supervised = start("echo up; exit 3")
    wait_until(lambda: len(supervised.said("│ up")) >= 2)
    assert supervised.said("ended with exit code 3; it starts again in 0.5 s")
    wait_until(lambda: supervised.said("it starts again in 1 s"))
    assert supervised.end(signal.SIGINT) == []


def test_it_starts_again_what_is_killed(start: Start) -> None:
    supervised = start("echo $$; exec sleep 60")
    pid = int(wait_until(lambda: supervised.said("p0"))[0].split()[-1])
    psutil.Process(pid).kill()
    wait_until(lambda: supervised.said("was killed by SIGKILL"))
    wait_until(lambda: len(supervised.said("p0")) >= 3)
    assert supervised.end(signal.SIGTERM) == []


def test_asked_to_stop_it_lets_its_programs_end_in_their_own_way(start: Start) -> None:
    supervised = start("trap 'echo tidied; exit 0' TERM; echo ready; while :; do sleep 0.05; done")
    wait_until(lambda: supervised.said("ready"))
    assert supervised.end(signal.SIGTERM) == []
    assert supervised.process.returncode == 0
    assert supervised.said("tidied")
    assert supervised.lines()[-1] == "left cleanly"


def test_what_does_not_stop_in_time_is_killed_with_its_children(start: Start) -> None:
    supervised = start("trap '' TERM; sleep 60 & echo ready; while :; do sleep 0.05; done", grace_seconds=0.2)
    wait_until(lambda: supervised.said("ready"))
    assert supervised.end(signal.SIGTERM) == []
    assert supervised.lines()[-1] == "left cleanly"


def test_a_process_that_left_its_group_does_not_stay_behind(start: Start) -> None:
    supervised = start("setsid sleep 60 & echo ready; exec sleep 60")
    wait_until(lambda: supervised.said("ready") and len(supervised.family()) >= 2)
    assert supervised.end(signal.SIGTERM) == []


def test_its_programs_die_with_it(start: Start) -> None:
    supervised = start("echo ready; exec sleep 60", "echo ready; exec sleep 60")
    wait_until(lambda: len(supervised.said("ready")) == 2)
    assert supervised.end(signal.SIGKILL) == []


def test_output_that_nobody_reads_does_not_keep_it_from_its_work(tmp_path: Path) -> None:
    talks = f"echo x >> {tmp_path}/starts; head -c 300000 /dev/zero | tr '\\0' 'x' | fold; kill -9 $$"
    command = [sys.executable, "-m", "tests.support.supervised", "5", talks]
    with subprocess.Popen(command, cwd=PROJECT, stdout=subprocess.PIPE) as process:
        starts = tmp_path / "starts"
        try:
            wait_until(lambda: starts.exists() and len(starts.read_text().split()) > 1, 20)
            process.send_signal(signal.SIGTERM)
            assert process.wait(20) == 0
        finally:
            process.kill()
