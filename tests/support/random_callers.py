"""Random callers and random process deaths on a few threads, and checks of the invariants once all is quiet again.

The seed determines the actions of each caller. It does not determine their timing, because real processes execute them.
`RUNYARD_TEST_MACHINE_SECONDS` sets the duration, `RUNYARD_TEST_MACHINE_SEED` the seed.
"""

from __future__ import annotations

import os
import random
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Any
from uuid import UUID

import httpx
import psycopg
from psycopg.rows import dict_row
from redis import Redis

from shared.eventlog.events import Event, logged, meta_key
from tests.support.stack import Stack
from tests.support.waiting import wait_until

MILL = Path(__file__).parents[1] / "projects" / "mill"
SECONDS = float(os.environ.get("RUNYARD_TEST_MACHINE_SECONDS", "15"))
SEED = int(os.environ.get("RUNYARD_TEST_MACHINE_SEED", "1"))
QUIET_SECONDS = 60
THREADS, CALLERS = 6, 3
ABOUT_SECONDS = 1  # requests closer together than this may be served in any order
LIVE = ("pending", "running")
STRATEGIES = ["enqueue"] * 20 + ["reject", "interrupt", "interrupt", "rollback"]
ACTIONS = ["create"] * 10 + ["cancel", "roll_back", "delete"]
EXPIRED = (0, "expired", "")
KILLS = ("host", "runner", "host")  # spread evenly over the duration


@dataclass
class Made:
    """A run whose creation was answered with 200."""

    run_id: str
    thread_id: str
    label: str
    steps: int
    strategy: str
    asked_at: float
    is_deleted: bool = False
    may_be_gone: bool = False  # deleted, or removed by a rollback


@dataclass
class Reader:
    """A client that disconnects at random and resumes after the last event id it has seen."""

    http: httpx.Client
    stack: Stack
    run: Made
    random: random.Random
    events: list[tuple[int, str, str]] = field(default_factory=list)
    has_seen_end: bool = False

    def read(self) -> None:
        while not self.has_seen_end:
            cut_after = self.random.choice((1, 3, 1000))
            if not self._read_once(cut_after):
                continue
            found = self.http.get(f"/threads/{self.run.thread_id}/runs/{self.run.run_id}")
            self.has_seen_end = found.status_code == 404 or found.json()["status"] not in LIVE

    def has_lost_events(self) -> bool:
        """Return whether the service was entitled to report that events may be missing.

        This is true if an attempt was killed before it wrote its first event, which looks like the loss of a log. It is
        also true if a runner committed the run's end and was killed before it wrote the remaining events.
        """
        held, row = self._log(), self._row()
        if not held:
            return row is not None and row["status"] not in LIVE
        begins_late = not self.events and held[0].seq > 1 and held[0].after == 0
        ends_early = row is not None and row["status"] not in LIVE and held[-1].seq < row["seq_reserved"] - 1
        return begins_late or (ends_early and not held[-1].is_last)

    def account(self) -> str:
        """Describe the run's row, log and received events, for the message of a failed check."""
        held = [f"{event.seq} after {event.after}: {event.name}" for event in self._log()]
        seen = [f"{id}: {name}" for id, name, _ in self.events]
        return f"\n{self.run}\nrow: {self._row()}\nlog: {held}\nmeta: {self._meta()}\nseen: {seen}"

    def _log(self) -> list[Event]:
        with Redis.from_url(self.stack.redis_url) as redis:
            return list(logged(redis, UUID(self.run.run_id), 0))

    def _meta(self) -> Any:
        with Redis.from_url(self.stack.redis_url) as redis:
            return redis.hgetall(meta_key(UUID(self.run.run_id)))

    def _row(self) -> dict[str, Any] | None:
        query = "SELECT status, attempt, owner, seq_reserved, attempts, ended_at FROM run WHERE run_id = %s"
        with psycopg.connect(self.stack.database_url, row_factory=dict_row) as database:
            return database.execute(query, (self.run.run_id,)).fetchone()

    def _read_once(self, cut_after: int) -> bool:
        """Read until the server closes the stream or `cut_after` events came. Returns whether the server closed it."""
        last = str(self.events[-1][0]) if self.events else "-1"
        path = f"/threads/{self.run.thread_id}/runs/{self.run.run_id}/stream"
        with self.http.stream("GET", path, headers={"Last-Event-ID": last}) as response:
            if response.status_code == 404:
                return True
            for count, event in enumerate(parsed(response), 1):
                if event is EXPIRED:
                    assert self.has_lost_events(), self.account()
                    continue
                self.events.append(event)
                if count >= cut_after:
                    return False
        return True


