"""Every process killed, stopped or started at an awkward moment: no request, run or event is lost or duplicated.

With several runners, a second pool takes over the runs that move to it. Another service, with servers of its own, goes on
with what a backup under load holds.
"""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
from langgraph_sdk.client import SyncLangGraphClient

from cli.machine.health import Unhealthy, check
from cli.machine.procfile import PROJECT
from shared.settings import Settings
from tests.support import counting
from tests.support.counting import KITCHEN, check_whole, rows
from tests.support.cutting_proxy import Break, proxy
from tests.support.reading import Reading
from tests.support.runners import another_runner, frozen, runners, workers
from tests.support.servers import postgres_over_tcp
from tests.support.stack import Stack
from tests.support.waiting import wait_until

DRAIN_SECONDS = 2
GRACE_SECONDS = 30
MANY = 100  # signals in a row, some of which arrive during the previous one's handler
PROCESSES = ("web", "runner", "builder")


@pytest.fixture(scope="module")
def stack() -> Iterator[Stack]:
    """Platform of this module. Its leases of a minute make a stopped process that does not hand over noticeable."""
    env = {
        "RUNYARD_LEASE_SECONDS": "60",
        "RUNYARD_DRAIN_SECONDS": str(DRAIN_SECONDS),
        "RUNYARD_HOSTS_PER_REVISION": "1",
    }
    with Stack(env=env) as own:
        own.deploy(KITCHEN, name="kitchen")
        yield own


def test_a_request_whose_answer_died_with_web_may_be_sent_again(
    stack: Stack, sdk: SyncLangGraphClient
) -> None:
    thread_id = sdk.threads.create()["thread_id"]
    path = f"/d/kitchen/threads/{thread_id}/runs"
    body = counting.body(thread_id, 2, 0)
    own = {"X-Api-Key": stack.api_key, "Idempotency-Key": "the-same"}
    with proxy("127.0.0.1", stack.port) as between, ThreadPoolExecutor() as pool:
        between.breaks.append(Break(f"POST {path}".encode(), at=b"HTTP/1.1"))
        lost = pool.submit(httpx.post, between.url + path, json=body, headers=own, timeout=30)
        (made,) = wait_until(lambda: rows(stack, "thread_id = %(id)s", id=thread_id))
        stack.kill("web")
        assert isinstance(lost.exception(), httpx.TransportError)

    wait_until(stack.is_up, 30)
    answer = httpx.post(stack.url + path, json=body, headers=own).raise_for_status()

    runs = {run["run_id"] for run in sdk.runs.list(thread_id)}
    assert runs == {str(made["run_id"])} == {answer.json()["run_id"]}
    wait_until(lambda: {run["status"] for run in sdk.runs.list(thread_id)} == {"success"}, 30)


def test_requests_are_refused_while_postgresql_hangs(stack: Stack, sdk: SyncLangGraphClient) -> None:
    assert sdk.threads.create()["thread_id"]
    (postmaster,) = stack.pids("postgres")
    server = [psutil.Process(postmaster), *psutil.Process(postmaster).children()]

    def ask(number: int) -> int:
        path = ("/v2/deployments", "/ok?ready=1", "/d/kitchen/assistants/search")[number % 3]
        method = "POST" if path.endswith("search") else "GET"
        return stack.client.request(method, path, json={}, timeout=100).status_code

    for process in server:
        process.suspend()
    try:
        with ThreadPoolExecutor(60) as pool:
            statuses = list(pool.map(ask, range(60)))
    finally:
        for process in server:
            process.resume()

    assert set(statuses) == {503}
    wait_until(lambda: ask(1) == 200, 30)
    assert sdk.threads.create()["thread_id"]


