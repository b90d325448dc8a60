"""One `web` with several processes behind one socket: each process reports the figures of all."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path

import httpx
import psutil
import pytest

from tests.support.waiting import wait_until
from tests.support.web_process import KEY, started

# Runs before any other fixture, because the processes wait for the tables of their release.
pytestmark = pytest.mark.usefixtures("_engines")


@pytest.fixture
def web(database: str, tmp_path: Path) -> Iterator[tuple[psutil.Process, str]]:
    more = {"RUNYARD_PROCESSES": "web=2", "TMPDIR": str(tmp_path)}
    with started(database, tmp_path, **more) as (process, base):
        arbiter = psutil.Process(process.pid)
        wait_until(lambda: have_both_counted(base, tmp_path), timeout=120)
        yield arbiter, base


def have_both_counted(base: str, folder: Path) -> bool:
    """Send parallel requests. Returns whether both processes have counted one: each then has a file."""
    with ThreadPoolExecutor(8) as callers:
        list(callers.map(lambda _: figures(base), range(16)))
    return len(list(folder.glob("runyard-web-*/counter_*.db"))) == 2


def workers(arbiter: psutil.Process) -> list[int]:
    return [child.pid for child in arbiter.children()]


def figures(base: str) -> dict[str, int]:
    """Return the figures that one of the processes reports. Opens a new connection for each call."""
    answer = httpx.get(f"{base}/metrics?format=json", headers={"x-api-key": KEY})
    assert answer.status_code == 200
    return answer.json()["api"]


def test_each_shows_what_all_have_counted_also_those_that_are_gone(
    web: tuple[psutil.Process, str], tmp_path: Path
) -> None:
    arbiter, base = web
    asked = figures(base)["n_requests"]
    for number in range(1, 21):
        assert figures(base)["n_requests"] == asked + number

    new_file = next(tmp_path.glob("runyard-web-*")) / "counter_99999.db"
    new_file.touch()  # of a process that starts: it has not written the file yet
    with ThreadPoolExecutor(1) as callers:
        answer = callers.submit(figures, base)
        wait([answer], timeout=0.3)
        new_file.write_bytes(bytes(1 << 16))
        asked += 1
        assert answer.result(30)["n_requests"] == asked + 20

    first, second = workers(arbiter)
    psutil.Process(first).kill()
    wait_until(lambda: len(set(workers(arbiter)) - {first}) == 2, timeout=60)

    assert figures(base)["n_requests"] == asked + 21
    assert second in workers(arbiter)

    arbiter.terminate()
    arbiter.wait(timeout=60)
    assert list(tmp_path.glob("runyard-web-*")) == []
