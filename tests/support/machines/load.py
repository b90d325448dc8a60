"""A steady load on a fleet, and the checks of its results once the fleet is quiet again.

Each run counts: step N writes N to its stream, to the state and to a file. The three records together distinguish lost
work from work that was done twice.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count, cycle
from typing import Any, LiteralString
from uuid import uuid4

import httpx

from tests.support.machines.fleet import Fleet, Machine
from tests.support.reading import Reading
from tests.support.receiver import Receiver
from tests.support.waiting import wait_until

STEPS, STEP_SECONDS = 4, 0.4
RUNS_A_SECOND = 3.0
REQUEST_SECONDS = 6.0  # a client repeats its request after this time without an answer
PAUSE_SECONDS = 0.2
MOST_UNANSWERED = (
    16  # more threads of clients would starve the thread of the network, which shares their process
)
ANSWER_SECONDS = 90.0  # each request is answered within this time after the faults
CRON_SECONDS = 2
HOUR = 3600
ASK_AGAIN = (409, 429, 502, 503)  # 409: the first request with this key is still in progress
KINDS = ("plain", "stateless", "streamed", "plain", "webhook")


@dataclass
class Made:
    """An accepted run."""

    label: str
    kind: str
    run_id: str
    thread_id: str
    reading: Reading | None = None


class Load:
    """Clients that create runs at a steady rate through the balancer, and repeat requests without an answer."""

    def __init__(self, fleet: Fleet, receiver: Receiver, pool: str) -> None:
        self.fleet = fleet
        self.made: list[Made] = []
        self.refused: list[str] = []
        self.asked_again: Counter[str] = Counter()
        self._unanswered: dict[str, str] = {}  # the last error of each request that is being repeated
        self._deployment = f"kitchen-{pool}"
        self._receiver = receiver
        self._numbers = count()
        self._over = threading.Event()
        self._senders = threading.BoundedSemaphore(MOST_UNANSWERED)
        self._cron_id = self._post("crons", "/runs/crons", self._cron())["cron_id"]
        self._thread = threading.Thread(target=self._create, daemon=True)
        self._thread.start()

    # Clients

    def _create(self) -> None:
        begun = time.monotonic()
        senders: list[threading.Thread] = []
        for number, kind in zip(self._numbers, cycle(KINDS)):
            self._over.wait(max(begun + number / RUNS_A_SECOND - time.monotonic(), 0))
            self._senders.acquire()
            if self._over.is_set():
                break
            senders.append(threading.Thread(target=self._send, args=(kind,), daemon=True))
            senders[-1].start()
        for sender in senders:
            sender.join()

    def _send(self, kind: str) -> None:
        try:
            self._create_run(str(uuid4()), kind)
        finally:
            self._senders.release()

    def _create_run(self, label: str, kind: str) -> None:
        body: dict[str, Any] = {
            "assistant_id": "counts",
            "input": {"n": STEPS, "seconds": STEP_SECONDS, "file": label},
            "durability": "sync",
            "if_not_exists": "create",
        }
        path = f"/threads/{label}/runs"
        if kind == "stateless":
            path, body = "/runs", body | {"on_completion": "keep"}
        elif kind == "streamed":
            body |= {"stream_mode": ["custom", "values"], "stream_resumable": True}
        elif kind == "webhook":
            body |= {"webhook": self._receiver.url}
        answer = self._post(label, path, body)
        run = Made(label, kind, answer["run_id"], answer["thread_id"])
        if kind == "streamed":
            run.reading = Reading(self.fleet.client, f"/d/{self._deployment}{path}/{run.run_id}/stream")
        self.made.append(run)

    def _post(self, label: str, path: str, body: dict[str, Any]) -> dict[str, Any]:
        """Repeat a request under one idempotency key until it is answered."""
        while True:
            try:
                answer = self.fleet.client.post(
                    f"/d/{self._deployment}{path}",
                    json=body,
                    headers={"Idempotency-Key": label},
                    timeout=REQUEST_SECONDS,
                )
            except httpx.TransportError as error:
                self.asked_again[type(error).__name__] += 1
                self._unanswered[label] = repr(error)
            else:
                if answer.is_success:
                    self._unanswered.pop(label, None)
                    return answer.json()
                self._unanswered[label] = f"{answer.status_code} {answer.text}"
                self.asked_again[str(answer.status_code)] += 1
                if answer.status_code not in ASK_AGAIN:
                    self.refused.append(answer.text)
                    raise AssertionError(answer.text)
            time.sleep(PAUSE_SECONDS)

    def _cron(self) -> dict[str, Any]:
        return {
            "assistant_id": "echo",
            "input": {"text": "tick"},
            "schedule": f"* * * * * */{CRON_SECONDS}",
            "on_run_completed": "keep",
        }

    # Waiting

    def owned(self, machine: Machine) -> int:
        """Return how many runs the runners of a machine are executing."""
        pids = machine.pids("runner")
        found = self.fleet.rows(
            "SELECT count(*) FROM run r JOIN worker w ON w.id = r.owner WHERE r.status = 'running' AND w.pid = ANY(%(pids)s)",
            pids=pids,
        )
        return found[0][0]

    def await_work_of(self, machine: Machine) -> None:
        wait_until(lambda: self.owned(machine) >= 2, 60, what=f"{machine.name} to have runs")

    def await_more(self, runs: int, seconds: float = 60) -> None:
        """Wait until this many more runs have succeeded."""
        before = self.ended()
        wait_until(lambda: self.ended() >= before + runs, seconds, what=f"{runs} more runs to end")

    def ended(self) -> int:
        return self.fleet.rows("SELECT count(*) FROM run WHERE status = 'success'")[0][0]

    # Checks

    def end(self) -> None:
        self._over.set()
        self._thread.join(ANSWER_SECONDS)
        assert not self._thread.is_alive(), f"requests without an answer: {self._unanswered}"
        self.fleet.client.delete(f"/d/{self._deployment}/runs/crons/{self._cron_id}").raise_for_status()

    def check(self) -> None:
        """Check that every accepted run was executed once and has released all that it held."""
        assert not self.refused
        wait_until_none(lambda: self.fleet.rows(UNFINISHED), 60, what="runs that have not ended")
        for run in self.made:
            self._check_run(run)
        self._check_cron()
        check_nothing_is_left(self.fleet)

    def _check_run(self, run: Made) -> None:
        rows = self.fleet.rows(
            "SELECT run_id::text, status, attempt, error FROM run WHERE thread_id = %(id)s", id=run.thread_id
        )
        assert [(row[0], row[1]) for row in rows] == [(run.run_id, "success")], (run, rows)
        attempts = rows[0][2]
        state = self.fleet.client.get(f"/d/{self._deployment}/threads/{run.thread_id}/state").json()
        assert state["values"]["log"] == list(range(STEPS))
        noted = Counter(self._noted(run.label))
        assert sorted(noted) == list(range(STEPS)), (run, noted)
        assert noted.total() <= STEPS + attempts - 1, (
            f"{run}: more than one step of an attempt was repeated: {noted}"
        )
        if run.kind == "webhook":
            calls = wait_until(lambda: self._receiver.calls_of(run.run_id), 30, what="a webhook")
            assert len({call.id for call in calls}) == 1
            assert calls[0].document["status"] == "success"
            sent_at = int(calls[0].headers["Webhook-Timestamp"])
            assert abs(sent_at - time.time()) < HOUR, "receivers refuse what is old"
        if run.reading is not None:
            self._check_stream(run, run.reading, attempts)

    def _noted(self, label: str) -> list[int]:
        files = self.fleet.data_dir.glob(f"*/revisions/*/home/{label}")
        return [int(line) for file in files for line in file.read_text().split()]

    def _check_stream(self, run: Made, reading: Reading, attempts: int) -> None:
        reading.join(60)
        assert not reading.is_alive(), f"{run}: its stream did not end; so far: {reading.parts[-3:]}"
        ids = [int(part.id) for part in reading.parts if part.id is not None]
        assert ids == sorted(set(ids))
        last = reading.parts[-1]
        assert last.event == "values", f"{run}: its stream ended early, with {reading.parts[-3:]}"
        assert last.data["log"] == list(range(STEPS))
        steps = [part.data["step"] for part in reading.parts if part.event == "custom"]
        assert sorted(set(steps)) == list(range(STEPS)), f"{run}: its stream has a hole: {steps}"
        assert len(steps) <= STEPS + attempts - 1

    def _check_cron(self) -> None:
        rows = self.fleet.rows(
            "SELECT status, extract(epoch FROM created_at) FROM run"
            " WHERE kwargs #>> '{config,configurable,cron_id}' = %(id)s",
            id=self._cron_id,
        )
        assert {status for status, _ in rows} == {"success"}
        times = [int(at) // CRON_SECONDS for _, at in rows]
        assert len(times) == len(set(times)), "a time of the cron's came twice"


UNFINISHED: LiteralString = """
SELECT r.run_id::text, r.status, r.attempt, r.deaths, now() - r.created_at AS age, r.lease_until - now() AS lease,
    r.owner, now() - w.seen_at AS silent, r.notifications