def parsed(response: httpx.Response) -> Iterator[tuple[int, str, str]]:
    """Yield `(id, name, data)` of each event, and EXPIRED for the comment that events may be missing."""
    fields: dict[str, str] = {}
    has_expired = False
    for line in response.iter_lines():
        if line:
            name, _, value = line.partition(": ")
            if line == ": history expired":
                has_expired = True
                yield EXPIRED
            fields[name] = value
        elif "event" in fields:
            if "id" in fields:
                yield int(fields["id"]), fields["event"], fields["data"]
            else:  # an event that is in no log
                assert fields["event"] == "error"
                assert has_expired or "404: Run not found" in fields["data"], fields
            fields = {}


class Machine:
    def __init__(self, stack: Stack) -> None:
        self.stack = stack
        self.http = httpx.Client(
            base_url=f"{stack.url}/d/mill", headers={"X-Api-Key": stack.api_key}, timeout=60,
            limits=httpx.Limits(max_connections=None),
        )  # fmt: skip
        self.threads = [self.http.post("/threads", json={}).json()["thread_id"] for _ in range(THREADS)]
        self.made: list[Made] = []
        self.readers: list[Reader] = []
        self.rollbacks: list[tuple[str, float]] = []  # `(thread id, time of the answer)`
        self._reading = ThreadPoolExecutor(100)
        self._futures: list[Any] = []
        self._lock = threading.Lock()

    # Callers

    def call(self, number: int, until: float) -> None:
        chance = random.Random(f"{SEED}-{number}")
        count = 0
        while time.monotonic() < until:
            count += 1
            getattr(self, chance.choice(ACTIONS))(chance, f"{number}-{count}")
            time.sleep(chance.choice((0, 0.2, 0.6)))

    def create(self, chance: random.Random, label: str) -> None:
        thread_id, strategy = chance.choice(self.threads), chance.choice(STRATEGIES)
        steps = chance.randint(1, 4)
        how = chance.choice(("end", "end", "end", "fail", "ask"))
        body = {
            "assistant_id": "mill",
            "input": {
                "label": label, "steps": steps, "how": how, "done": 0, "seconds": chance.choice((0, 0.05, 0.2)),
            },
            "multitask_strategy": strategy,
            "durability": chance.choice(("async", "async", "sync", "exit")),
            "stream_mode": ["custom", "values"],
            "stream_resumable": True,
            "after_seconds": chance.choice((0, 0, 0, 0, 0.5)),
        }  # fmt: skip
        asked_at = time.monotonic()
        response = self.http.post(f"/threads/{thread_id}/runs", json=body)
        if strategy == "rollback":
            self.rollbacks.append((thread_id, time.monotonic()))
        if response.status_code == 409:
            assert strategy == "reject"
            return
        assert response.status_code == 200, response.text
        run = Made(response.json()["run_id"], thread_id, label, steps, strategy, asked_at)
        with self._lock:
            self.made.append(run)
        if chance.random() < 0.5:
            reader = Reader(self.http, self.stack, run, random.Random(label))
            self.readers.append(reader)
            self._futures.append(self._reading.submit(reader.read))

    def cancel(self, chance: random.Random, label: str) -> None:
        if run := self._some_run(chance):
            self._stop(run, "interrupt")

    def roll_back(self, chance: random.Random, label: str) -> None:
        if run := self._some_run(chance):
            run.may_be_gone = True
            self._stop(run, "rollback")

    def delete(self, chance: random.Random, label: str) -> None:
        if run := self._some_run(chance):
            run.is_deleted = run.may_be_gone = True
            response = self.http.delete(f"/threads/{run.thread_id}/runs/{run.run_id}")
            assert response.status_code in (204, 404), response.text

    def _some_run(self, chance: random.Random) -> Made | None:
        """Choose one of the newest runs, most of which are live."""
        newest = list(self.made)[-10:]
        return chance.choice(newest) if newest else None

    def _stop(self, run: Made, action: str) -> None:
        path = f"/threads/{run.thread_id}/runs/{run.run_id}/cancel"
        response = self.http.post(path, params={"action": action})
        assert response.status_code in (202, 404), response.text

    # Faults and observers

    def disturb(self, until: float) -> None:
        pause = (until - time.monotonic()) / (len(KILLS) + 1)
        for name in KILLS:
            time.sleep(pause)
            if self.stack.pids(name):
                self.stack.kill(name)

    def watch(self, database: Any, stopped: threading.Event) -> None:
        while not stopped.wait(0.05):
            assert not database.execute(
                "SELECT thread_id FROM run WHERE status = 'running' GROUP BY 1 HAVING count(*) > 1"
            ).fetchall()

    def run(self, database: Any) -> None:
        """Run callers and faults, then wait until no run is live."""
        stopped = threading.Event()
        until = time.monotonic() + SECONDS
        with ThreadPoolExecutor(CALLERS + 2) as pool:
            watching = pool.submit(self.watch, database, stopped)
            doing = [pool.submit(self.call, number, until) for number in range(CALLERS)]
            doing.append(pool.submit(self.disturb, until))
            try:
                for each in doing:
                    each.result()
                wait_until(lambda: not self.live(), QUIET_SECONDS, what="every run to end")
            finally:
                stopped.set()
            watching.result()

    def live(self) -> list[str]:
        found = (self.http.get(f"/threads/{id}/runs?limit=1000").json() for id in self.threads)
        return [run["run_id"] for runs in found for run in runs if run["status"] in LIVE]

    def mark_rolled_back(self) -> None:
        """Mark the runs requested before a rollback was answered: the rollback may have removed them."""
        for thread_id, answered_at in self.rollbacks:
            for run in self.made:
                run.may_be_gone |= run.thread_id == thread_id and run.asked_at < answered_at

    def end_readers(self) -> None:
        for each in self._futures:
            each.result(20)


