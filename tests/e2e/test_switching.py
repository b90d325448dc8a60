"""Traffic moves between revisions while clients use the deployment: no run is lost, and each belongs to one revision.

Traffic moves at once, or gradually: from a preview, over a share of the threads, to all of them.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import groupby
from typing import Any

import pytest

from tests.e2e.test_revisions import App, at_work
from tests.support import one_file
from tests.support.stack import Stack
from tests.support.waiting import wait_until

# Each step reports the version that executed it. A run may wait for a gate between two steps.
GRAPH = """
import asyncio, operator, urllib.request
from typing import Annotated, TypedDict
from langgraph.graph import StateGraph

class State(TypedDict, total=False):
    gate: str
    said: Annotated[list[str], operator.add]

def is_open(url):
    with urllib.request.urlopen(url, timeout=10) as answer:
        return answer.read() == b"open"

async def first(state):
    await asyncio.sleep(0.02)
    return {"said": [VERSION]}

async def second(state):
    while state.get("gate") and not await asyncio.to_thread(is_open, state["gate"]):
        await asyncio.sleep(0.05)
    return {"said": [VERSION]}

builder = StateGraph(State).add_node("first", first).add_node("second", second)
graph = builder.add_edge("__start__", "first").add_edge("first", "second").compile()
"""
SECONDS = 60
PAUSE_SECONDS = 0.3  # pause of each client between two requests
THREADS = 80
BESIDE = 15  # number of runs in flight when their deployment changes


def version(name: str) -> dict[str, str]:
    return one_file.files(f"VERSION = {name!r}\n{GRAPH}")


class Gate(ThreadingHTTPServer):
    """An HTTP server at which runs wait until the test opens it."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Doorman)
        self.is_open = False
        self.asked = 0
        self.url = f"http://127.0.0.1:{self.server_port}/"


class _Doorman(BaseHTTPRequestHandler):
    server: Gate

    def do_GET(self) -> None:
        self.server.asked += 1
        body = b"open" if self.server.is_open else b"shut"
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def gate() -> Iterator[Gate]:
    with Gate() as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.is_open = True
        server.shutdown()


@pytest.fixture(scope="module")
def changing(stack: Stack) -> tuple[App, str]:
    """A deployment shared by all tests that do not delete it, and its first revision, v1."""
    app = App(stack)
    return app, app.deployed(version("v1"))


@pytest.fixture
def app(changing: tuple[App, str]) -> App:
    """The shared deployment, switched back to v1 if needed."""
    app, first = changing
    if wait(app.stack.sdk(app.name)) != ["v1", "v1"]:
        switch(app, lambda: redeploy(app, first))
    return app


@dataclass
class Load:
    """Clients that send requests in a loop until stopped. `done` holds `(start time, answer)` of each request.

    A failed request ends its client and makes `clients()` raise.
    """

    app: App
    done: list[tuple[float, list[str]]] = field(default_factory=list)
    stopped: threading.Event = field(default_factory=threading.Event)

    def repeat(self, act: Callable[[Any], list[str]]) -> None:
        sdk = self.app.stack.sdk(self.app.name)
        while not self.stopped.is_set():
            began_at = time.monotonic()
            self.done.append((began_at, act(sdk)))
            self.stopped.wait(PAUSE_SECONDS)

    @contextmanager
    def clients(self) -> Iterator[None]:
        """Run clients of every kind during the block. They are already being served when the block begins."""
        with ThreadPoolExecutor(4) as pool:
            going = [pool.submit(self.repeat, act) for act in (wait, wait, stream, converse)]
            try:
                wait_until(lambda: len(self.done) > 10, SECONDS, what="clients to be served")
                yield
            finally:
                self.stopped.set()
            for client in going:
                client.result(SECONDS)

    def since(self, begin: float, end: float = float("inf")) -> list[list[str]]:
        """Return the answers to requests that began in this time."""
        return [said for at, said in self.done if begin <= at < end]