@pytest.mark.parametrize(
    "numbers",
    [
        (signal.SIGTERM,) * MANY,
        *(
            pytest.param((number,) * MANY, marks=pytest.mark.release)
            for number in (signal.SIGINT, signal.SIGQUIT)
        ),
    ],
    ids=lambda numbers: f"{numbers[0].name}*{len(numbers)}",
)
def test_whoever_is_asked_to_stop_stops_in_time_and_loses_nothing(
    stack: Stack, numbers: tuple[signal.Signals, ...]
) -> None:
    threads = counting.new_threads(stack, 10)
    readings = [Reading(stack.client, f"/d/kitchen/threads/{thread_id}/stream") for thread_id in threads[:3]]
    counting.start_on(stack, threads, 8, 0.4)

    def are_in_progress() -> bool:  # on a busy machine the first runs end before the last ones begin
        statuses = {run["status"] for run in rows(stack, "thread_id = ANY(%(ids)s)", ids=threads)}
        return "running" in statuses and "pending" not in statuses and all(r.parts for r in readings)

    wait_until(are_in_progress, 30)
    old = {name: stack.pids(name)[0] for name in PROCESSES}
    said = len(stack.log.read_text())

    for number in numbers:
        for pid in old.values():
            with suppress(psutil.NoSuchProcess):
                psutil.Process(pid).send_signal(number)

    for name, pid in old.items():
        wait_until(lambda pid=pid: not psutil.pid_exists(pid), GRACE_SECONDS, what=f"{name} to end")
    check_whole(stack, threads, 8)
    wait_until(lambda: all(stack.pids(name) for name in PROCESSES) and stack.is_up(), 30)
    for reading in readings:
        wait_until(lambda r=reading: r.runs_done() or not r.is_alive(), 30)
        assert reading.runs_done(), reading
        reading.close()
        assert reading.is_in_order()
    written = stack.log.read_text()[said:]
    assert "Traceback" not in written
    ends = re.findall(r"(\w+) *│ (ended with exit code \d+|was killed by)", written)
    assert dict(ends) == dict.fromkeys(PROCESSES, "ended with exit code 0")


def kitchen(stack: Stack) -> str:
    """Return the path of the deployment's record."""
    return f"/v2/deployments/{stack.record('kitchen')['id']}"


def change(stack: Stack, **body: Any) -> None:
    stack.client.patch(kitchen(stack), json=body).raise_for_status()


@contextmanager
def in_pool(stack: Stack, pool: str) -> Iterator[None]:
    """Assign new runs of the kitchen to this pool while the block runs."""
    change(stack, pool=pool)
    try:
        yield
    finally:
        change(stack, pool="default")


def test_runners_that_come_and_go_together_take_each_run_once(stack: Stack, sdk: SyncLangGraphClient) -> None:
    with in_pool(stack, "burst"):
        threads = counting.start(stack, 50, 2, 0.5)
        with runners(stack, "burst", 2) as first:
            wait_until(lambda: len(rows(stack, "pool = 'burst' AND status = 'success'")) >= 10, 60)
            for runner in first:
                runner.send_signal(signal.SIGTERM)
            with runners(stack, "burst", 2):
                assert [runner.wait(GRACE_SECONDS) for runner in first] == [0] * 2
                runs = check_whole(stack, threads, 2)

    once = [str(run["thread_id"]) for run in runs if run["attempt"] == 1]
    assert once
    for thread_id in once:
        assert counting.noted(stack, thread_id) == [0, 1]


def runs_of(stack: Stack, run_ids: list[str]) -> list[dict[str, Any]]:
    return rows(stack, "run_id = ANY(%(ids)s)", ids=run_ids)


def test_a_runner_that_stops_hands_over_what_it_cannot_end(stack: Stack, sdk: SyncLangGraphClient) -> None:
    with another_runner(stack) as leaver:
        (mine,) = [row["id"] for row in workers(stack) if row["pid"] == leaver.pid]
        with frozen(stack.pids("runner")):  # otherwise it might claim every long run
            threads = [sdk.threads.create()["thread_id"] for _ in range(40)]
            run_ids = [
                sdk.runs.create(
                    thread, "counts", input={"n": 12 if n % 2 else 3, "seconds": 0.3}, durability="sync"
                )["run_id"]
                for n, thread in enumerate(threads)
            ]
            wait_until(
                lambda: any(row["owner"] == mine for row in runs_of(stack, run_ids[1::2])),
                what="the second runner to have long runs",
            )
        leaver.send_signal(signal.SIGTERM)
        wait_until(lambda: [row["state"] for row in workers(stack) if row["id"] == mine] == ["draining"])
        late = sdk.runs.create(threads[0], "counts", input={"n": 1, "seconds": 0})["run_id"]

        assert leaver.wait(DRAIN_SECONDS + 20) == 0, (stack.data_dir / "another.log").read_text()

    assert mine not in [row["id"] for row in workers(stack)]
    wait_until(lambda: {row["status"] for row in runs_of(stack, [*run_ids, late])} == {"success"}, 30)
    ended = runs_of(stack, run_ids)
    assert [row["deaths"] for row in ended] == [0] * len(ended), "no attempt counts as lost"
    assert any(row["attempt"] > 1 for row in ended), "some were too long to end in time"
    assert not any(row["owner"] == mine for row in ended if row["attempt"] > 1)
    assert runs_of(stack, [late])[0]["owner"] != mine
    for n, thread in enumerate(threads[1:], 1):
        assert sdk.threads.get_state(thread)["values"]["log"] == list(range(12 if n % 2 else 3))
    assert "its owner is gone" not in stack.log.read_text()