def check_promises(stack: Stack) -> None:
    """Run random callers and faults on a platform that serves the mill, then check all invariants."""
    machine = Machine(stack)
    with psycopg.connect(stack.database_url, autocommit=True, row_factory=dict_row) as database:
        machine.run(database)

        machine.end_readers()
        machine.mark_rolled_back()
        for thread_id in machine.threads:
            made = [run for run in machine.made if run.thread_id == thread_id]
            rows = database.execute(
                "SELECT * FROM run WHERE thread_id = %s ORDER BY created_seq", (thread_id,)
            ).fetchall()
            check_runs(made, rows)
            check_log(machine, thread_id, {run.run_id: run for run in made}, rows)
            check_thread(machine, thread_id, rows)
            check_checkpoints(database, thread_id)
    for reader in machine.readers:
        check_reader(machine, reader)
    assert len(machine.made) > SECONDS
    assert len(machine.readers) > 5


def check_runs(made: list[Made], rows: list[Any]) -> None:
    """Every run has ended unless it may have been removed, and runs started in the order of their creation."""
    ends = {str(row["run_id"]): row["status"] for row in rows}
    for run in made:
        assert run.run_id in ends or run.may_be_gone, f"{run} is lost"
        assert ends.get(run.run_id) not in LIVE
    assert all(row["owner"] is None or row["status"] not in LIVE for row in rows)
    begun = [row["started_at"] for row in rows if row["started_at"] is not None]
    assert begun == sorted(begun)


