"""One fault at a time while runs are in progress: all runs end, each event arrives once, nothing gets stuck."""

from __future__ import annotations

import json
import os
import signal
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import orjson
import psutil
import psycopg
import pytest
from celery import Celery
from langgraph_sdk.client import SyncLangGraphClient
from langgraph_sdk.errors import APIStatusError

from shared.infra import broker
from shared.infra import redis as shared_redis
from tests.conftest import OUTSIDE
from tests.support import counting
from tests.support.protocol_reading import ProtocolReading
from tests.support.random_callers import MILL, check_promises
from tests.support.reading import Reading
from tests.support.receiver import receiving
from tests.support.runners import lead, workers
from tests.support.stack import Stack
from tests.support.waiting import wait_until
from workers import celery_app

KITCHEN = Path(__file__).parent.parent / "projects" / "kitchen"
LEASE_SECONDS = 3


@pytest.fixture(scope="module")
def stack() -> Iterator[Stack]:
    """Platform of this module, with short leases, and with one host for each deployment, whose start costs a second."""
    env = {
        "RUNYARD_LEASE_SECONDS": str(LEASE_SECONDS),
        "RUNYARD_HOST_STALL_SECONDS": "4",
        "RUNYARD_HOSTS_PER_REVISION": "1",
        **OUTSIDE,
    }
    with Stack(env=env) as own:
        own.deploy(KITCHEN, name="kitchen")
        yield own


class Follower(threading.Thread):
    """A client that streams a resumable run to its end and reconnects by itself when the connection is cut."""

    def __init__(self, stack: Stack, thread_id: str, graph: str, input: dict[str, Any]) -> None:
        super().__init__(daemon=True)
        self.parts: list[Any] = []
        self.run_id: str | None = None
        self._stream = stack.sdk("kitchen").runs.stream(
            thread_id,
            graph,
            input=input,
            stream_mode=["custom", "values"],
            stream_resumable=True,
            durability="sync",
        )
        self.start()

    def run(self) -> None:
        for part in self._stream:
            self.parts.append(part)
            if part.event == "metadata":
                self.run_id = part.data["run_id"]

    def steps(self) -> list[int]:
        return [part.data["step"] for part in self.parts if part.event == "custom"]

    def attempts(self) -> list[int]:
        return [part.data["attempt"] for part in self.parts if part.event == "metadata"]

    def end(self, timeout: float = 60) -> list[Any]:
        self.join(timeout)
        assert not self.is_alive(), f"the stream did not end; so far: {self.parts[-3:]}"
        return self.parts


def check_whole(sdk: SyncLangGraphClient, thread_id: str, follower: Follower, steps: int) -> None:
    """The run succeeded, every step is in the state once, and events arrived once and in order."""
    parts = follower.end()
    ids = [int(part.id) for part in parts]
    assert ids == sorted(set(ids))
    assert sdk.threads.get_state(thread_id)["values"]["log"] == list(range(steps))
    assert [run["status"] for run in sdk.runs.list(thread_id)] == ["success"]
    assert parts[-1].event == "values"
    assert parts[-1].data["log"] == list(range(steps))


def test_a_run_goes_on_when_its_runner_is_killed(
    stack: Stack, sdk: SyncLangGraphClient, thread_id: str
) -> None:
    follower = Follower(stack, thread_id, "counts", {"n": 8, "seconds": 0.3, "file": "notes"})
    wait_until(lambda: len(follower.steps()) >= 3)

    stack.kill("runner")

    check_whole(sdk, thread_id, follower, 8)
    assert follower.attempts() == [1, 2]
    (notes,) = stack.data_dir.glob("revisions/*/home/notes")
    ran = [int(line) for line in notes.read_text().split()]
    assert ran == sorted(ran), "the second attempt goes on where the first one stopped"


def test_an_a2a_task_goes_on_when_its_runner_is_killed(stack: Stack) -> None:
    message = {"messageId": "m", "role": "ROLE_USER", "parts": [{"data": {"n": 8, "seconds": 0.3}}]}
    body = {"jsonrpc": "2.0", "id": 1, "method": "SendStreamingMessage", "params": {"message": message}}
    url, headers = f"{stack.url}/d/kitchen/a2a/counts", {"Accept": "text/event-stream"}
    items: list[Any] = []
    with stack.client.stream("POST", url, json=body, headers=headers, timeout=60) as response:
        for line in response.iter_lines():
            if line.startswith("data: "):
                items += orjson.loads(line.removeprefix("data: "))["result"].values()
            if len(items) == 2:  # the task, and that it works
                stack.kill("runner")
                items.append({})
    assert {item.get("taskId", item.get("id")) for item in items if item} == {items[0]["id"]}
    assert items[-1]["status"]["state"] == "TASK_STATE_COMPLETED"
    assert items[-2]["artifact"]["parts"][0]["data"]["log"] == list(range(8))