def test_a_deployment_moves_to_another_pool_with_what_waits(stack: Stack, sdk: SyncLangGraphClient) -> None:
    with in_pool(stack, "gpu"):
        thread = sdk.threads.create()["thread_id"]
        waiting = sdk.runs.create(thread, "echo", input={"text": "there"})["run_id"]
        pools = {pool["name"]: pool for pool in stack.client.get("/v2/workers").json()["pools"]}
        assert (pools["gpu"]["runners"], pools["gpu"]["pending"]) == (0, 1), "nobody is there to run it"

        with another_runner(stack, "gpu") as runner:
            wait_until(lambda: runs_of(stack, [waiting])[0]["status"] == "success", 20)
            (mine,) = [row for row in workers(stack) if row["pid"] == runner.pid]
            assert (mine["pool"], runs_of(stack, [waiting])[0]["owner"]) == ("gpu", mine["id"])
        other = sdk.runs.create(thread, "echo", input={"text": "back"})["run_id"]
    wait_until(lambda: runs_of(stack, [other])[0]["status"] == "success", 20)
    assert runs_of(stack, [other])[0]["pool"] == "default"


def test_messages_reach_every_worker(stack: Stack) -> None:
    def ages(row: dict[str, Any]) -> tuple[float, float]:
        seen, started = (datetime.fromisoformat(row[name]) for name in ("seen_at", "started_at"))
        return (seen - started).total_seconds(), row["heard_seconds"]

    def is_received() -> bool:
        here = {*stack.pids("runner"), *stack.pids("builder")}
        known = [ages(row) for row in workers(stack) if row["pid"] in here]
        return len(known) == 2 and all(age > since_received + 3 for age, since_received in known)

    wait_until(is_received, 30, what="a canary to come back to the runner and to the builder")


def health(stack: Stack, *arguments: str) -> tuple[int, str]:
    command = [sys.executable, "-m", "cli", "health", *arguments]
    done = subprocess.run(command, cwd=PROJECT, env=stack.environment, capture_output=True, text=True)
    return done.returncode, done.stdout + done.stderr


def answered(stack: Stack, kind: str, pid: int | None = None) -> str:
    """Return the readiness of a process, checked in this process: a new one takes long and would miss a short drain."""
    try:
        return check(Settings.from_env(stack.environment), kind, is_ready=True, pid=pid)
    except Unhealthy as error:
        return str(error)


def is_ready(stack: Stack, kind: str) -> bool:
    return answered(stack, kind).startswith(("web answers", f"{kind} is ready"))


def test_a_runner_that_is_well_is_healthy_and_not_one_that_is_frozen_drains_or_is_gone(stack: Stack) -> None:
    for kind in (*PROCESSES, "beat"):
        wait_until(lambda kind=kind: is_ready(stack, kind), 60, f"{kind} to be ready")
    assert health(stack, "runner", "--ready")[0] == 0
    (runner,) = stack.pids("runner")

    psutil.Process(runner).suspend()
    code, said = health(stack, "runner")
    psutil.Process(runner).resume()
    assert (code, "frozen" in said) == (1, True)
    wait_until(lambda: is_ready(stack, "runner"), 30)

    counting.start(stack, 1, 100, 0.4)
    wait_until(lambda: rows(stack, "status = 'running'"), 30)
    psutil.Process(runner).terminate()
    wait_until(lambda: "it drains" in answered(stack, "runner", runner), 30)

    wait_until(lambda: is_ready(stack, "runner"), 60, "another runner to be ready")
    assert health(stack, "runner", "--pid", str(runner))[0] == 1


def test_what_dies_is_started_again_and_the_data_survives_a_kill(
    stack: Stack, sdk: SyncLangGraphClient
) -> None:
    thread_id = sdk.threads.create()["thread_id"]
    for name in ("web", "builder", "valkey", "postgres"):
        stack.restart(name)
    wait_until(stack.is_up, 30)

    stack.kill_up()
    stack.start()

    assert sdk.threads.get(thread_id)["thread_id"] == thread_id
    assert sdk.runs.wait(thread_id, "echo", input={"text": "x"}) is not None


PROVIDER = {
    "provider_id": "restored",
    "name": "Restored",
    "client_id": "c",
    "client_secret": "s3cret",
    "auth_url": "https://auth.example/authorize",
    "token_url": "https://auth.example/token",
}


