"""A runner end to end: real PostgreSQL, Valkey and graph hosts, the project of sample graphs."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import gevent
import orjson
import pytest
from gevent.event import AsyncResult
from sqlalchemy import text

import workers
from shared.access import api_keys
from shared.deployments import limits
from shared.deployments.deployments import DeploymentRef
from shared.errors import HostError, OutcomeUnknown, Unavailable
from shared.eventlog import events
from shared.eventlog.events import Event
from shared.infra import broker, redis
from shared.infra.postgres import Driver, connection, driver, transaction
from shared.runs import cancel, create, eligibility, retry
from shared.settings import Settings
from shared.threads import records
from tests.support import factories
from tests.support.greened import World, child, greened
from tests.support.waiting import until
from workers.graph_host import frames
from workers.runner import claiming, ending, host_pool
from workers.runner import execution as execution
from workers.runner import host as one_host
from workers.runner.host import Host, HostCommand
from workers.runner.host_pool import NEVER, HostPool
from workers.runner.quarantine import OPEN, Group
from workers.runner.runner import Runner
from workers.upkeep.upkeep import Upkeep

__all__ = ["child"]

KITCHEN = Path(workers.__file__).parents[1] / "tests/projects/kitchen"
GRAPHS = (
    "echo", "asks", "writes", "counts", "sleeps", "blocks", "fails", "dies", "remembers", "breaks", "calls",
    "consumes",
)  # fmt: skip
HOST = Path(workers.__file__).parent / "graph_host"


def prepare(revision_id: UUID) -> tuple[HostCommand, Callable[..., None]]:
    """What the environments' builder would answer: this interpreter is the project's environment."""
    config = {"graphs": {name: f"./kitchen.py:{name}" for name in GRAPHS}}
    env = {"PATH": os.environ["PATH"], "GRAPH_HOST_CONFIG": json.dumps(config)}
    command = HostCommand([sys.executable, str(HOST), "--socket", "{socket}"], str(KITCHEN), env)
    return command, lambda level, message, run_id: None


class SharedHosts(HostPool):
    """Hosts that outlive a test: every test's revision is the same project."""

    REVISION = uuid4()

    def acquire(self, revision_id: UUID, group: Group = OPEN, *, unless: AsyncResult = NEVER) -> Host:
        return super().acquire(self.REVISION, group, unless=unless)

    def warm(self, revision_id: UUID) -> None:
        super().warm(self.REVISION)

    def close(self) -> None:
        """They go with the process."""


shared_hosts: list[SharedHosts] = []