def test_a_frozen_runner_loses_its_runs_also_when_it_leads_upkeep(
    stack: Stack, sdk: SyncLangGraphClient, thread_id: str
) -> None:
    (runner,) = stack.pids("runner")
    lead(stack, runner)  # before the run, which would otherwise end meanwhile on a busy machine
    follower = Follower(stack, thread_id, "counts", {"n": 8, "seconds": 0.3})
    wait_until(follower.steps)

    os.kill(runner, signal.SIGSTOP)
    try:
        wait_until(lambda: sdk.runs.list(thread_id)[0]["status"] == "pending", timeout=30)
    finally:
        os.kill(runner, signal.SIGCONT)

    check_whole(sdk, thread_id, follower, 8)
    assert follower.attempts() == [1, 2]


def test_another_process_leads_upkeep_when_the_leader_is_killed(
    stack: Stack, sdk: SyncLangGraphClient, thread_id: str
) -> None:
    (builder,) = stack.pids("builder")
    lead(stack, builder)

    stack.kill("builder")

    with psycopg.connect(stack.database_url, autocommit=True) as conn:
        run = sdk.runs.create(thread_id, "counts", input={"n": 1, "seconds": 0.1}, after_seconds=3600)
        conn.execute(
            "UPDATE run SET status = 'running', not_before = NULL, owner = 'gone', attempt = 1,"
            " lease_until = now(), deadline_at = now() + interval '1 hour' WHERE run_id = %s",
            (run["run_id"],),
        )
    wait_until(lambda: sdk.runs.get(thread_id, run["run_id"])["status"] == "success", timeout=30)


def registered(stack: Stack, process: str, killed: set[int]) -> int | None:
    """Return the id of the process of this kind that reports itself as a worker, or None."""
    known = {row["pid"] for row in workers(stack)} - killed
    return next((pid for pid in stack.pids(process) if pid in known), None)


def test_questions_are_announced_and_expire_once_though_leaders_are_killed(
    stack: Stack, sdk: SyncLangGraphClient
) -> None:
    threads = [sdk.threads.create()["thread_id"] for _ in range(12)]
    deployment = f"/v2/deployments/{stack.record('kitchen')['id']}"
    expiring = {"expire_after_seconds": 3600, "on_expiry": {"action": "answer", "answer": "late"}}
    killed: set[int] = set()
    with receiving() as receiver, psycopg.connect(stack.database_url, autocommit=True) as conn:
        rules = {"webhook": receiver.url, **expiring}
        stack.client.patch(deployment, json={"inbox": rules}).raise_for_status()
        for thread_id in threads:
            sdk.runs.wait(thread_id, "asks", input={"text": "a"})
        for number, process in enumerate(("builder", "runner", "builder")):
            pid = wait_until(lambda name=process: registered(stack, name, killed), 60)
            lead(stack, pid)
            conn.execute(
                "UPDATE question SET expires_at = now() WHERE closed_at IS NULL AND thread_id = ANY(%s)",
                (threads[number::3],),
            )
            stack.kill(process)
            killed.add(pid)

        def received() -> set[tuple[str, str, str]]:
            documents = [(call.id, call.document) for call in receiver.calls]
            return {(id, body["type"], body["question"]["thread_id"]) for id, body in documents}

        wait_until(lambda: len(received()) >= 2 * len(threads), 60)
        for thread_id in threads:
            wait_until(lambda id=thread_id: sdk.threads.get(id)["status"] == "idle", 30)
        stack.client.patch(deployment, json={"inbox": None}).raise_for_status()

    sent = sorted((thread_id, kind) for _, kind, thread_id in received())
    assert sent == [(id, kind) for id in sorted(threads) for kind in ("question.asked", "question.expired")]
    assert [len(sdk.runs.list(thread_id)) for thread_id in threads] == [2] * len(threads)
    logs = [sdk.threads.get_state(thread_id)["values"]["log"] for thread_id in threads]
    assert logs == [["before", "late", "after"]] * len(threads)


