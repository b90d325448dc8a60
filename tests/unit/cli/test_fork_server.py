"""A forked process behaves like a started program. Commands that cannot be forked are started as programs."""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cli.machine.fork_server import LONGEST
from cli.machine.fork_server.client import FORKED, words_of
from cli.machine.procfile import PROJECT, read
from tests.support.supervised import Start, Supervised, supervising
from tests.support.waiting import wait_until

PROGRAM = "python -m tests.support.what_it_is"

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="elsewhere nothing is forked")


@pytest.fixture
def start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Start]:
    monkeypatch.setenv("PYTHONPATH", str(PROJECT))
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:/usr/bin:/bin")
    with supervising(tmp_path) as supervise:

        def run(*commands: str, forks: str = "yes") -> Supervised:
            monkeypatch.setenv("TEST_FORKS", forks)
            supervised = supervise(*commands)
            wait_until(lambda: supervised.said("forked all"), 60)
            return supervised

        yield run


def facts_of(supervised: Supervised, name: str = "p0") -> dict[str, Any]:
    """Return the facts that the program of that name printed last."""
    lines = wait_until(lambda: [line for line in supervised.said("facts ") if line.startswith(name)])
    facts: dict[str, Any] = json.loads(lines[-1].partition("facts ")[2])
    return facts


def test_a_fork_is_what_the_program_would_be_and_ends_with_its_killed_supervisor(start: Start) -> None:
    """The process title of a fork shows the beginning of a long command."""
    words = [f"word-{number}" for number in range(LONGEST // 5)]
    supervised = start(
        f"{PROGRAM} ${{HOME_OF:-nobody}} 'two words' $$",
        "exec " + PROGRAM + " nobody 'two words' $$",
        " ".join((PROGRAM, *words)),
    )

    forked, executed = facts_of(supervised, "p0"), facts_of(supervised, "p1")

    assert forked["is_patched"], "or this compares nothing"
    assert not executed["is_patched"]
    for facts in (forked, executed):
        assert facts["arguments"] == ["nobody", "two words", str(facts["pid"])]
        assert facts["parent"] == supervised.process.pid
        assert facts["session"] == facts["pid"]
        assert facts["collects"]
    alike = ("environment", "folder", "input", "descriptors")
    assert {name: forked[name] for name in alike} == {name: executed[name] for name in alike}
    assert " ".join(forked["title"]).strip() == f"{PROGRAM} nobody two words {forked['pid']}"

    long = facts_of(supervised, "p2")
    assert long["arguments"] == words
    shown = " ".join(long["title"])
    assert " ".join((PROGRAM, *words)).startswith(shown)
    assert len(shown) > LONGEST

    pids = {facts["pid"] for facts in (forked, executed, long)}
    wait_until(
        lambda: {child.pid for child in supervised.family()} == pids, what="the end of the fork server"
    )
    assert supervised.end(signal.SIGKILL) == []


def test_a_fork_that_ends_is_started_again_with_its_exit_code_shown(start: Start) -> None:
    supervised = start(f"{PROGRAM} ends")

    first = facts_of(supervised)
    wait_until(lambda: supervised.said("ended with exit code 3; it starts again in 0.5 s"))

    assert first["is_patched"]
    wait_until(lambda: len(supervised.said("facts ")) > 1)
    assert not facts_of(supervised)["is_patched"]
    assert supervised.end(signal.SIGTERM) == []


def test_without_a_fork_server_everything_starts_as_well(start: Start) -> None:
    supervised = start(PROGRAM, forks="killed")

    assert not facts_of(supervised)["is_patched"]
    assert supervised.end(signal.SIGTERM) == []


def test_every_process_of_the_service_is_forked() -> None:
    assert [line.name for line in read() if not FORKED.fullmatch(line.command)] == []


@pytest.mark.parametrize("command", ["gunicorn web", "python -m a; b", "python -m a > b", "python -m a $(b)"])
def test_what_a_shell_is_needed_for_is_left_to_it(command: str) -> None:
    """The fork server forks no command with shell syntax, and none that is not a Python module."""
    assert not FORKED.fullmatch(command)


def test_a_command_has_the_words_that_a_shell_makes_of_it() -> None:
    command = "python -m a -q b.${POOL:-default} 'c  d' -n %h-$$ $EMPTY"

    words = ["python", "-m", "a", "-q", "b.x", "c  d", "-n", "%h-@own-pid@"]
    assert words_of(command, {"POOL": "x"}) == words
    assert words_of("python -m a 'b", {}) is None