class Bench:
    """A runner, a deployment, and what a client would do."""

    def __init__(self, world: World, **settings: Any) -> None:
        defaults = {"worker": f"runner-{uuid4().hex[:6]}", "hosts_per_revision": 1}
        base = Settings.from_env({"RUNYARD_DATA_DIR": str(world.tmp_path)})
        self.settings = dataclasses.replace(base, **{**defaults, **settings})
        self.deployment: DeploymentRef = factories.deployment(graphs=GRAPHS)
        self.notified: list[tuple[str, str, str]] = []
        self.runner = self.new_runner(self.settings)

    def new_runner(self, settings: Settings) -> Runner:
        if not shared_hosts:
            shared_hosts.append(SharedHosts(settings, prepare))
        return Runner(settings, shared_hosts[0])

    def with_hosts(self, hosts: HostPool) -> HostPool:
        """Have the runner execute what comes next in other hosts."""
        self.runner.services = dataclasses.replace(self.runner.services, hosts=hosts)
        return hosts

    def notify(self, task: str, queue: str, id: UUID | str) -> None:
        """The notifier, without the broker between it and the runner."""
        self.notified.append((task, queue, str(id)))
        if queue == broker.runs_queue(self.settings.pool):
            gevent.spawn(self.runner.notify, [UUID(str(id))])

    def create(
        self,
        graph: str,
        input: Any = None,
        *,
        thread: UUID | None = None,
        stateless: bool = False,
        key: str = "",
        deployment: DeploymentRef | None = None,
        **fields: Any,
    ) -> UUID:
        """A pending run's id; nobody has been notified."""
        request = create.RunRequest(assistant_id=graph, input=input or {}, if_not_exists="create", **fields)
        with connection() as conn:
            created = create.create_run(
                conn,
                deployment or self.deployment,
                request,
                thread_id=None if stateless else thread or uuid4(),
                key_id=key,
            )
        return created.run_id

    def start(self, graph: str, input: Any = None, **fields: Any) -> UUID:
        run_id = self.create(graph, input, **fields)
        gevent.spawn(self.runner.notify, [run_id])
        return run_id

    def row(self, run_id: UUID) -> dict[str, Any] | None:
        with connection() as conn:
            found = conn.execute(text("SELECT * FROM run WHERE run_id = :id"), {"id": run_id})
            row = found.mappings().one_or_none()
        return None if row is None else dict(row)

    def thread(self, run_id: UUID) -> dict[str, Any]:
        row = self.row(run_id)
        assert row is not None
        with connection() as conn:
            return dict(records.get(conn, self.deployment.id, row["thread_id"]))

    def status(self, run_id: UUID) -> str | None:
        row = self.row(run_id)
        return None if row is None else row["status"]

    def wait(self, run_id: UUID, *, timeout: float = 60) -> list[Event]:
        """The run's events once the last is in the log."""

        def whole() -> list[Event] | None:
            found = list(events.logged(redis.client(), run_id, 0))
            return found if found and found[-1].is_last else None

        return until(whole, timeout)

    def wait_for_event(self, run_id: UUID, data: bytes) -> None:
        until(lambda: any(data in event.data for event in events.logged(redis.client(), run_id, 0)))

    def cancel(self, run_id: UUID, action: str, *, tell: bool = True) -> None:
        row = self.row(run_id)
        assert row is not None
        with connection() as conn:
            stopped = cancel.cancel_run(conn, self.deployment.id, row["thread_id"], run_id, action=action)
        if tell:
            message = orjson.dumps({"run_id": str(run_id), "action": action, "reason": None})
            redis.client().publish(redis.control_channel(stopped.owner or ""), message)

    def hosts(self) -> list[int]:
        return [host.pid for host in self.runner.hosts.all() if host.died is None and host.group == OPEN]


@contextmanager
def bench(world: World, **settings: Any) -> Iterator[Bench]:
    ending.RETRY_SECONDS = (0.1, 0.1)
    made = Bench(world, **settings)
    broker.notifier.notify = made.notify  # type: ignore[method-assign]
    try:
        yield made
    finally:
        del broker.notifier.notify
        gevent.killall(made.runner._loops)
        made.runner.close()


def names(found: list[Event]) -> list[str]:
    return [event.name for event in found]


def last(found: list[Event]) -> Any:
    return orjson.loads(found[-1].data)


@greened
def test_a_run_succeeds(world: World) -> None:
    with bench(world) as b:
        run_id = b.start("echo", {"text": "hi"})
        found = b.wait(run_id)

        assert names(found)[0] == "metadata"
        assert [event.seq for event in found] == list(range(1, len(found) + 1))
        assert last(found)["status"] == "success"
        assert last(found)["output"]["log"] == ["hi"]
        assert b.status(run_id) == "success"
        thread = b.thread(run_id)
        assert (thread["status"], thread["values"]["log"]) == ("idle", ["hi"])


@greened
def test_a_graph_that_raises_is_an_error_and_not_tried_again(world: World) -> None:
    with bench(world) as b:
        run_id = b.start("fails")
        found = b.wait(run_id)

        row = b.row(run_id)
        assert row is not None
        assert (row["status"], row["attempt"], row["error"]["error"]) == ("error", 1, "ValueError")
        assert "error" in names(found)
        assert b.thread(run_id)["status"] == "error"


@greened
def test_a_graph_that_asks_interrupts_its_thread(world: World) -> None:
    with bench(world) as b:
        run_id = b.start("asks")
        b.wait(run_id)

        assert b.status(run_id) == "success"
        thread = b.thread(run_id)
        assert thread["status"] == "interrupted"
        assert thread["interrupts"]