def test_a_task_of_an_mcp_client_survives_restarts_between_polls(
    stack: Stack, sdk: SyncLangGraphClient
) -> None:
    meta = {
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientCapabilities": {
            "elicitation": {},
            "extensions": {"io.modelcontextprotocol/tasks": {}},
        },
    }

    def call(method: str, **params: Any) -> Any:
        headers = {
            "MCP-Protocol-Version": "2026-07-28",
            "Mcp-Method": method,
            "Mcp-Name": params.get("taskId") or params["name"],
            "Accept": "application/json, text/event-stream",
        }
        body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": {**params, "_meta": meta}}
        return stack.client.post("/d/kitchen/mcp", json=body, headers=headers).json()["result"]

    def restart() -> None:
        wait_until(lambda: stack.pids("runner"), 30)
        stack.kill("runner")
        stack.kill("web")
        wait_until(stack.is_up, 30)

    def poll(status: str) -> Any:
        def look() -> Any:
            shown = call("tasks/get", taskId=task_id)
            assert shown["status"] in ("working", status)
            return shown["status"] == status and shown

        return wait_until(look, 60)

    (assistant,) = sdk.assistants.search(graph_id="asks")
    sdk.assistants.update(assistant["assistant_id"], metadata={"mcp": {"task_after": 0}})
    task_id = call("tools/call", name="asks", arguments={"log": []})["taskId"]
    restart()
    (key,) = poll("input_required")["inputRequests"]
    response = {"action": "accept", "content": {"answer": "yes"}}
    call("tasks/update", taskId=task_id, inputResponses={key: response})
    restart()
    call("tasks/update", taskId=task_id, inputResponses={key: response})
    text = poll("completed")["result"]["content"][-1]["text"]
    assert json.loads(text)["log"] == ["before", "yes", "after"]
    with psycopg.connect(stack.database_url) as conn:
        runs = conn.execute("SELECT count(*) FROM run WHERE thread_id = %s", (task_id,)).fetchone()
        lasting = conn.execute(
            "SELECT count(*) FROM thread JOIN mcp_call USING (deployment_id, thread_id) WHERE ttl_minutes IS NULL"
        ).fetchone()
    assert (runs, lasting) == ((2,), (0,))


def test_bulk_operations_handle_each_run_once_though_everything_is_killed(
    stack: Stack, sdk: SyncLangGraphClient
) -> None:
    others = counting.start(stack, 4, 60, 0.3)
    threads = counting.new_threads(stack, 150)
    for thread_id in threads:
        body = counting.body(thread_id, 1, 0, metadata={"repaired": "yes"}, after_seconds=3600)
        stack.client.post(f"/d/kitchen/threads/{thread_id}/runs", json=body).raise_for_status()
    killed: set[int] = set()

    def operate(action: str) -> list[dict[str, Any]]:
        body = {"action": action, "where": {"metadata": {"repaired": "yes"}}, "rate": 25}
        path = f"/d/kitchen/runs/bulk/{stack.client.post('/d/kitchen/runs/bulk', json=body).json()['id']}"

        def record() -> dict[str, Any]:
            return stack.client.get(path).raise_for_status().json()

        for process in ("builder", "runner"):
            pid = wait_until(lambda name=process: registered(stack, name, killed), 60)
            lead(stack, pid)
            before = record()["done"]
            wait_until(lambda before=before: record()["done"] > before, 30, what="the leader to handle a run")
            stack.kill(process)
            killed.add(pid)
        assert record()["waiting"], "the operation must not end before its leaders are killed"
        stack.kill("web")
        wait_until(stack.is_up, 30)
        wait_until(lambda: record()["ended_at"], 60, what="the operation to complete")
        assert record()["status"] == "done"
        pages = [stack.client.get(f"{path}/runs", params={"limit": 100, "offset": n}) for n in (0, 100)]
        runs = [run for page in pages for run in page.raise_for_status().json()["resources"]]
        assert sorted(run["thread_id"] for run in runs) == sorted(threads)
        assert {run["outcome"] for run in runs} == {"done"}
        return runs

    cancelled = operate("cancel")
    retried = operate("retry")

    assert [run["run_id"] for run in retried] == [run["run_id"] for run in cancelled]
    of_thread = counting.ended(stack, threads, 60)
    retries = {str(run["metadata"].get("retry_of")): str(run["run_id"]) for run in of_thread}
    assert len(of_thread) == 2 * len(threads)
    assert retries == {"None": retries["None"], **{run["run_id"]: run["new_run_id"] for run in retried}}
    assert sorted(run["status"] for run in of_thread) == sorted(["interrupted", "success"] * len(threads))
    counting.check_whole(stack, others, 60, deaths=3, timeout=120)


