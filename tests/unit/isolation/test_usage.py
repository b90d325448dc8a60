"""Resource usage of a program and its descendants, and how all of them are ended."""

from __future__ import annotations

import dataclasses
import os
import signal
import subprocess
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from tests.support.waiting import wait_until
from workers.isolation import confinement, usage

FROM_A_THREAD = """
import subprocess, threading, time
thread = threading.Thread(target=lambda: subprocess.Popen(["sleep", "600"]))
thread.start()
time.sleep(600)
"""
DAEMON = """
import os, subprocess, sys, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.execvp("sleep", ["sleep", "600"])
    os._exit(0)
time.sleep(600)
"""
# Nine rounds of fork: at most 512 processes, so that the machine survives if ending them fails.
BOMB = """
import os, time
for _ in range(9):
    os.fork()
time.sleep(600)
"""
CHILDREN = """
import subprocess, time
started = [subprocess.Popen(["sleep", "600"]) for _ in range(30)]
time.sleep(600)
"""


@contextmanager
def running(code: str, *arguments: str) -> Iterator[tuple[subprocess.Popen[bytes], usage.Program]]:
    process = subprocess.Popen(
        [sys.executable, "-c", code, *arguments],
        stdout=subprocess.DEVNULL,
        start_new_session=True,
        preexec_fn=confinement.adopt_orphans,
    )
    program = usage.Program(process.pid)
    try:
        yield process, program
    finally:
        program.end()
        process.wait()


def has(program: usage.Program, count: int) -> bool:
    program.measure()
    return len(program.processes) == count


def alive(processes: Iterable[usage.Process]) -> list[int]:
    found = {process.pid: process for process in psutil.process_iter(["status"])}
    return [p.pid for p in processes if p.pid in found and found[p.pid].info["status"] != "zombie"]


def test_children_of_every_thread_count_with_their_memory_up_to_the_limit() -> None:
    with running(FROM_A_THREAD) as (_, program):
        wait_until(lambda: has(program, 2))
    with running("import os, time; x = bytearray(50 * 2**20); os.fork(); time.sleep(600)") as (_, program):
        wait_until(lambda: has(program, 2))
        assert program.memory_bytes > 100 * 2**20
    with running(CHILDREN) as (_, program):
        wait_until(lambda: has(program, 31))
        program.measure(most=5)
        assert len(program.processes) == 6


def test_folders_of_the_machine_count_for_nobody(tmp_path: Path) -> None:
    with running(FROM_A_THREAD) as (_, program):
        wait_until(lambda: has(program, 2))
        program.measure([str(tmp_path), "/tmp"])
        assert program.memory_bytes == sum(process.memory_bytes for process in program.processes)