@greened
def test_the_tokens_that_models_used_are_in_the_row(world: World) -> None:
    with bench(world) as b:
        run_id = b.start("consumes")
        b.wait(run_id)

        row = b.row(run_id)
        assert row is not None
        assert row["usage"] == {"large": {"input_tokens": 1, "output_tokens": 2, "total_tokens": 3}}


@greened
def test_a_temporary_run_leaves_no_row(world: World) -> None:
    with bench(world) as b:
        run_id = b.start("echo", {"text": "hi"}, stateless=True)

        assert last(b.wait(run_id))["output"]["log"] == ["hi"]
        assert b.row(run_id) is None


@greened
def test_a_run_with_more_events_than_were_reserved_reaches_its_end(world: World) -> None:
    with bench(world) as b:
        kept = b.start("writes", {"n": 1300}, stream_mode=["custom"])
        gone = b.start("writes", {"n": 1300}, stream_mode=["custom"], stateless=True)

        for run_id in (kept, gone):
            found = b.wait(run_id)
            assert names(found).count("custom") == 1300
            assert [event.seq for event in found] == list(range(1, len(found) + 1))
        row = b.row(kept)
        assert row is not None
        assert row["seq_reserved"] >= 1300


@greened
def test_events_wait_while_redis_has_forgotten_them(world: World) -> None:
    with bench(world) as b:
        run_id = b.start("writes", {"n": 40, "seconds": 0.02}, stream_mode=["custom"])
        b.wait_for_event(run_id, b'{"i":10}')
        redis.client().flushall()
        found = b.wait(run_id)

        assert [event.seq for event in found] == list(range(1, len(found) + 1))
        assert names(found).count("custom") == 40


@greened
def test_a_cancelled_run_is_interrupted(world: World) -> None:
    with bench(world) as b:
        run_id = b.start("sleeps", stream_mode=["custom"])
        b.wait_for_event(run_id, b"asleep")
        b.cancel(run_id, "interrupt")
        b.wait(run_id)

        assert b.status(run_id) == "interrupted"
        thread = b.thread(run_id)
        assert (thread["status"], thread["values"]["log"]) == ("interrupted", ["before"])


@greened
def test_a_cancel_nobody_told_of_is_seen_at_the_next_renewal(world: World) -> None:
    with bench(world, lease_seconds=3.0) as b:
        run_id = b.start("sleeps", stream_mode=["custom"])
        b.wait_for_event(run_id, b"asleep")
        b.cancel(run_id, "interrupt", tell=False)
        b.wait(run_id)

        assert b.status(run_id) == "interrupted"


@greened
def test_a_run_rolled_back_leaves_the_thread_as_it_was(world: World) -> None:
    with bench(world) as b:
        thread_id = uuid4()
        b.wait(b.start("echo", {"text": "kept"}, thread=thread_id))
        run_id = b.start("sleeps", stream_mode=["custom"], thread=thread_id)
        b.wait_for_event(run_id, b"asleep")
        b.cancel(run_id, "rollback")
        found = b.wait(run_id)

        assert last(found)["status"] == "rollback"
        assert b.row(run_id) is None
        with connection() as conn:
            thread = records.get(conn, b.deployment.id, thread_id)
            foreign = conn.execute(text("SELECT count(*) FROM checkpoint WHERE run_id = :id"), {"id": run_id})
            assert foreign.scalar_one() == 0
        assert thread["status"] == "idle"
        assert thread["values"]["log"] == ["kept"]


@greened
def test_a_stopped_run_goes_on_from_its_last_checkpoint_when_run_again(world: World) -> None:
    with bench(world) as b:
        asked = {"n": 6, "seconds": 0.2}
        run_id = b.start("counts", asked, stream_mode=["custom"], durability="sync")
        b.wait_for_event(run_id, b'"step":3')
        b.cancel(run_id, "interrupt")
        b.wait(run_id)
        stopped = b.thread(run_id)

        with connection() as conn:
            thread_id = stopped["thread_id"]
            again = retry.retry_run(conn, b.deployment, thread_id, run_id, new_id=uuid4()).run_id
        b.runner.notify([again])
        found = b.wait(again)

        assert stopped["values"]["log"] == [0, 1, 2]
        assert b.thread(again)["values"]["log"] == [0, 1, 2, 3, 4, 5]
        assert [orjson.loads(event.data)["step"] for event in found if event.name == "custom"] == [3, 4, 5]