def wait(sdk: Any) -> list[str]:
    return sdk.runs.wait(None, "agent", input={})["said"]


def stream(sdk: Any) -> list[str]:
    events = list(sdk.runs.stream(None, "agent", input={}, stream_mode="updates"))
    assert [event.event for event in events] == ["metadata", "updates", "updates"], events
    return [said for event in events[1:] for step in event.data.values() for said in step["said"]]


def converse(sdk: Any) -> list[str]:
    """Queue two runs on a new thread. Returns what the second run added to the state of the first."""
    thread_id = sdk.threads.create()["thread_id"]
    runs = [sdk.runs.create(thread_id, "agent", input={}) for _ in range(2)]
    for run in runs:
        sdk.runs.join(thread_id, run["run_id"])
        assert sdk.runs.get(thread_id, run["run_id"])["status"] == "success"
    said = sdk.threads.get(thread_id)["values"]["said"]
    assert len(said) == 4, said
    assert said[0] == said[1], said
    return said[2:]


def switch(app: App, act: Callable[[], str]) -> float:
    """Deploy with `act` and wait until it serves. Returns the monotonic time at which it did."""
    assert app.ended(act())["status"] == "DEPLOYED"
    return time.monotonic()


def redeploy(app: App, revision_id: str) -> str:
    """Redeploy an earlier revision. Returns the id of the new revision."""
    path = f"/v2/deployments/{app.id}/revisions/{revision_id}/redeploy"
    return str(app.call("POST", path)["latest_revision_id"])


CRASHES = "import ctypes; ctypes.string_at(0)"


def test_no_run_is_lost_and_no_request_refused_while_versions_fail_take_over_and_go(
    stack: Stack, app: App, gate: Gate
) -> None:
    sdk, first = stack.sdk(app.name), app.record()["active_revision_id"]
    cron_thread = sdk.threads.create()["thread_id"]
    cron = sdk.crons.create_for_thread(
        cron_thread, "agent", schedule="* * * * * *", input={}, multitask_strategy="enqueue"
    )
    load = Load(app)
    with load.clients():
        # A new version that fails changes nothing.
        record = app.ended(app.push(version("v2") | {"agent.py": CRASHES}))
        assert record["status"] == "BUILD_FAILED"
        assert record["status_message"].startswith("graphs: ")
        failed = time.monotonic()
        wait_until(lambda: len(load.since(failed)) > 10, SECONDS, what="answers after the failure")
        assert app.record()["active_revision_id"] == first

        # Runs that exist when v2 takes over belong to v1, whether they run or wait.
        thread_id = sdk.threads.create()["thread_id"]
        running = sdk.runs.create(thread_id, "agent", input={"gate": gate.url})
        wait_until(lambda: gate.asked, SECONDS, what="the first run to be in its second step")
        beside = [sdk.runs.create(None, "agent", input={"gate": gate.url}) for _ in range(BESIDE)]
        pending = sdk.runs.create(thread_id, "agent", input={"gate": ""})
        wait_until(lambda: len(fired(sdk, cron_thread)) >= 2, SECONDS, what="the cron to fire")
        asked = time.monotonic()
        served = switch(app, lambda: app.push(version("v2")))
        wait_until(lambda: len(load.since(served)) > 10, SECONDS, what="answers of the new one")
        assert sdk.runs.get(thread_id, running["run_id"])["status"] == "running"
        assert sdk.runs.get(thread_id, pending["run_id"])["status"] == "pending"
        late = sdk.runs.create(thread_id, "agent", input={})
        gate.is_open = True
        sdk.runs.join(thread_id, late["run_id"])
        for run in (running, pending, late):
            assert sdk.runs.get(thread_id, run["run_id"])["status"] == "success"
        for run in beside:
            assert sdk.runs.join(run["thread_id"], run["run_id"])["said"] == ["v1", "v1"]
        assert sdk.threads.get(thread_id)["values"]["said"] == ["v1", "v1", "v1", "v1", "v2", "v2"]
        fires_again(sdk, cron_thread)

        # v1 comes back.
        asked_back = time.monotonic()
        back = switch(app, lambda: redeploy(app, first))
        wait_until(lambda: len(load.since(back)) > 10, SECONDS, what="answers of the old one")
        fires_again(sdk, cron_thread)
    sdk.crons.delete(cron["cron_id"])

    assert {tuple(said) for said in load.since(0, asked)} == {("v1", "v1")}
    assert {tuple(said) for _, said in load.done} == {("v1", "v1"), ("v2", "v2")}
    assert ["v1", "v1"] not in load.since(served, asked_back)
    assert ["v2", "v2"] not in load.since(back)

    # The cron has fired once for each time.
    runs = fired(sdk, cron_thread)
    for run in runs:
        sdk.runs.join(cron_thread, run["run_id"])
    assert {sdk.runs.get(cron_thread, run["run_id"])["status"] for run in runs} == {"success"}
    said = sdk.threads.get(cron_thread)["values"]["said"]
    assert [name for name, _ in groupby(said)] == ["v1", "v2", "v1"], "in the order of their creation"
    assert said[::2] == said[1::2], "each by one revision"
    assert len(said) == 2 * len(runs)
    # A due time is a whole second: two firings for one would be in the same.
    assert len({str(run["created_at"])[:19] for run in runs}) == len(runs)