def test_a_threads_stream_has_each_run_once_though_runners_are_killed(
    stack: Stack, sdk: SyncLangGraphClient, thread_id: str
) -> None:
    reading = Reading(stack.client, f"/d/kitchen/threads/{thread_id}/stream")
    path = f"/d/kitchen/threads/{thread_id}/runs"
    run_ids = []
    for n in (3, 6, 9, 12):  # number of steps in the state at the run's end
        body = counting.body(thread_id, n, 0.2)
        run_ids.append(stack.client.post(path, json=body).raise_for_status().json()["run_id"])
    for seen in (4, 14):
        wait_until(lambda seen=seen: len(reading.parts) >= seen, 30)
        stack.kill("runner")

    wait_until(lambda: len(reading.runs_done()) == len(run_ids), 60)
    reading.close()

    assert reading.runs_done() == run_ids
    assert reading.is_in_order()
    assert sdk.threads.get_state(thread_id)["values"]["log"] == list(range(12))


def test_readers_of_protocol_v2_miss_nothing_whatever_is_killed(stack: Stack, thread_id: str) -> None:
    path = f"/d/kitchen/threads/{thread_id}"
    content = ProtocolReading(
        stack.client, f"{path}/stream/events", ["lifecycle", "input", "custom", "values"]
    )
    watcher = ProtocolReading(stack.client, f"{path}/stream/events", ["lifecycle", "input"])
    told: list[tuple[str, str]] = []
    for fault in (
        partial(stack.kill, "web"),
        partial(stack.kill, "host"),
        partial(stack.kill, "runner", signal.SIGTERM),
        partial(stack.restart, "valkey", empty=True),
        partial(stack.restart, "postgres"),
    ):
        before = len(content.written())
        asked = {"assistant_id": "counts", "input": {"n": len(told) * 3 + 6, "seconds": 0.3}}
        command = {"id": 1, "method": "run.start", "params": asked}
        answer = stack.client.post(f"{path}/commands", json=command).raise_for_status().json()
        run_id = answer["result"]["run_id"]
        told = [*told, (run_id, "running"), (run_id, "completed")]
        wait_until(lambda before=before: len(content.written()) >= before + 2, 30)

        fault()

        wait_until(lambda told=told: content.lifecycle() == watcher.lifecycle() == told, 60)
    for reading in (content, watcher):
        reading.close()
        numbers = [event["seq"] for event in reading.events]
        assert numbers == sorted(set(numbers))
        assert len({event["event_id"] for event in reading.events}) == len(numbers)
    steps = [item["step"] for item in content.written()]
    assert sorted(set(steps)) == list(range(len(told) * 3))
    assert content.cuts >= 1


def test_a_client_goes_on_when_web_is_killed(stack: Stack, sdk: SyncLangGraphClient, thread_id: str) -> None:
    follower = Follower(stack, thread_id, "counts", {"n": 10, "seconds": 0.3})
    wait_until(lambda: len(follower.steps()) >= 3)

    stack.kill("web")

    check_whole(sdk, thread_id, follower, 10)
    assert follower.attempts() == [1]


def test_a_host_that_dies_is_replaced(stack: Stack, sdk: SyncLangGraphClient, thread_id: str) -> None:
    other = sdk.threads.create()["thread_id"]
    beside = Follower(stack, other, "counts", {"n": 4, "seconds": 0.3})
    result: Any = sdk.runs.wait(
        thread_id, "dies", input={"how": "segfault", "file": "mark"}, durability="sync"
    )
    assert result["log"] == ["before", "survived"]
    check_whole(sdk, other, beside, 4)