@greened
def test_a_run_past_its_deadline_times_out(world: World) -> None:
    with bench(world, run_timeout_seconds=1.0) as b:
        run_id = b.start("sleeps")
        found = b.wait(run_id)

        assert b.status(run_id) == "timeout"
        assert orjson.loads(found[-2].data)["error"] == "TimeoutError"
        assert b.thread(run_id)["status"] == "error"


@greened
def test_a_run_whose_host_was_killed_goes_on_from_its_checkpoint(world: World) -> None:
    with bench(world) as b:
        notes = world.tmp_path / "notes"
        run_id = b.start("counts", {"n": 8, "file": str(notes), "seconds": 0.15}, durability="sync")
        until(lambda: notes.exists() and len(notes.read_text().split()) >= 3)
        os.kill(b.hosts()[0], signal.SIGKILL)
        found = b.wait(run_id)

        row = b.row(run_id)
        assert row is not None
        assert (row["status"], row["attempt"], row["deaths"]) == ("success", 2, 1)
        assert row["last_death"] == "was killed by SIGKILL"
        assert b.thread(run_id)["values"]["log"] == list(range(8))
        done = [int(number) for number in notes.read_text().split()]
        assert len(done) <= 9  # no more than the interrupted step came twice
        numbers = [event.seq for event in found]
        assert numbers == sorted(set(numbers))
        attempts = [orjson.loads(e.data)["attempt"] for e in found if e.name == "metadata"]
        assert attempts == [1, 2]


@greened
def test_runs_whose_host_died_go_on_together_and_count_no_death(world: World) -> None:
    with bench(world) as b:
        ids = [b.start("sleeps", {"seconds": 3}, stream_mode=["custom"]) for _ in range(8)]
        for run_id in ids:
            b.wait_for_event(run_id, b"asleep")
        hosts = set(b.hosts())
        for pid in hosts:
            os.kill(pid, signal.SIGKILL)
        until(lambda: len([host for host in b.runner.hosts.all() if host.group != OPEN]) == 1)
        for run_id in ids:
            b.wait(run_id)

        rows = [b.row(run_id) or {} for run_id in ids]
        assert {(row["status"], row["attempt"], row["deaths"], row["quarantine"]) for row in rows} == {
            ("success", 2, 0, 1)
        }


@greened
def test_a_run_that_kills_its_host_every_time_ends_and_takes_no_other_with_it(world: World) -> None:
    with bench(world) as b:
        others = [b.start("sleeps", {"seconds": 2}, stream_mode=["custom"]) for _ in range(6)]
        for run_id in others:
            b.wait_for_event(run_id, b"asleep")
        poison = b.start("dies", {"how": "kill"})

        b.wait(poison)
        row = b.row(poison)
        assert row is not None
        assert (row["status"], row["error"]["error"]) == ("error", "RunAbandoned")
        assert "SIGKILL (3 times in a row)" in row["error"]["message"]
        for run_id in others:
            b.wait(run_id)
        rows = [b.row(run_id) or {} for run_id in others]
        assert [(row["status"], row["deaths"]) for row in rows] == [("success", 0)] * len(others)


@greened
def test_runs_that_a_broken_host_does_not_begin_go_to_another(world: World) -> None:
    with bench(world) as b, impatient_hosts(b):
        broken = world.tmp_path / "broken"
        b.start("breaks", {"file": str(broken)})
        until(broken.exists)
        others = [b.start("echo", {"text": "hi"}) for _ in range(3)]

        for run_id in others:
            b.wait(run_id)
            row = b.row(run_id)
            assert row is not None
            assert (row["status"], row["attempt"], row["deaths"]) == ("success", 1, 0)


