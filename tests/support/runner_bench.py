"""A runner with real PostgreSQL, Valkey and graph hosts, and a project of sample graphs."""

from __future__ import annotations

import dataclasses
import json
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import gevent
import orjson
from gevent.event import AsyncResult
from sqlalchemy import text

import workers
from shared.deployments.deployments import DeploymentRef
from shared.eventlog import events
from shared.eventlog.events import Event
from shared.infra import broker, redis
from shared.infra.postgres import connection
from shared.runs import cancel
from shared.runs.drafts import RunRequest
from shared.settings import Settings
from shared.threads import records
from tests.support import factories, host_forks
from tests.support.creating import insert_run
from tests.support.greened import World, constants
from tests.support.waiting import until
from workers.runner import ending
from workers.runner.deployment_log import DeployLog
from workers.runner.host import Host, HostCommand
from workers.runner.host_pool import NEVER, HostPool, PreparedHost
from workers.runner.quarantine import DEFAULT_GROUP, Group
from workers.runner.runner import Runner

KITCHEN = Path(workers.__file__).parents[1] / "tests/projects/kitchen"
GRAPHS = (
    "echo", "asks", "writes", "counts", "sleeps", "blocks", "fails", "dies", "remembers", "breaks", "calls",
    "consumes",
)  # fmt: skip
HOST = Path(workers.__file__).parent / "graph_host"


def prepare(revision_id: UUID) -> PreparedHost:
    """Return a host command like that of a prepared environment. The host is forked with its libraries loaded."""
    config = {"graphs": {name: f"./kitchen.py:{name}" for name in GRAPHS}}
    env = {"PATH": os.environ["PATH"], "GRAPH_HOST_CONFIG": json.dumps(config)}
    command = HostCommand(host_forks.stand_in(HOST), str(KITCHEN), env)
    return PreparedHost(command, show)


def show(level: str, message: str, run_id: UUID | None) -> None:
    """Print the output of a host, to explain a failed test."""
    print(f"host of run {run_id}: {level} {message}", file=sys.stderr)


class SharedHosts(HostPool):
    """Graph hosts that outlive a test. All tests use the same project, so every revision maps to one."""

    REVISION = uuid4()

    def acquire(
        self, revision_id: UUID, group: Group = DEFAULT_GROUP, *, depth: int = 0, unless: AsyncResult = NEVER
    ) -> Host:
        return super().acquire(self.REVISION, group, depth=depth, unless=unless)

    def warm(self, revision_id: UUID) -> None:
        super().warm(self.REVISION)

    def close(self) -> None:
        """Do nothing: the hosts end with the process."""


shared_hosts: list[SharedHosts] = []


class Bench:
    """A runner, a deployment, and the actions of a client."""

    def __init__(self, world: World, **settings: Any) -> None:
        defaults = {"worker": f"runner-{uuid4().hex[:6]}", "hosts_per_revision": 1}
        self.base = Settings.from_env({"RUNYARD_DATA_DIR": str(world.tmp_path)})
        self.settings = dataclasses.replace(self.base, **{**defaults, **settings})
        self.deployment: DeploymentRef = factories.deployment(graphs=GRAPHS)
        self.deploy_log = DeployLog()
        self.notified: list[tuple[str, str, str]] = []
        self.runner = self.new_runner(self.settings)

    def new_runner(self, settings: Settings) -> Runner:
        if not shared_hosts:
            shared_hosts.append(SharedHosts(dataclasses.replace(self.base, hosts_per_revision=1), prepare))
        return Runner(settings, shared_hosts[0], self.deploy_log)

    def with_hosts(self, hosts: HostPool) -> HostPool:
        """Let the runner execute the next runs in these hosts."""
        self.runner.services = dataclasses.replace(self.runner.services, hosts=hosts)
        return hosts

    def notify(self, task: str, queue: str, id: UUID | str) -> None:
        """Deliver a notification directly to the runner, without a broker."""
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
        depth: int = 0,
        **fields: Any,
    ) -> UUID:
        """Insert a pending run without a notification. Returns its id."""
        request = RunRequest(assistant_id=graph, input=input or {}, if_not_exists="create", **fields)
        with connection() as conn:
            created = insert_run(
                conn,
                deployment or self.deployment,
                request,
                thread_id=None if stateless else thread or uuid4(),
                key_id=key,
                depth=depth,
            )
        return created.run_id

    def start(self, graph: str, input: Any = None, **fields: Any) -> UUID:
        run_id = self.create(graph, input, **fields)
        gevent.spawn(self.runner.notify, [run_id])
        return run_id

    def start_asleep(self, input: Any = None, **fields: Any) -> UUID:
        """Start a run, and return once its node sleeps."""
        run_id = self.start("sleeps", input, stream_mode=["custom"], **fields)
        self.wait_for_event(run_id, b"asleep")
        return run_id

    def row(self, run_id: UUID) -> dict[str, Any]:
        """Return the run's row, or an empty dict if the run is deleted."""
        with connection() as conn:
            found = conn.execute(text("SELECT * FROM run WHERE run_id = :id"), {"id": run_id})
            return dict(found.mappings().one_or_none() or {})

    def thread(self, run_id: UUID) -> dict[str, Any]:
        with connection() as conn:
            return dict(records.get(conn, self.deployment.id, self.row(run_id)["thread_id"]))

    def status(self, run_id: UUID) -> str | None:
        return self.row(run_id).get("status")

    def wait(self, run_id: UUID, *, timeout: float = 60) -> list[Event]:
        """Wait until the last event is in the log. Returns the run's events."""

        def whole() -> list[Event] | None:
            found = list(events.logged(redis.client(), run_id, 0))
            return found if found and found[-1].is_last else None

        return until(whole, timeout)

    def wait_for_event(self, run_id: UUID, data: bytes) -> None:
        until(lambda: any(data in event.data for event in events.logged(redis.client(), run_id, 0)))

    def cancel(self, run_id: UUID, action: str, *, tell: bool = True) -> None:
        with connection() as conn:
            stopped = cancel.cancel_run(
                conn, self.deployment.id, self.row(run_id)["thread_id"], run_id, action=action
            )
        if tell:
            message = orjson.dumps({"run_id": str(run_id), "action": action, "reason": None})
            redis.client().publish(redis.control_channel(stopped.owner or ""), message)

    def hosts(self) -> list[int]:
        return [
            host.pid for host in self.runner.hosts.all() if host.died is None and host.group == DEFAULT_GROUP
        ]


@contextmanager
def bench(world: World, **settings: Any) -> Iterator[Bench]:
    with constants(ending, RETRY_SECONDS=(0.1, 0.1)):
        made = Bench(world, **settings)
        broker.notifier.notify = made.notify  # type: ignore[method-assign]
        try:
            yield made
        finally:
            del broker.notifier.notify
            end_loops([*made.runner._loops, made.deploy_log._greenlet])
            made.runner.close()


def end_loops(loops: Sequence[gevent.Greenlet]) -> None:
    """Kill loops until all have ended: one that is killed during a statement may only see a database error, and go on."""
    while alive := [loop for loop in loops if not loop.dead]:
        gevent.killall(alive, block=False)
        gevent.joinall(alive, timeout=1)


def names(found: list[Event]) -> list[str]:
    return [event.name for event in found]


def last(found: list[Event]) -> Any:
    return orjson.loads(found[-1].data)