def test_runs_survive_a_bus_that_restarts_with_empty_memory(
    stack: Stack, sdk: SyncLangGraphClient, thread_id: str
) -> None:
    follower = Follower(stack, thread_id, "counts", {"n": 10, "seconds": 0.3})
    wait_until(lambda: len(follower.steps()) >= 3)

    stack.restart("valkey", empty=True)
    created = sdk.runs.create(sdk.threads.create()["thread_id"], "echo", input={"text": "meanwhile"})

    check_whole(sdk, thread_id, follower, 10)
    assert follower.attempts() == [1], stack.tail()
    assert follower.steps() == list(range(10))
    wait_until(
        lambda: sdk.runs.get(created["thread_id"], created["run_id"])["status"] == "success", timeout=20
    )


@pytest.mark.parametrize("lost", [{"empty": True}, {"forgets": 2_000}], ids=["everything", "the last moment"])
def test_the_next_attempt_reaches_readers_also_when_the_bus_died_with_the_owner(
    stack: Stack, sdk: SyncLangGraphClient, thread_id: str, lost: dict[str, Any]
) -> None:
    follower = Follower(stack, thread_id, "counts", {"n": 8, "seconds": 0.3})
    wait_until(lambda: len(follower.steps()) >= 3)

    stack.kill("runner")
    stack.restart("valkey", **lost)

    check_whole(sdk, thread_id, follower, 8)
    assert follower.attempts() == [1, 2]
    assert set(follower.steps()) == set(range(8))


def test_runs_survive_a_database_that_restarts(
    stack: Stack, sdk: SyncLangGraphClient, thread_id: str
) -> None:
    follower = Follower(stack, thread_id, "counts", {"n": 8, "seconds": 0.3})
    wait_until(lambda: len(follower.steps()) >= 2)

    stack.kill("postgres")

    follower.end()
    wait_until(lambda: _log(sdk, thread_id) == list(range(8)), timeout=30)
    assert sdk.runs.list(thread_id)[0]["status"] == "success"


def _log(sdk: SyncLangGraphClient, thread_id: str) -> list[int] | None:
    try:
        return sdk.threads.get_state(thread_id)["values"].get("log")
    except (httpx.HTTPError, APIStatusError):  # the database is unavailable: ask again
        return None


def producer(stack: Stack) -> Celery:
    return celery_app.configure(stack.redis_url, app=Celery("producer"))


def test_a_message_that_comes_twice_changes_nothing(
    stack: Stack, sdk: SyncLangGraphClient, thread_id: str
) -> None:
    run = sdk.runs.create(thread_id, "counts", input={"n": 3, "seconds": 0.2})
    for _ in range(5):
        producer(stack).send_task(
            broker.EXECUTE_RUNS, args=[[run["run_id"]]], queue=broker.runs_queue("default")
        )

    sdk.runs.join(thread_id, run["run_id"])

    assert sdk.threads.get_state(thread_id)["values"]["log"] == [0, 1, 2]
    with psycopg.connect(stack.database_url) as conn:
        attempt = conn.execute("SELECT attempt FROM run WHERE run_id = %s", (run["run_id"],)).fetchone()
    assert attempt == (1,)


def test_a_message_nobody_can_read_is_in_nobodys_way(stack: Stack) -> None:
    runners = stack.pids("runner")
    with shared_redis.make_client(stack.redis_url) as redis:
        for garbage in (b"", b"x", b"{}", b"null", b'{"body": "!!!", "headers": null, "properties": {}}'):
            redis.lpush(f"{broker.CELERY_PREFIX}{broker.runs_queue('default')}", garbage)
        wait_until(lambda: not redis.exists(f"{broker.CELERY_PREFIX}{broker.runs_queue('default')}"))

    silences = [0.0]

    def has_received_another() -> bool:
        silences.append(heard_seconds(stack, runners[0]))
        return silences[-1] < max(silences)

    wait_until(has_received_another, timeout=60)
    assert stack.pids("runner") == runners
    assert stack.log.read_text().count("a message in runs.default is dropped") == 1, "a line for all five"


def heard_seconds(stack: Stack, pid: int) -> float:
    """Return the seconds since a worker received the last message that it sent to itself."""
    with psycopg.connect(stack.database_url) as conn:
        row = conn.execute("SELECT heard_seconds FROM worker WHERE pid = %s", (pid,)).fetchone()
    assert row is not None
    return row[0]