@greened
def test_a_run_that_gets_no_thread_in_its_host_goes_to_another(world: World) -> None:
    with bench(world, hosts_per_revision=2) as b, single_threads(b), socket.create_server(("", 0)) as silent:
        asked = {"n": 1, "how": f"http://127.0.0.1:{silent.getsockname()[1]} key"}
        first = b.start("calls", asked)
        never_answered, _ = silent.accept()
        second = b.start("calls", {"n": 0})
        b.wait(second)

        row = b.row(second)
        assert row is not None
        assert (row["status"], row["deaths"]) == ("success", 0)
        assert b.status(first) == "running"
        never_answered.close()
        b.wait(first)


@greened
def test_a_run_that_waits_for_a_host_can_be_cancelled(world: World) -> None:
    with bench(world, max_hosts=1) as b, full(b):
        run_id = b.start("echo")
        until(lambda: b.status(run_id) == "running")
        b.cancel(run_id, "interrupt")
        b.wait(run_id)

        assert b.status(run_id) == "interrupted"


@greened
def test_a_run_that_waits_for_a_host_times_out(world: World) -> None:
    with bench(world, max_hosts=1, run_timeout_seconds=0.5) as b, full(b):
        run_id = b.start("echo")
        b.wait(run_id)

        assert b.status(run_id) == "timeout"


@greened
def test_a_run_that_waits_for_a_host_is_handed_over(world: World) -> None:
    with bench(world, max_hosts=1, drain_seconds=0.1) as b, full(b):
        run_id = b.start("echo")
        until(lambda: b.status(run_id) == "running")
        b.runner.drain()
        until(lambda: b.status(run_id) == "pending")


@greened
def test_a_run_that_waits_for_a_host_is_fenced(world: World) -> None:
    with bench(world, max_hosts=1, lease_seconds=2.0) as b, full(b):
        run_id = b.start("echo")
        until(lambda: b.status(run_id) == "running")
        with connection() as conn:
            conn.execute(
                text("UPDATE run SET owner = 'other', attempt = attempt + 1 WHERE run_id = :id"),
                {"id": run_id},
            )
        until(lambda: not b.runner._executions)


@contextmanager
def impatient_hosts(b: Bench) -> Iterator[None]:
    """A pool of its own that soon asks whether its hosts have begun what they were sent."""
    pings, quiet = host_pool.PING_SECONDS, one_host.QUIET_SECONDS
    host_pool.PING_SECONDS = one_host.QUIET_SECONDS = 0.1
    pool = b.with_hosts(HostPool(b.settings, prepare))
    try:
        yield
    finally:
        pool.close()
        host_pool.PING_SECONDS, one_host.QUIET_SECONDS = pings, quiet


@contextmanager
def single_threads(b: Bench) -> Iterator[None]:
    """A pool of its own whose hosts execute one synchronous node at a time."""

    def one_thread(revision_id: UUID) -> tuple[HostCommand, Callable[..., None]]:
        command, output = prepare(revision_id)
        return dataclasses.replace(command, argv=[*command.argv, "--threads", "1"]), output

    pool = b.with_hosts(HostPool(b.settings, one_thread))
    try:
        yield
    finally:
        pool.close()


@contextmanager
def full(b: Bench) -> Iterator[None]:
    """A pool of its own, whose only host is busy with something else."""
    pool = b.with_hosts(HostPool(b.settings, prepare))
    pool.acquire(uuid4()).enter(uuid4().bytes, Anybody(), b"{}", kind=frames.CANCEL)
    try:
        yield
    finally:
        pool.close()


class Anybody:
    """Whoever is in a host."""

    def received(self, kind: int, body: bytes) -> None:
        """Nothing to do with it."""

    def host_died(self, error: HostError) -> None:
        """It goes with the pool."""

    def wait_until_drained(self) -> None:
        """There is room."""


