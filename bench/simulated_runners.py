"""Measure one PostgreSQL with simulated runners: they insert, claim and end runs, but execute no graph."""

from __future__ import annotations

import dataclasses
import multiprocessing
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from itertools import pairwise
from threading import Barrier
from typing import Any
from uuid import UUID

import psycopg
from uuid_utils.compat import uuid7

from bench.costs import COUNTS
from bench.embedded_server import EmbeddedServer
from bench.measuring import Processes
from bench.targets import TargetError
from cli.machine import embedded
from shared import assistants, migrations
from shared.deployments import deployments
from shared.infra import postgres
from shared.models import RunStatus, ThreadStatus
from shared.runs import create, finish
from shared.runs.claims import Claimed
from shared.runs.drafts import Creator, RunRequest
from shared.runs.finish import Finish
from shared.settings import Settings
from shared.threads.checkpoints import Write
from workers.runner.claiming import AT_ONCE, Claims

GRAPH = "echo"
KEYS = 8  # API keys that create the runs
LEASE_SECONDS = 3600.0  # no lease expires while the runs of a step wait for their ends
WAIT_SECONDS = 600.0
WARM_UP = 10  # runs of each session before a step
# Runs of a claim and of a commit: a runner claims a notified run alone, and many from a backlog.
BATCHES = (1, AT_ONCE)

DEPLOYMENT = """
WITH d AS (
    INSERT INTO deployment (id, organization_id, name, source, status, active_revision_id)
    SELECT %(deployment)s, id, 'limits', 'internal_source', 'READY', %(revision)s FROM organization RETURNING id
), r AS (
    INSERT INTO revision (id, deployment_id, number, status, source)
    SELECT %(revision)s, id, 1, 'DEPLOYED', 'internal_source' FROM d
), a AS (
    INSERT INTO assistant (deployment_id, assistant_id, created_at) SELECT id, %(assistant)s, now() FROM d
)
INSERT INTO assistant_version (deployment_id, assistant_id, version, graph_id, name)
SELECT id, %(assistant)s, 1, %(graph)s, %(graph)s FROM d
"""
LEFT = "SELECT FROM run WHERE status = 'pending' LIMIT 1 FOR UPDATE SKIP LOCKED"


@dataclass(frozen=True)
class RunLimit:
    """Costs of a step in which simulated runners insert, claim and end runs, each after all runners are ready."""

    runners: int
    batch: int
    runs: int
    claims_per_second: float
    ends_per_second: float
    insert_cpu_ms: float  # of PostgreSQL, for each run
    claim_cpu_ms: float
    end_cpu_ms: float
    wal_bytes: float  # for each run, all three
    wal_syncs: float
    short_claims: int  # claims of less than a batch while unlocked runs waited


class SimulatedRunner:
    """The state of a process: claims as a runner does, and keeps the claimed runs until it ends them."""

    def __init__(self, url: str, deployment_id: UUID) -> None:
        settings = Settings.from_env({})
        self.owner = settings.worker
        postgres.connect(url, pool_size=postgres.WORKER_POOL, waits_for_disk=False)
        with postgres.connection() as conn:
            deployment = deployments.resolve_by_id(conn, deployment_id)
        assert deployment is not None
        self._creators = [Creator(deployment, key_id=f"key-{number}") for number in range(KEYS)]
        self._claims = Claims(
            dataclasses.replace(settings, lease_seconds=LEASE_SECONDS, runner_slots=sys.maxsize)
        )
        self._claimed: list[Claimed] = []

    def insert(self, count: int) -> list[UUID]:
        with postgres.driver() as conn:
            return [
                create.insert_alone(conn, self._creators[number % KEYS], request, depth=0).run_id
                for number, request in enumerate(_request() for _ in range(count))
            ]

    def claim(self, notified: Sequence[UUID]) -> tuple[list[UUID], int]:
        """Claim these runs one by one, or the whole backlog if there are none. Returns the ids, and short claims."""
        self._claimed, short = [], 0
        for run_id in notified:
            self._claimed += [run for run, _ in self._claims.claim_notified([run_id])]
        while not notified:
            found = self._claims.claim_backlog(AT_ONCE)
            self._claimed += [run for run, _ in found]
            if len(found) < AT_ONCE:
                if not self._has_waiting():
                    break
                short += 1
        return [run.run_id for run in self._claimed], short

    def _has_waiting(self) -> bool:
        with postgres.driver() as conn:
            return conn.execute(LEFT).fetchone() is not None

    def end(self, batch: int) -> int:
        """End the claimed runs with the checkpoints of a graph of one node. Returns the number of ended runs."""
        ended = 0
        with postgres.driver() as conn:
            for at in range(0, len(self._claimed), batch):
                runs = self._claimed[at : at + batch]
                ends = [_end(run) for run in runs]
                writes = [write for run in runs for write in _writes(run)]
                ended += len(finish.commit(conn, ends, writes, owner=self.owner, to_disk=True)[0])
        return ended


def _request() -> RunRequest:
    return RunRequest(assistant_id=GRAPH, input={"text": "x"}, stream_mode=("updates",), on_completion="keep")


def _end(run: Claimed) -> Finish:
    values = '{"text": "x", "reply": "echo: x"}'
    return Finish(
        run,
        RunStatus.SUCCESS,
        ThreadStatus.IDLE,
        values=values,
        state='{"next": []}',
        end_seq=run.floor + 3,
    )