def check_log(machine: Machine, thread_id: str, made: dict[str, Made], rows: list[Any]) -> None:
    """The state holds each run's steps once, grouped by run in order, and every step of a successful run."""
    log = machine.http.get(f"/threads/{thread_id}/state").json()["values"].get("log", [])
    taken = {label: len(list(group)) for label, group in groupby(log, lambda mark: mark.partition(".")[0])}
    assert log == [f"{label}.{step}" for label, steps in taken.items() for step in range(steps)]
    known = {made[str(row["run_id"])].label: row for row in rows}
    deleted = {run.label for run in made.values() if run.is_deleted}  # its effects on the state remain
    assert taken.keys() <= known.keys() | deleted
    assert [label for label in taken if label in known] == [label for label in known if label in taken]
    for label, row in known.items():
        steps = made[str(row["run_id"])].steps
        assert taken.get(label, 0) <= steps
        assert row["status"] != "success" or taken.get(label, 0) == steps, (row, log)


def check_thread(machine: Machine, thread_id: str, rows: list[Any]) -> None:
    """The thread's status matches its newest run and its state."""
    thread = machine.http.get(f"/threads/{thread_id}").json()
    state = machine.http.get(f"/threads/{thread_id}/state").json()
    assert thread["status"] != "busy"
    executed = [row for row in rows if row["attempt"]]
    if not executed:
        return
    newest = executed[-1]
    asked_at = next(run.asked_at for run in machine.made if run.run_id == str(newest["run_id"]))
    others = [run for run in machine.made if run.thread_id == thread_id and run.may_be_gone]
    if any(run.asked_at > asked_at - ABOUT_SECONDS for run in others):
        return  # the removed run has left the thread in the state before it, which is unknown here
    if newest["status"] in ("error", "timeout"):
        assert thread["status"] == "error", (thread, newest)
    elif newest["status"] == "success":
        assert thread["status"] == ("interrupted" if state["next"] else "idle"), (thread, state)
    assert thread["values"] == state["values"]


def check_checkpoints(database: Any, thread_id: str) -> None:
    """A thread's checkpoints form one tree and belong to existing runs. No rows of removed runs remain."""
    for what, query in ORPHANS.items():
        found = database.execute(query, {"thread_id": thread_id}).fetchall()
        assert not found, f"{what}: {found[:3]}"


def check_reader(machine: Machine, reader: Reader) -> None:
    """Over all its connections, the reader received every event once and in order, as a late reader receives them."""
    assert reader.has_seen_end
    ids = [id for id, _, _ in reader.events]
    assert ids == sorted(set(ids)), reader.account()
    last = Reader(machine.http, reader.stack, reader.run, random.Random(0))
    last._read_once(10**9)
    if last.events or not reader.run.may_be_gone:
        assert reader.events == last.events, reader.account() + last.account()


OF_THREAD = "FROM checkpoint c WHERE c.thread_id = %(thread_id)s"
ORPHANS = {
    "checkpoints without their parent": f"""
        SELECT c.checkpoint_id, c.parent_checkpoint_id {OF_THREAD} AND c.parent_checkpoint_id IS NOT NULL
        AND NOT EXISTS (SELECT FROM checkpoint p WHERE p.thread_id = c.thread_id
            AND p.checkpoint_ns = c.checkpoint_ns AND p.checkpoint_id = c.parent_checkpoint_id)""",
    "checkpoints older than their parent": f"""
        SELECT c.checkpoint_id {OF_THREAD} AND c.parent_checkpoint_id >= c.checkpoint_id""",
    "more than one root": f"""
        SELECT count(*) {OF_THREAD} AND c.parent_checkpoint_id IS NULL
        GROUP BY c.checkpoint_ns HAVING count(*) > 1""",
    "writes without a checkpoint": """
        SELECT w.checkpoint_id FROM checkpoint_write w WHERE w.thread_id = %(thread_id)s
        AND NOT EXISTS (SELECT FROM checkpoint c WHERE c.thread_id = w.thread_id
            AND c.checkpoint_ns = w.checkpoint_ns AND c.checkpoint_id = w.checkpoint_id)""",
}