@greened
def test_the_third_death_ends_a_run(world: World) -> None:
    with bench(world) as b:
        until(lambda: not any(host.occupants for host in b.runner.hosts.all()))  # alone from the first
        run_id = b.start("dies", {"how": "kill"})
        found = b.wait(run_id)

        row = b.row(run_id)
        assert row is not None
        assert (row["status"], row["attempt"], row["error"]["error"]) == ("error", 3, "RunAbandoned")
        assert "SIGKILL" in row["error"]["message"]
        assert orjson.loads(found[-2].data)["error"] == "RunAbandoned"


@greened
def test_a_run_cancelled_while_its_host_dies_ends(world: World) -> None:
    with bench(world, lease_seconds=30.0) as b:
        run_id = b.start("sleeps", stream_mode=["custom"])
        b.wait_for_event(run_id, b"asleep")
        b.cancel(run_id, "interrupt", tell=False)
        os.kill(b.hosts()[0], signal.SIGKILL)
        b.wait(run_id)

        assert b.status(run_id) == "interrupted"


@greened
def test_a_message_delivered_twice_changes_nothing(world: World) -> None:
    with bench(world) as b:
        run_id = b.create("writes", {"n": 5, "seconds": 0.05}, stream_mode=["custom"])
        for _ in range(3):
            gevent.spawn(b.runner.notify, [run_id, run_id])
        found = b.wait(run_id)
        b.runner.notify([run_id])

        row = b.row(run_id)
        assert row is not None
        assert (row["status"], row["attempt"]) == ("success", 1)
        assert names(found).count("custom") == 5


@greened
def test_runs_of_a_limited_deployment_follow_each_other_without_a_bell(world: World) -> None:
    with bench(world) as b:
        with connection() as conn:
            limits.change(conn, b.deployment.id, {"max_concurrent_runs": 1})
        waiting = [b.create("echo", {"text": "x"}) for _ in range(4)]
        with connection() as conn:
            conn.execute(text("UPDATE run SET created_at = now() - interval '1 minute'"))
        b.notified.clear()

        found = until(lambda: [run_id for run_id in waiting if b.status(run_id) == "success"] == waiting)

        assert found
        assert b.notified == []
        with connection() as conn:
            ended = conn.execute(text("SELECT started_at, ended_at FROM run ORDER BY run_id")).all()
        assert all(after.started_at >= before.ended_at for before, after in pairwise(ended))


@greened
def test_a_run_nobody_rang_for_is_claimed(world: World) -> None:
    with bench(world) as b:
        run_id = b.create("echo", {"text": "hi"})
        b.wait(run_id)

        assert b.status(run_id) == "success"


@greened
def test_runs_of_a_thread_go_in_order(world: World) -> None:
    with bench(world) as b:
        thread_id = uuid4()
        ids = [b.create("echo", {"text": str(n)}, thread=thread_id) for n in range(5)]
        gevent.spawn(b.runner.notify, list(reversed(ids)))
        for run_id in ids:
            b.wait(run_id)

        assert b.thread(ids[-1])["values"]["log"] == ["0", "1", "2", "3", "4"]


@greened
def test_a_runner_that_drains_hands_its_runs_over(world: World) -> None:
    with bench(world, drain_seconds=0.1) as b:
        notes = world.tmp_path / "notes"
        run_id = b.start("counts", {"n": 8, "file": str(notes), "seconds": 0.15}, stream_mode=["custom"])
        until(lambda: notes.exists() and len(notes.read_text().split()) >= 3)
        b.runner.drain()
        until(lambda: b.status(run_id) == "pending")
        row = b.row(run_id)
        assert row is not None
        assert (row["attempt"], row["deaths"], row["owner"]) == (1, 0, None)

        heir = b.new_runner(dataclasses.replace(b.settings, worker="heir"))
        try:
            gevent.spawn(heir.notify, [run_id])
            found = b.wait(run_id)
            assert b.status(run_id) == "success"
            assert b.thread(run_id)["values"]["log"] == list(range(8))
            steps = [orjson.loads(event.data)["step"] for event in found if event.name == "custom"]
            assert sorted(set(steps)) == list(range(8))
        finally:
            heir.close()


@greened
def test_a_draining_runner_takes_nothing(world: World) -> None:
    with bench(world) as b:
        b.runner.drain()
        run_id = b.create("echo")
        b.runner.notify([run_id])

        assert b.status(run_id) == "pending"