@contextmanager
def under_load(sdk: SyncLangGraphClient) -> Iterator[None]:
    """Keep creating runs on new threads within the block."""
    is_over, has_begun = threading.Event(), threading.Event()

    def load() -> None:
        while not is_over.is_set():
            thread = sdk.threads.create(metadata={"of": "load"})["thread_id"]
            sdk.runs.wait(thread, "echo", input={"text": "x"})
            has_begun.set()

    loading = threading.Thread(target=load)
    loading.start()
    has_begun.wait(60)
    try:
        yield
    finally:
        is_over.set()
        loading.join()


def goes_on(stack: Stack, run_id: str) -> bool:
    return [(row["status"], row["attempt"]) for row in runs_of(stack, [run_id])] == [("running", 2)]


def test_another_service_goes_on_with_what_was_backed_up(stack: Stack, tmp_path: Path) -> None:
    key = stack.client.post("/v2/keys", json={"name": "moved", "role": "run"}).json()["key"]
    assert stack.client.post("/v2/auth/providers", json=PROVIDER).status_code == 200
    sdk = stack.sdk("kitchen", key)
    thread = sdk.threads.create()["thread_id"]
    sdk.runs.wait(thread, "echo", input={"text": "first"})
    sdk.store.put_item(["moved"], "k", {"v": 1})
    cron = sdk.crons.create("echo", schedule="0 0 1 1 *")["cron_id"]  # type: ignore[typeddict-item]
    busy = sdk.threads.create()["thread_id"]
    alive = sdk.runs.create(busy, "sleeps", input={"text": "x"}, durability="sync")["run_id"]
    wait_until(lambda: sdk.threads.get_state(busy)["next"] == ["sleep"], 60)
    phrase = tmp_path / "phrase"
    phrase.write_text("twelve or more characters")
    file = tmp_path / "moving.backup"

    with under_load(sdk):
        made = stack.cli("backup", str(file), "--passphrase-file", str(phrase), "--json", timeout=300)
    sdk.runs.cancel(busy, alive, wait=True)

    assert made.returncode == 0, made.stdout + made.stderr
    assert json.loads(made.stdout)["live_runs"] >= 1
    with (
        postgres_over_tcp(tmp_path / "own", "pass word") as url,
        another_service(tmp_path / "second", url) as second,
    ):
        restored = second.cli("restore", str(file), "--passphrase-file", str(phrase), timeout=300)
        assert restored.returncode == 0, restored.stdout + restored.stderr
        second.start()
        moved = second.sdk("kitchen", key)
        assert moved.threads.get_state(thread)["values"]["log"] == ["first"]
        ended: Any = moved.runs.wait(thread, "echo", input={"text": "second"})
        assert ended["log"] == ["first", "second"]
        seen: Any = moved.runs.wait(None, "peeks", input={})
        assert seen["log"][0]["kitchen"] == "open"
        assert moved.store.get_item(["moved"], "k")["value"] == {"v": 1}
        assert [row["cron_id"] for row in moved.crons.search()].count(cron) == 1
        assert second.client.get("/v2/auth/providers/restored").json()["client_id"] == "c"
        wait_until(lambda: goes_on(second, alive), 120, what="the run to go on")
        moved.runs.cancel(busy, alive, wait=True)
        for row in moved.threads.search(metadata={"of": "load"}, limit=100):
            wait_until(lambda row=row: moved.threads.get(row["thread_id"])["status"] == "idle", 60)
    sdk.crons.delete(cron)


@contextmanager
def another_service(data_dir: Path, database_url: str) -> Iterator[Stack]:
    """Create a second service that is not started yet."""
    data_dir.mkdir()
    env = {"DATABASE_URL": database_url.replace(" ", "%20"), "RUNYARD_HOSTS_PER_REVISION": "1"}
    stack = Stack(data_dir, env=env)
    try:
        yield stack
    finally:
        stack.stop()


def test_hosts_of_a_deleted_deployment_stop(stack: Stack, sdk: SyncLangGraphClient) -> None:
    assert sdk.runs.wait(None, "echo", input={"text": "x"}) is not None
    here = stack.pids("runner")

    def hosts() -> list[int]:
        return [host["pid"] for row in workers(stack) if row["pid"] in here for host in row["hosts"]]

    wait_until(hosts, 20)
    (pid,) = hosts()
    told = stack.cli("workers")
    assert "kitchen" in told.stdout, told.stderr

    stack.client.delete(kitchen(stack)).raise_for_status()

    wait_until(lambda: not Path(f"/proc/{pid}").exists(), 30, what="its host to stop")