def fired(sdk: Any, thread_id: str) -> list[Any]:
    return list(sdk.runs.list(thread_id, limit=1000))


def fires_again(sdk: Any, thread_id: str) -> None:
    before = len(fired(sdk, thread_id))
    wait_until(lambda: len(fired(sdk, thread_id)) > before, SECONDS, what="the cron to fire again")


def said_on(sdk: Any, thread_id: str) -> str:
    said: list[str] = sdk.runs.wait(thread_id, "agent", input={})["said"]
    assert said[-1] == said[-2]
    return said[-1]


def in_threads(sdk: Any, thread_ids: list[str]) -> list[str]:
    with ThreadPoolExecutor(8) as pool:
        return list(pool.map(lambda thread_id: said_on(sdk, thread_id), thread_ids))


def hosts_of(app: App, revision_id: str) -> int:
    workers = app.call("GET", "/v2/workers")["workers"]
    return sum(host["revision_id"] == revision_id for worker in workers for host in worker["hosts"])


def test_a_revision_goes_from_its_preview_to_all_runs_and_back(stack: Stack, app: App) -> None:
    old = app.record()["active_revision_id"]
    sdk, previewed = stack.sdk(app.name), stack.sdk(f"{app.name}--pr-1")
    traffic = f"/v2/deployments/{app.id}/traffic"

    # A preview serves only its own address.
    new = app.push(version("v2"), preview="pr-1")
    assert app.ended(new)["status"] == "DEPLOYED", app.build_log(new)
    thread_id = previewed.threads.create()["thread_id"]
    assert said_on(previewed, thread_id) == "v2"
    assert said_on(sdk, thread_id) == "v1", "the thread is the deployment's"
    (listed,) = app.call("GET", f"/v2/deployments/{app.id}/previews")["resources"]
    assert (listed["revision_id"], listed["url"]) == (new, f"{stack.url}/d/{app.name}--pr-1")
    assert app.record()["active_revision_id"] == old

    # A split assigns whole threads, and a thread keeps its revision.
    shares = [{"revision_id": old, "percent": 70}, {"revision_id": new, "percent": 30}]
    app.call("PATCH", f"/v2/deployments/{app.id}", json={"traffic": shares})
    thread_ids = [sdk.threads.create()["thread_id"] for _ in range(THREADS)]
    said = in_threads(sdk, thread_ids)
    found = Counter(said)
    assert 0.07 * THREADS < found["v2"] < 0.53 * THREADS, found  # four and a half standard deviations
    assert in_threads(sdk, thread_ids[:20]) == said[:20]
    run = sdk.runs.list(thread_ids[0])[0]
    assert run["revision_id"] == {"v1": old, "v2": new}[said[0]]

    # Promote, roll back and abort under load: no run is lost and no request fails.
    load = Load(app)
    with load.clients():
        record = app.call("POST", f"{traffic}/promote", json={"revision_id": new})
        promoted = time.monotonic()
        assert (record["active_revision_id"], len(record["traffic"])) == (new, 1)
        wait_until(lambda: len(load.since(promoted)) > 10, SECONDS, what="answers of the new one")
        until = time.monotonic()
        assert hosts_of(app, old), "whoever goes back finds its hosts"
        app.call("POST", f"{traffic}/promote", json={"revision_id": old})
        back = time.monotonic()
        wait_until(lambda: len(load.since(back)) > 10, SECONDS, what="answers of the old one")
        aborted_from = time.monotonic()
        app.call("PATCH", f"/v2/deployments/{app.id}", json={"traffic": shares})
        app.call("POST", f"{traffic}/abort")
        aborted = time.monotonic()
        wait_until(lambda: len(load.since(aborted)) > 10, SECONDS, what="answers after the abort")
    assert {tuple(said) for _, said in load.done} == {("v1", "v1"), ("v2", "v2")}
    for begin, end, expected in ((promoted, until, "v2"), (back, aborted_from, "v1"), (aborted, None, "v1")):
        assert {tuple(said) for said in load.since(begin, end or float("inf"))} == {(expected, expected)}

    # A rollback starts its own host before it serves. A deleted preview loses its address.
    again = redeploy(app, new)
    assert app.ended(again)["status"] == "DEPLOYED"
    wait_until(lambda: hosts_of(app, again) > 0, SECONDS, what="a host of what serves again")
    assert said_on(sdk, thread_ids[0]) == "v2"
    app.call("DELETE", f"/v2/deployments/{app.id}/previews/pr-1")
    wait_until(
        lambda: stack.client.get(f"/d/{app.name}--pr-1/info").status_code == 404, SECONDS, what="no preview"
    )