@greened
def test_a_runner_that_closes_gives_its_runs_back(world: World) -> None:
    with bench(world) as b:
        run_id = b.start("sleeps", stream_mode=["custom"])
        b.wait_for_event(run_id, b"asleep")
        b.runner.close()

        assert b.status(run_id) == "pending"


@greened
def test_a_zombie_stops_and_writes_nothing(world: World) -> None:
    with bench(world, lease_seconds=2.0) as b:
        run_id = b.start("sleeps", {"seconds": 60}, stream_mode=["custom"])
        b.wait_for_event(run_id, b"asleep")
        with connection() as conn:  # upkeep gave it to somebody else meanwhile
            conn.execute(
                text("UPDATE run SET owner = 'other', attempt = attempt + 1 WHERE run_id = :id"),
                {"id": run_id},
            )
        until(lambda: not b.runner._executions)

        row = b.row(run_id)
        assert row is not None
        assert (row["status"], row["owner"]) == ("running", "other")


@greened
def test_a_run_deleted_under_its_runner_stops(world: World) -> None:
    with bench(world, lease_seconds=2.0) as b:
        run_id = b.start("sleeps", {"seconds": 60}, stream_mode=["custom"])
        b.wait_for_event(run_id, b"asleep")
        with connection() as conn:
            conn.execute(text("DELETE FROM run WHERE run_id = :id"), {"id": run_id})
        until(lambda: not b.runner._executions)


@greened
def test_a_lease_that_cannot_be_renewed_is_given_up(world: World) -> None:
    with bench(world, lease_seconds=4.0) as b:
        b.runner._loops[0].kill()  # as if the renewal hung
        run_id = b.start("sleeps", {"seconds": 60}, stream_mode=["custom"])
        b.wait_for_event(run_id, b"asleep")

        until(lambda: not b.runner._executions)
        assert b.status(run_id) == "running"  # upkeep's now


@greened
def test_a_run_whose_runner_died_is_taken_up_by_another(world: World) -> None:
    with bench(world) as b:
        run_id = b.create("echo", {"text": "hi"})
        with connection() as conn:  # a runner that was killed at once
            conn.execute(
                text(
                    "UPDATE run SET status = 'running', owner = 'dead', attempt = 1, seq_reserved = 500,"
                    " deadline_at = now() + interval '1 hour', lease_until = now() - interval '1 second'"
                    " WHERE run_id = :id"
                ),
                {"id": run_id},
            )
        Upkeep(b.settings).tick()
        assert b.status(run_id) == "pending"
        found = b.wait(run_id)

        row = b.row(run_id)
        assert row is not None
        assert (row["status"], row["attempt"], row["deaths"]) == ("success", 2, 1)
        assert found[0].seq == 501


@greened
def test_a_runner_has_no_more_runs_than_slots(world: World) -> None:
    with bench(world, runner_slots=2) as b:
        ids = [b.create("sleeps", {"seconds": 0.3}) for _ in range(5)]
        gevent.spawn(b.runner.notify, ids)
        until(lambda: b.runner._executions)
        assert sum(b.status(run_id) == "running" for run_id in ids) <= 2
        for run_id in ids:
            b.wait(run_id)


@greened
def test_a_full_runner_takes_keys_in_turns_and_loses_nobody(world: World) -> None:
    with bench(world, runner_slots=2) as b:
        limited = factories.deployment("limited", graphs=GRAPHS)
        with connection() as conn:
            conn.execute(
                text("UPDATE deployment SET max_concurrent_runs = 1 WHERE id = :id"), {"id": limited.id}
            )
        many = [b.create("echo", key="many") for _ in range(24)]
        slow = [b.create("echo", key="many", deployment=limited) for _ in range(3)]
        single = b.create("echo", key="single")
        for run_id in [*many, *slow, single]:
            gevent.spawn(b.runner.notify, [run_id])
        for run_id in [*many, *slow, single]:
            b.wait(run_id)

        ended = {run_id: (b.row(run_id) or {})["started_at"] for run_id in [*many, *slow, single]}
        order = sorted(ended, key=lambda run_id: ended[run_id])
        assert order.index(single) < 8
        assert order.index(slow[-1]) < 20
        assert not b.runner._has_backlog