FROM run r LEFT JOIN worker w ON w.id = r.owner WHERE r.status IN ('pending', 'running') ORDER BY r.created_at
"""
LEFT: dict[str, LiteralString] = {
    "threads that are busy": "SELECT thread_id FROM thread WHERE status = 'busy'",
    "webhooks to be sent": "SELECT delivery_id FROM webhook_delivery WHERE ended_at IS NULL",
    "transactions left open": "SELECT pid, state, query FROM pg_stat_activity WHERE usename = 'platform'"
    " AND state LIKE 'idle in transaction%' AND now() - state_change > interval '5 seconds'",
}
MOST_CONNECTIONS = {"web": 16, "runner": 8, "builder": 8}  # PostgreSQL connections per process


def check_nothing_is_left(fleet: Fleet) -> None:
    """Check that no busy threads, unsent webhooks, open transactions, busy slots or excess connections remain."""
    for what, query in LEFT.items():
        wait_until_none(lambda query=query: fleet.rows(query), 30, what=what)
    alive = [process for process in fleet.processes(*MOST_CONNECTIONS) if process.is_alive()]
    pids = {process.popen.pid for process in alive}  # the row of a killed process stays for a minute
    wait_until_none(
        lambda: [row for row in fleet.workers() if row["running"] and row["pid"] in pids],
        30,
        what="busy slots",
    )
    most = sum(MOST_CONNECTIONS[process.kind] for process in alive)
    wait_until_none(
        lambda: fleet.rows("SELECT pid, state, query FROM pg_stat_activity WHERE usename = 'platform'")[
            most:
        ],
        30,
        what=f"connections beyond {most}",
    )


def wait_until_none(look: Callable[[], list[Any]], seconds: float, what: str) -> None:
    """Wait until `look` returns nothing. Fails with what it still returns."""
    try:
        wait_until(lambda: not look(), seconds)
    except AssertionError as error:
        raise AssertionError(f"after {seconds} s there are still {what}: {look()}") from error


@contextmanager
def under_load(fleet: Fleet, receiver: Receiver, pool: str = "default") -> Iterator[Load]:
    """Run a load while the block runs, then check its results."""
    load = Load(fleet, receiver, pool)
    try:
        yield load
    finally:
        load.end()
    load.check()
    print(f"{len(load.made)} runs; asked again: {dict(load.asked_again)}")