def test_the_machine_s_disk_counts_for_nobody_wherever_a_sandbox_has_it_while_it_is_made(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stat = os.stat
    elsewhere = SimpleNamespace(st_dev=-1)
    monkeypatch.setattr(
        usage.os, "stat", lambda path, **more: elsewhere if path == "/usr" else stat(path, **more)
    )
    monkeypatch.setattr(usage, "_children", lambda pid: [os.getpid()])

    assert usage._held(1, ["/usr"]) == 0


def test_what_has_left_its_group_and_its_parent_is_ended_too() -> None:
    with running(DAEMON) as (process, program):
        wait_until(lambda: has(program, 3))  # including the orphaned process

        program.end()

        process.wait()
        wait_until(lambda: not alive(program.processes))

    with running(DAEMON) as (process, program):
        wait_until(lambda: has(program, 3))
        process.kill()
        process.wait()

        program.end()

        wait_until(lambda: not alive(program.processes))


def test_what_a_program_starts_just_before_its_own_end_is_ended_too() -> None:
    script = "read line; sleep 1000 & echo $!; kill -KILL $$"
    with subprocess.Popen(
        ["sh", "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True
    ) as process:
        program = usage.Program(process.pid)
        program.measure()
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(b"go\n")
        process.stdin.flush()
        child = usage._look(int(process.stdout.readline()))
        assert child is not None
        process.wait()

        program.end()

        wait_until(lambda: not alive([child]))


def test_an_id_that_is_another_process_s_by_now_is_left_alone() -> None:
    with running("import time; time.sleep(600)") as (process, program):
        wait_until(lambda: has(program, 1))
        (found,) = program.processes
        other = usage.Program(process.pid)
        other._root = dataclasses.replace(found, started_at=found.started_at - 1)

        other.end()

        assert has(program, 1)


def test_no_process_of_a_storm_is_left() -> None:
    with running(BOMB) as (process, program):
        wait_until(lambda: program.measure() or len(program.processes) > 20)

        program.end()

        process.wait()
        wait_until(lambda: not [p for p in psutil.process_iter() if in_group(p, process.pid)])


def test_a_child_that_no_look_could_see_yet_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """The child belongs to its parent while the root's children are read, and to the root while the parent's are."""
    root, parent, child = (usage.Process(pid, pid, "S", 0) for pid in (11, 12, 13))
    stopped = dataclasses.replace(root, state="T")
    looks = [[root, parent], [stopped, parent], [stopped, child], [stopped, child], [stopped]]
    sent: list[tuple[int, signal.Signals]] = []
    monkeypatch.setattr(usage, "_look", lambda pid: root)
    monkeypatch.setattr(usage, "_family", lambda pids: iter(looks.pop(0)))
    monkeypatch.setattr(usage, "_send", lambda pid, number: sent.append((pid, number)))

    usage.Program(root.pid).end()

    assert looks == []
    assert sorted(sent[:2]) == [(11, signal.SIGSTOP), (12, signal.SIGKILL)]
    assert sent[2:] == [(13, signal.SIGKILL), (11, signal.SIGKILL)]


def in_group(process: psutil.Process, group: int) -> bool:
    try:
        return os.getpgid(process.pid) == group and process.status() != "zombie"
    except (OSError, psutil.Error):
        return False


WITHOUT_FIRST_THREAD = """
import ctypes, threading, time
held = b"x" * (50 << 20)
threading.Thread(target=time.sleep, args=(600,)).start()
ctypes.CDLL(None).pthread_exit(None)
"""


def test_a_process_whose_first_thread_has_ended_counts_and_is_ended() -> None:
    """The kernel shows such a process as a zombie without memory."""
    with running(WITHOUT_FIRST_THREAD) as (process, program):
        wait_until(lambda: psutil.Process(process.pid).status() == psutil.STATUS_ZOMBIE, 20)
        program.measure()
        assert program.memory_bytes > 50 * 2**20

        program.end()
        assert process.wait(20) == -signal.SIGKILL


LEAVES = """
import subprocess
print(subprocess.Popen(["sleep", "600"], start_new_session=True, stdout=-3, stderr=-3).pid)
"""


def left_behind(mark: str) -> int:
    """Run a program with a mark that leaves a process in a session of its own. Returns the process's id."""
    env = {**os.environ, usage.MARK: mark}
    return int(
        subprocess.run([sys.executable, "-c", LEAVES], env=env, check=True, capture_output=True).stdout
    )


def is_running(pid: int) -> bool:
    return psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE


def test_what_a_program_left_behind_is_found_by_its_mark() -> None:
    ours, others = usage.new_mark(), usage.new_mark()
    first, second = left_behind(ours), left_behind(others)

    usage.end_marked(ours)
    wait_until(lambda: not is_running(first))
    usage.end_abandoned()
    assert is_running(second), "its mark names this process, which is alive"
    os.kill(second, signal.SIGKILL)

    pid, _, rest = usage.new_mark().partition("-")
    abandoned = left_behind(f"{pid}-1{rest}")  # a process that started at another time and had the same id
    usage.end_abandoned()
    wait_until(lambda: not is_running(abandoned))