@greened
def test_a_keys_next_run_starts_when_one_ends(world: World) -> None:
    with bench(world) as b:
        with transaction() as session:
            api_keys.ensure_default_organization(session)
            made = api_keys.create(session, api_keys.DEFAULT_ORGANIZATION_ID, name="k", max_concurrent_runs=1)
        key_id = made.split("_")[1]
        ids = [b.create("writes", {"n": 1}, key=key_id) for _ in range(4)]
        b.runner.notify(ids)
        for run_id in ids:
            b.wait(run_id)

        spans = [(row["started_at"], row["ended_at"]) for row in map(b.row, ids) if row]
        assert all(end <= start for (_, end), (start, _) in pairwise(spans))


@greened
def test_warming_starts_a_host(world: World) -> None:
    with bench(world) as b:
        revision_id = str(b.deployment.active_revision_id)
        until(
            lambda: (
                redis.client().publish(redis.warm_channel(b.settings.pool), revision_id)
                and gevent.sleep(0.1) is None
                and b.hosts()
            )
        )

        assert len(b.hosts()) == 1


@contextmanager
def deaf() -> Iterator[Driver]:
    """A connection that is lost when its statement has been carried out."""
    with driver() as conn:
        yield conn
    raise OutcomeUnknown("the connection was lost")


@greened
def test_a_run_whose_claim_got_no_answer_does_not_wait_for_its_lease(world: World) -> None:
    with bench(world, lease_seconds=60.0) as b:
        run_id = b.create("echo", {"text": "hi"})
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(claiming, "driver", deaf)
            b.runner.notify([run_id])
        assert b.status(run_id) == "running"

        b.wait(run_id)
        row = b.row(run_id)
        assert row is not None
        assert (row["status"], row["attempt"], row["deaths"]) == ("success", 2, 0)


@greened
def test_runs_that_are_executed_are_not_taken_for_such(world: World) -> None:
    with bench(world) as b:
        run_id = b.start("sleeps", {"seconds": 60}, stream_mode=["custom"])
        b.wait_for_event(run_id, b"asleep")
        with connection() as conn:
            conn.execute(text("UPDATE run SET updated_at = now() - interval '1 minute'"))
        b.runner._claiming.unanswered_at = time.monotonic()
        b.runner._give_back_unanswered()

        assert b.status(run_id) == "running"


@greened
def test_a_run_that_cannot_start_without_the_database_starts_when_it_is_back(world: World) -> None:
    with bench(world, lease_seconds=60.0) as b:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(shared_hosts[0], "acquire", away)
            run_id = b.start("echo", {"text": "hi"})
            until(lambda: (row := b.row(run_id)) and (row["status"], row["attempt"]) == ("pending", 1))

        b.wait(run_id)
        row = b.row(run_id)
        assert row is not None
        assert (row["status"], row["deaths"]) == ("success", 0)


def away(*_: Any, **__: Any) -> Any:
    raise Unavailable("database unavailable")


@greened
def test_what_a_graph_asks_of_a_database_that_is_away_is_asked_again(world: World) -> None:
    with bench(world) as b:
        asked: list[None] = []
        look_up = execution.Execution._looked_up

        def away_at_first(self: Any, ask: Any) -> Any:
            asked.append(None)
            return away() if len(asked) < 3 else look_up(self, ask)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(execution.Execution, "_looked_up", away_at_first)
            run_id = b.start("remembers", {"text": "x"})
            b.wait(run_id)

        assert len(asked) >= 3
        assert b.status(run_id) == "success"


@greened
def test_the_next_run_of_another_pool_is_notified(world: World) -> None:
    with bench(world) as b:
        other = uuid4()
        b.runner.notify_next(eligibility.Next(other, "gpu"))

        assert b.notified == [(broker.EXECUTE_RUNS, "runs.gpu", str(other))]
