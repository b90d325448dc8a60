"""The whole platform at each isolation level: builds and runs work, and user code cannot leave its sandbox."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from langgraph_sdk.client import SyncLangGraphClient

from cli.errors import CommandFailed
from tests.support.levels import LEVELS
from tests.support.one_file import write
from tests.support.stack import Stack
from tests.support.waiting import wait_until
from workers.isolation import usage

# Every process forks repeatedly, up to 2,048 processes.
STORM = """
import os, time
from pathlib import Path
from langgraph.graph import START, MessagesState, StateGraph

mark = Path.home() / "loaded"
is_built = mark.exists()
mark.touch()
if WHEN:
    for _ in range(11):
        try:
            os.fork()
        except OSError:
            time.sleep(0.05)
    time.sleep(600)
graph = StateGraph(MessagesState).add_node("n", lambda state: {}).add_edge(START, "n").compile()
"""
HOME_MB = 50
PROCESSES = 64  # low, because a storm slows down all other tests
# Fills its home with many files or with a single one.
FILLS = """
import time
from pathlib import Path
from langgraph.graph import START, MessagesState, StateGraph

def fill(state):
    number = int(state["messages"][-1].content)
    for n in range(number):
        with open(Path.home() / f"{n}", "wb", 0) as file:
            for _ in range(200 // number):
                file.write(bytes(2**20))
    time.sleep(60 if number > 1 else 0)  # it does not end before somebody counts
    return {"messages": ["written"]}

graph = StateGraph(MessagesState).add_node("fill", fill).add_edge(START, "fill").compile()
"""
KITCHEN = Path(__file__).parent.parent / "projects" / "kitchen"


BEST, *OTHERS = sorted(LEVELS, reverse=True)


@pytest.fixture(
    scope="module", params=[BEST, *(pytest.param(level, marks=pytest.mark.release) for level in OTHERS)]
)
def level(request: pytest.FixtureRequest) -> int:
    return request.param


@pytest.fixture(scope="module")
def stack(level: int) -> Iterator[Stack]:
    """Platform that runs user code at this level."""
    env = {"RUNYARD_HOST_HOME_MB": str(HOME_MB), "RUNYARD_HOST_PROCESSES": str(PROCESSES)}
    with Stack(env={**LEVELS[level], **env}) as running:
        running.deploy(KITCHEN, name="kitchen")
        yield running


@pytest.fixture(scope="module")
def fills(stack: Stack, tmp_path_factory: pytest.TempPathFactory) -> SyncLangGraphClient:
    return stack.sdk(stack.deploy(write(tmp_path_factory.mktemp("fills"), FILLS), name="fills"))


def test_user_code_sees_nothing_of_the_platform(level: int, stack: Stack) -> None:
    seen = stack.sdk("kitchen").runs.wait(None, "peeks", input={"text": "x"})["log"][0]

    assert seen["kitchen"] == "open"
    of_the_platform = [
        name for name in seen["env"] if name.startswith(("RUNYARD", "DATABASE", "REDIS", "UV_"))
    ]
    assert of_the_platform == ([] if level == 2 else [usage.MARK])
    modules = ("shared.models", "workers.runner.execution", "web.app", "celery")
    assert {seen[module] for module in modules} == {"hidden"}
    # Other workers of the suite may be starting platforms of theirs as the same user.
    readable = [environ for environ in seen["credentials"] if str(stack.data_dir) in environ]
    assert readable == [], "no process it can look into knows where the database is"
    assert os.environ.get("KITCHEN") is None
    assert stack.client.get("/info").json()["host"]["isolation"] == level


def test_its_secrets_are_its_owner_s_alone(level: int, stack: Stack) -> None:
    assert stat.S_IMODE(stack.data_dir.stat().st_mode) == (0o711 if level == 1 else 0o700)
    for name in ("admin.key", "secret.key", "valkey/password", "valkey/valkey.conf"):
        assert stat.S_IMODE((stack.data_dir / name).stat().st_mode) == 0o600, name
    for name in ("postgres", "valkey"):
        assert stat.S_IMODE((stack.data_dir / name).stat().st_mode) == 0o700, name
    assert stack.api_key not in stack.log.read_text()


def test_a_storm_of_processes_ends_with_the_run_that_began_it(
    stack: Stack, fills: SyncLangGraphClient
) -> None:
    storm = stack.sdk("kitchen")
    thread_id = storm.threads.create()["thread_id"]

    storm.runs.create(thread_id, "multiplies", input={})
    answers = [fills.runs.wait(None, "agent", input=filling(0)) for _ in range(5)]

    assert all(answer["messages"][-1]["content"] == "written" for answer in answers)
    wait_until(lambda: storm.threads.get(thread_id)["status"] == "error", 90)
    assert "more than" in str(storm.threads.get(thread_id)["error"])  # processes or MiB of memory
    wait_until(lambda: len(processes_of(stack)) < 20, 20)


def test_a_storm_at_import_ends_with_the_build_or_the_host(stack: Stack, tmp_path: Path) -> None:
    with pytest.raises(CommandFailed):
        stack.deploy(storm(tmp_path / "at-build", "True"))
    reason = stack.revisions("at-build")[0]["status_message"]
    assert reason.startswith("graphs: the process that loads them")
    assert "more than" in reason  # processes or MiB of memory
    wait_until(lambda: len(processes_of(stack)) < 20, 20)

    stack.deploy(storm(tmp_path / "at-start", "is_built"))
    sdk = stack.sdk("at-start")
    thread_id = sdk.threads.create()["thread_id"]
    sdk.runs.create(thread_id, "agent", input={})
    answers = [stack.sdk("kitchen").runs.wait(None, "echo", input={"text": "x"}) for _ in range(5)]

    assert all(answer["log"] == ["x"] for answer in answers)
    wait_until(lambda: sdk.threads.get(thread_id)["status"] == "error", 90)
    assert "more than" in str(sdk.threads.get(thread_id)["error"])
    wait_until(lambda: len(processes_of(stack)) < 20, 20)


def filling(files: int) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": str(files)}]}


def test_a_graph_cannot_fill_the_disk_through_its_home(stack: Stack, fills: SyncLangGraphClient) -> None:
    def run(files: int) -> dict[str, Any]:
        thread_id = fills.threads.create()["thread_id"]
        fills.runs.create(thread_id, "agent", input=filling(files))
        wait_until(lambda: fills.threads.get(thread_id)["status"] in ("error", "idle"), 120)
        return dict(fills.threads.get(thread_id))

    assert "File too large" in str(run(1)["error"])
    assert f"its home folder held more than {HOME_MB} MiB of disk" in str(run(100)["error"])
    # The folder is emptied only after the kill.
    wait_until(lambda: not any(stack.data_dir.glob("revisions/*/home/99")), 20)
    assert run(0)["status"] == "idle", "the next host has room again"


def storm(folder: Path, when: str) -> Path:
    return write(folder, STORM.replace("WHEN", when))


def test_nothing_is_open_to_others_below_the_data_directory(stack: Stack) -> None:
    """At level 1 user code can traverse the data directory. A user who can open a lock file can also keep it locked."""
    assert stack.sdk("kitchen").runs.wait(None, "echo", input={"text": "x"})["log"] == ["x"]

    found = {str(path.relative_to(stack.data_dir)) for path in open_to_others(stack.data_dir)}

    assert found <= {"url", stack.log.name}


def open_to_others(folder: Path) -> Iterator[Path]:
    """Yield the paths that another user can read or write in a folder whose contents that user can guess."""
    for path in folder.iterdir():
        mode = path.lstat().st_mode
        if not stat.S_ISLNK(mode) and mode & (stat.S_IROTH | stat.S_IWOTH):
            yield path
        if stat.S_ISDIR(mode) and mode & stat.S_IXOTH:
            yield from open_to_others(path)


def processes_of(stack: Stack) -> list[int]:
    """Return graph hosts and the processes that they started, wherever these are in the process tree."""
    found = []
    for process in psutil.process_iter(["environ"]):
        environ = process.info["environ"] or {}
        if str(stack.data_dir) in environ.get("GRAPH_HOST_CONFIG", ""):
            found.append(process.pid)
    return found