def test_nothing_is_left_of_a_deployment_deleted_while_it_builds_and_runs(stack: Stack, gate: Gate) -> None:
    app = App(stack)
    serving = app.deployed(version("v1"))
    sdk = stack.sdk(app.name)
    runs = [sdk.runs.create(None, "agent", input={"gate": gate.url}) for _ in range(BESIDE)]
    queued = sdk.runs.create(runs[0]["thread_id"], "agent", input={})
    wait_until(lambda: gate.asked, SECONDS, what="a run to be in its second step")
    building = app.push(version("v2") | {"agent.py": "import time; time.sleep(600)"})
    wait_until(lambda: "loading" in app.build_log(building), SECONDS, what="the graphs to be loaded")
    folders = [stack.data_dir / "revisions" / id for id in (serving, building)]
    wait_until(lambda: all(at_work(folder) for folder in folders), SECONDS, what="processes of both")
    folders.append(stack.data_dir / "caches" / app.id)
    assert folders[-1].is_dir()

    app.call("DELETE", f"/v2/deployments/{app.id}")

    assert app.record()["status"] == "AWAITING_DELETE"
    for path in (f"/d/{app.name}/info", f"/d/{app.name}/threads/{queued['thread_id']}"):
        assert stack.client.get(path).status_code == 404
    listed = app.call("GET", "/v2/deployments", params={"name": app.name})
    assert listed["resources"] == []
    wait_until(lambda: not any(at_work(folder) for folder in folders), SECONDS, what="its processes to end")
    wait_until(lambda: not any(folder.exists() for folder in folders), SECONDS, what="its files to go")
    path = f"/v2/deployments/{app.id}"
    wait_until(lambda: stack.client.get(path).status_code == 404, SECONDS, what="the deployment to be gone")
    assert stack.client.delete(path).status_code == 404