def test_a_message_that_is_lost_is_not_missed(stack: Stack, sdk: SyncLangGraphClient, thread_id: str) -> None:
    first = sdk.runs.create(thread_id, "counts", input={"n": 2, "seconds": 0.5})
    with psycopg.connect(stack.database_url, autocommit=True) as conn:
        conn.execute(
            "INSERT INTO run SELECT (r2).* FROM (SELECT json_populate_record(r, json_build_object("
            "'run_id', gen_random_uuid(), 'status', 'pending', 'attempt', 0, 'owner', NULL,"
            " 'lease_until', NULL, 'created_seq', r.created_seq + 1)) AS r2 FROM run r"
            " WHERE run_id = %s) AS made",
            (first["run_id"],),
        )

    wait_until(
        lambda: [run["status"] for run in sdk.runs.list(thread_id)] == ["success", "success"], timeout=20
    )


def test_runs_for_later_start_once_though_everything_restarts_before(
    stack: Stack, sdk: SyncLangGraphClient
) -> None:
    runs = {}
    for seconds in (0, 1, 5, 3600):
        thread_id = sdk.threads.create()["thread_id"]
        runs[seconds] = sdk.runs.create(thread_id, "echo", input={"text": "x"}, after_seconds=seconds)
    for name in ("runner", "builder", "web"):
        stack.restart(name)
    stack.restart("valkey", empty=True)
    wait_until(stack.is_up, 30)

    def row(run: Any) -> tuple[str, int, float]:
        with psycopg.connect(stack.database_url) as conn:
            query = (
                "SELECT status, attempt - deaths, extract(epoch FROM started_at - not_before) FROM run"
                " WHERE run_id = %s"
            )
            return conn.execute(query, (run["run_id"],)).fetchone() or ("", 0, 0.0)

    for seconds in (0, 1, 5):
        wait_until(lambda run=runs[seconds]: row(run)[0] == "success", 40, what=f"the run for in {seconds} s")
    assert row(runs[3600]) == ("pending", 0, None)
    with psycopg.connect(stack.database_url) as conn:  # an hour passes
        conn.execute("UPDATE run SET not_before = now() WHERE run_id = %s", (runs[3600]["run_id"],))
    wait_until(lambda: row(runs[3600])[0] == "success", 20)
    late = {}
    for seconds, run in runs.items():
        _, attempts, late[seconds] = row(run)
        assert attempts == 1
        assert sdk.threads.get(run["thread_id"])["values"]["log"] == ["x"]
    assert all(late[seconds] >= 0 for seconds in (1, 5, 3600)), "never before its time"


def test_web_stops_at_once_under_open_streams(stack: Stack, sdk: SyncLangGraphClient, thread_id: str) -> None:
    follower = Follower(stack, thread_id, "counts", {"n": 12, "seconds": 0.3})
    answers: list[Any] = []
    other = sdk.threads.create()["thread_id"]
    waiter = threading.Thread(
        target=lambda: answers.append(sdk.runs.wait(other, "counts", input={"n": 10, "seconds": 0.3}))
    )
    waiter.start()
    wait_until(lambda: len(follower.steps()) >= 3)
    (old, *_) = stack.kill("web", signal.SIGTERM)

    wait_until(lambda: not psutil.pid_exists(old), timeout=10, what="web to stop")

    check_whole(sdk, thread_id, follower, 12)
    waiter.join(60)
    assert [answer["log"] for answer in answers] == [list(range(10))]


def test_a_delivery_that_a_killed_worker_had_begun_is_made_again(
    stack: Stack, sdk: SyncLangGraphClient, thread_id: str
) -> None:
    with receiving() as receiver:
        receiver.answers.clear()
        run = sdk.runs.create(thread_id, "echo", input={"text": "x"}, webhook=receiver.url)
        [first] = wait_until(lambda: receiver.calls_of(run["run_id"]), 20)
        for name in ("runner", "builder"):  # one of them waits for the answer
            stack.kill(name)
        receiver.answers.set()
        with psycopg.connect(stack.database_url) as conn:
            conn.execute("UPDATE webhook_delivery SET due_at = now()")  # the lease has ended

        calls = wait_until(lambda: len(found := receiver.calls_of(run["run_id"])) > 1 and found, 30)

    assert {call.id for call in calls} == {first.id}
    assert sdk.runs.get(thread_id, run["run_id"])["status"] == "success"


@pytest.mark.release
def test_the_promises_hold_under_random_callers_and_deaths(stack: Stack) -> None:
    stack.deploy(MILL, name="mill")
    check_promises(stack)