def _writes(run: Claimed) -> Iterator[Write]:
    """Yield the frames of a run of one node: three checkpoints, and the writes of two tasks."""
    place = {"thread_id": str(run.thread_id), "checkpoint_ns": ""}
    metadata = {"source": "loop", "step": 0, "run_id": str(run.run_id), "graph_id": GRAPH, "parents": {}}
    ids: list[str | None] = [None, *(str(uuid7()) for _ in range(3))]
    for parent, id in pairwise(ids):
        head = {
            "checkpoint_id": id,
            "parent_checkpoint_id": parent,
            "type": "msgpack",
            "blobs": {},
            "new": [],
        }
        yield Write.of(run, {**place, **head, "metadata": metadata}, [bytes(350)])
    for id, channels in ((ids[1], ("text", "branch:to:work")), (ids[2], ("reply",))):
        writes = [(number, channel, "msgpack") for number, channel in enumerate(channels)]
        head = {"checkpoint_id": id, "task_id": str(uuid7()), "task_path": "~__pregel_pull", "writes": writes}
        yield Write.of(run, {**place, **head}, [b"x"] * len(writes))


class Crew:
    """Processes with a simulated runner each. They begin each call together."""

    def __init__(self, count: int, url: str, deployment_id: UUID) -> None:
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload([__name__])  # so that the processes need not import it
        arguments = (context.Barrier(count), url, deployment_id)
        self._pool = ProcessPoolExecutor(count, context, initializer=_prepare, initargs=arguments)

    def each(self, name: str, arguments: Iterable[object]) -> list[Any]:
        """Call this method of each simulated runner, with one of the arguments each. Returns the results."""
        return list(self._pool.map(_call, [(name, argument) for argument in arguments]))

    def close(self) -> None:
        self._pool.shutdown()


_state: list[Any] = []  # of a process of a crew: the barrier, and the simulated runner


def _prepare(barrier: Barrier, url: str, deployment_id: UUID) -> None:
    _state[:] = [barrier, SimulatedRunner(url, deployment_id)]


def _call(step: tuple[str, object]) -> Any:
    barrier, runner = _state
    barrier.wait(WAIT_SECONDS)
    return getattr(runner, step[0])(step[1])


def measure_runs(*, runs: int, runners: Sequence[int]) -> Iterator[RunLimit]:
    """Yield the costs for each number of runners and each batch. Raises TargetError."""
    with EmbeddedServer(embedded.postgres) as server:
        migrations.upgrade(server.url)
        ids = {
            "deployment": uuid7(),
            "revision": uuid7(),
            "assistant": assistants.default_id(GRAPH),
            "graph": GRAPH,
        }
        with psycopg.connect(server.url, autocommit=True) as database:
            database.execute(DEPLOYMENT, ids)
            for count in runners:
                for batch in BATCHES:
                    yield _step(server, database, ids["deployment"], runs // count * count, count, batch)


def _step(
    server: EmbeddedServer,
    database: psycopg.Connection[Any],
    deployment_id: UUID,
    runs: int,
    runners: int,
    batch: int,
) -> RunLimit:
    processes = Processes({"postgres": server.pid})
    before = database.execute(COUNTS).fetchone()
    with closing(Crew(runners, server.url, deployment_id)) as crew:
        _warm_up(crew, runners)
        marks = [_Mark(processes)]
        inserted = crew.each("insert", [runs // runners] * runners)
        marks.append(_Mark(processes))
        claimed = crew.each("claim", inserted if batch == 1 else [[]] * runners)
        marks.append(_Mark(processes))
        ended = sum(crew.each("end", [batch] * runners))
        marks.append(_Mark(processes))
    after = database.execute(COUNTS).fetchone()  # the sessions have ended, and reported their statistics
    assert before is not None
    assert after is not None
    expected = sorted(run_id for ids in inserted for run_id in ids)
    if sorted(run_id for ids, _ in claimed for run_id in ids) != expected or ended != runs:
        raise TargetError(f"of {runs} runs not each was claimed once and ended ({ended})")
    of_insert, of_claim, of_end = (later.since(mark) for mark, later in pairwise(marks))
    executed = runs + WARM_UP * runners
    return RunLimit(
        runners,
        batch,
        runs,
        claims_per_second=runs / of_claim[0],
        ends_per_second=runs / of_end[0],
        insert_cpu_ms=of_insert[1] / runs * 1e3,
        claim_cpu_ms=of_claim[1] / runs * 1e3,
        end_cpu_ms=of_end[1] / runs * 1e3,
        wal_bytes=(after[0] - before[0]) / executed,
        wal_syncs=(after[3] - before[3]) / executed,
        short_claims=sum(short for _, short in claimed),
    )


def _warm_up(crew: Crew, runners: int) -> None:
    """Execute each statement in each session, which is much slower for the first time."""
    inserted = crew.each("insert", [WARM_UP] * runners)
    crew.each("claim", inserted)
    crew.each("end", [1] * runners)
    crew.each("claim", [[]] * runners)


class _Mark:
    """A moment between two parts of a step: the time, and PostgreSQL's CPU seconds so far."""

    def __init__(self, processes: Processes) -> None:
        self._at, self._cpu = time.monotonic(), processes.cpu_seconds()["postgres"]

    def since(self, earlier: _Mark) -> tuple[float, float]:
        return self._at - earlier._at, self._cpu - earlier._cpu
