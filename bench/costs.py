"""Measure what runs, events, streams and connections cost, in CPU time and bytes, on a platform started for it.

CPU time is the kernel's count for the processes of each part, so other work on the machine changes it little.
"""

from __future__ import annotations

import asyncio
import os
import resource
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import psycopg
from redis import Redis

from bench.capacity import PARTS, Costs
from bench.client import Reply
from bench.server import Server
from bench.targets import Call
from cli.machine import embedded

GRAPHS = Path(__file__).parent / "graphs"
START_SECONDS, STOP_SECONDS = 120.0, 30.0
CLIENTS = 8
TOKENS, TOKEN_STREAMS, INTERVAL_SECONDS = 1_000, 40, 0.02  # a model's pace: 50 tokens per second
IDLE_SECONDS = 20.0  # long enough for several heartbeats and polls of the tables
BACKGROUND_SECONDS = 10.0
AFTER_LOAD_SECONDS = 70.0  # contains a round of autovacuum, which begins once a minute
SETTLE_SECONDS = 2.0  # PostgreSQL's processes report their statistics once a second
WRITERS, WRITE_SECONDS = 8, 2.0
MARKS = {
    "web": "web/gunicorn.py",
    "runner": "runner@",
    "postgres": "bin/postgres -D",
    "redis": "valkey-server",
}

COUNTS = """
SELECT pg_wal_lsn_diff(pg_current_wal_insert_lsn(), '0/0')::float AS wal, pg_database_size(current_database())::float AS disk,
    (SELECT sum(xact_commit + xact_rollback) FROM pg_stat_database)::float AS transactions,
    (SELECT sum(fsyncs) FROM pg_stat_io WHERE object = 'wal')::float AS syncs
"""


@dataclass(frozen=True)
class Reading:
    """Snapshot of all counters."""

    cpu: Mapping[str, float]
    wal: float
    disk: float
    transactions: float
    syncs: float
    redis_bytes: float
    publishes: float


class Platform:
    """`runyard up` with `bench/graphs` deployed, and its data in `folder`."""

    def __init__(self, folder: Path) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        self.folder, self.url = folder, f"http://127.0.0.1:{port}"
        own = ("RUNYARD_", "DATABASE_", "REDIS_")
        kept = {name: value for name, value in os.environ.items() if not name.startswith(own)}
        cache = os.environ.get("RUNYARD_CACHE_DIR", str(Path(".runyard/cache").absolute()))
        given = {"RUNYARD_DATA_DIR": str(folder), "RUNYARD_PORT": str(port), "RUNYARD_CACHE_DIR": cache}
        self.environment = {**kept, **given, "RUNYARD_URL": self.url}
        self._up: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start the platform, and deploy unless the folder already has a deployment. Raises RuntimeError."""
        with (self.folder / "up.log").open("wb") as log:
            command = [sys.executable, "-m", "cli", "up"]
            self._up = subprocess.Popen(
                command, env=self.environment, stdout=log, stderr=log, start_new_session=True
            )
        ends_at = time.monotonic() + START_SECONDS
        while b"API docs" not in (self.folder / "up.log").read_bytes():
            if self._up.poll() is not None or time.monotonic() > ends_at:
                raise RuntimeError(f"runyard up: {(self.folder / 'up.log').read_text()[-500:]}")
            time.sleep(0.2)
        deployed = self.folder / "deployed"
        if deployed.exists():  # another revision would keep another host in memory
            return
        deploy = [sys.executable, "-m", "cli", "deploy", str(GRAPHS), "--name", "bench"]
        done = subprocess.run(deploy, env=self.environment, capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(f"runyard deploy: {done.stdout[-500:]}{done.stderr[-500:]}")
        deployed.touch()

    def stop(self) -> None:
        if self._up is None:
            return
        self._up.send_signal(signal.SIGINT)
        try:
            self._up.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._up.kill()
            self._up.wait()

    def server(self) -> Server:
        key = (self.folder / "admin.key").read_text().strip()
        return Server(f"{self.url}/d/bench", {"x-api-key": key})

    def processes(self) -> dict[str, list[psutil.Process]]:
        """Return the processes of each part. The children of a runner are its hosts."""
        assert self._up is not None
        found: dict[str, list[psutil.Process]] = {part: [] for part in PARTS}
        self._sort(psutil.Process(self._up.pid), "", found)
        return found

    def _sort(self, parent: psutil.Process, part: str, found: dict[str, list[psutil.Process]]) -> None:
        for child in parent.children():
            try:
                line = " ".join(child.cmdline())
                marked = next((name for name, mark in MARKS.items() if mark in line), "")
                own = part or marked
                if part == "runner" and marked != "runner":
                    own = "hosts"
                if own:
                    found[own].append(child)
                self._sort(child, own, found)
            except psutil.NoSuchProcess:
                continue

    def database(self) -> psycopg.Connection[Any]:
        return psycopg.connect(embedded.postgres_url(self.folder), autocommit=True)

    def redis(self) -> Redis:
        return Redis.from_url(embedded.valkey(self.folder).url)


class Meter:
    """Reads the counters of a platform."""

    def __init__(self, platform: Platform) -> None:
        self._platform = platform
        self._database = platform.database()
        self._redis = platform.redis()

    def close(self) -> None:
        self._database.close()
        self._redis.close()

    def read(self) -> Reading:
        time.sleep(SETTLE_SECONDS)
        row = self._database.execute(COUNTS).fetchone()  # type: ignore[arg-type]
        assert row is not None
        memory: Any = self._redis.info("memory")
        calls: Any = self._redis.info("commandstats")
        return Reading(
            self.cpu(),
            *map(float, row),
            redis_bytes=float(memory["used_memory_dataset"]),
            publishes=float(calls.get("cmdstat_publish", {}).get("calls", 0)),
        )

    def cpu(self) -> dict[str, float]:
        """Return CPU seconds by part, including ended children."""
        return {part: sum(map(_cpu, own)) for part, own in self._platform.processes().items()}

    def memory(self) -> dict[str, float]:
        """Return proportional set size in bytes by part: pages shared by processes count once."""
        return {part: float(sum(map(_memory, own))) for part, own in self._platform.processes().items()}


def _cpu(process: psutil.Process) -> float:
    try:
        times = process.cpu_times()
    except psutil.NoSuchProcess:
        return 0.0
    return times.user + times.system + times.children_user + times.children_system


def _memory(process: psutil.Process) -> int:
    try:
        return process.memory_full_info().pss
    except psutil.NoSuchProcess:
        return 0


@contextmanager
def _started() -> Iterator[Platform]:
    with tempfile.TemporaryDirectory(prefix="runyard-capacity-") as folder:
        platform = Platform(Path(folder))
        try:
            platform.start()
            yield platform
        finally:
            platform.stop()


def measure(*, runs: int, watched: int) -> Costs:
    """Start a platform, measure its costs and stop it. Raises RuntimeError."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    with _started() as platform:
        meter = Meter(platform)
        try:
            return asyncio.run(_measure(platform, meter, runs, watched))
        finally:
            meter.close()


async def _measure(platform: Platform, meter: Meter, runs: int, watched: int) -> Costs:
    server = platform.server()
    await _echo(server, runs // 10)  # warm-up: excludes one-time setup from the measurement
    background = await _background(meter, BACKGROUND_SECONDS)

    before = meter.read()
    began = time.monotonic()
    await _echo(server, runs)
    after = meter.read()
    of_runs = _without(_less(after.cpu, before.cpu, 1.0), background, time.monotonic() - began)

    began = time.monotonic()
    await _tokens(server)
    streamed = meter.read()
    of_tokens = _without(_less(streamed.cpu, after.cpu, 1.0), background, time.monotonic() - began)
    events = TOKENS * TOKEN_STREAMS
    share = TOKEN_STREAMS / runs

    memory = meter.memory()
    after_load = await _background(meter, AFTER_LOAD_SECONDS)
    open_streams = await _watch(server, watched)
    opened, during = meter.cpu(), meter.memory()
    await asyncio.sleep(IDLE_SECONDS)
    watching = _without(_less(meter.cpu(), opened, 1.0), after_load, IDLE_SECONDS)
    await _close(open_streams)
    await server.aclose()
    processes = platform.processes()
    return Costs(
        run_cpu_ms={part: round(used / runs * 1e3, 3) for part, used in of_runs.items()},
        event_cpu_us={
            part: round(max(used - of_runs[part] * share, 0.0) / events * 1e6, 1)
            for part, used in of_tokens.items()
        },
        stream_cpu_us={
            part: round(watching[part] / watched / IDLE_SECONDS * 1e6, 1)
            for part in ("web", "postgres", "redis")
        },
        stream_bytes=round((during["web"] - memory["web"]) / watched),
        process_bytes={
            "web": round(memory["web"]),
            "runner": round(memory["runner"]),
            "hosts": round(memory["hosts"] / max(len(_hosts(processes)), 1)),
        },
        connection_bytes=round(memory["postgres"] / max(len(processes["postgres"]), 1)),
        run_transactions=round((after.transactions - before.transactions) / runs, 2),
        run_wal_syncs=round((after.syncs - before.syncs) / runs, 2),
        run_wal_bytes=round((after.wal - before.wal) / runs),
        run_disk_bytes=round((after.disk - before.disk) / runs),
        run_redis_bytes=round((after.redis_bytes - before.redis_bytes) / runs),
        event_redis_bytes=round((streamed.redis_bytes - after.redis_bytes) / events),
        run_publishes=round((after.publishes - before.publishes) / runs, 2),
        event_publishes=round(
            max(streamed.publishes - after.publishes - (after.publishes - before.publishes) * share, 0)
            / events,
            3,
        ),
        commits_per_second=round(_commits_per_second(platform)),
    )


def _hosts(processes: Mapping[str, list[psutil.Process]]) -> list[psutil.Process]:
    """Return the children of runners that execute graphs, without the sandbox processes around them."""
    return [process for process in processes["hosts"] if "graph_host" in " ".join(process.cmdline()[-2:])]


async def _background(meter: Meter, seconds: float) -> dict[str, float]:
    """Return the CPU time that the platform uses in a second without requests, as the mean over a period."""
    before = meter.read()
    await asyncio.sleep(seconds)
    used = _less(meter.read().cpu, before.cpu, 1.0)
    return {part: value / (seconds + SETTLE_SECONDS) for part, value in used.items()}


def _less(after: Mapping[str, float], before: Mapping[str, float], by: float) -> dict[str, float]:
    return {part: (after[part] - before[part]) / by for part in PARTS}


def _without(used: Mapping[str, float], background: Mapping[str, float], seconds: float) -> dict[str, float]:
    """Subtract the CPU time that an idle platform uses in the same period."""
    return {part: max(value - background[part] * seconds, 0.0) for part, value in used.items()}


async def _echo(server: Server, runs: int) -> None:
    """Execute streamed runs, each on a new thread."""
    left = iter(range(runs))
    why: Counter[str] = Counter()

    async def client() -> None:
        for _ in left:
            thread = await server.create_thread()
            call = Call("echo", {"text": "x"}, stream_mode="updates", thread_id=thread, proof="echo: x")
            why[(await server.run(call, timeout_seconds=60)).error] += 1

    await asyncio.gather(*(client() for _ in range(CLIENTS)))
    _check(why)


async def _tokens(server: Server) -> None:
    """Execute concurrent runs that emit tokens at the pace of a model."""
    given = {"count": TOKENS, "interval_seconds": INTERVAL_SECONDS}
    threads = [await server.create_thread() for _ in range(TOKEN_STREAMS)]
    calls = [Call("tokens", given, stream_mode="custom", thread_id=thread) for thread in threads]
    replies = await asyncio.gather(*(server.run(call, timeout_seconds=60) for call in calls))
    _check(Counter(reply.error for reply in replies))


def _check(why: Counter[str]) -> None:
    failed = [error for error in why if error]
    if failed:
        raise RuntimeError(f"runs failed: {failed[0]}")


async def _watch(server: Server, count: int) -> list[asyncio.Task[None]]:
    """Open `count` streams of threads without activity and return their tasks."""
    tasks: list[asyncio.Task[None]] = []
    left = iter(range(count))

    async def opener() -> None:
        for _ in left:
            reply = Reply()
            tasks.append(asyncio.create_task(server.watch(await server.create_thread(), reply)))
            while not reply.status and not reply.error:
                await asyncio.sleep(0.02)
            if reply.status != 200:
                raise RuntimeError(f"a stream was refused: {reply.error or reply.status}")

    await asyncio.gather(*(opener() for _ in range(CLIENTS)))
    return tasks


async def _close(tasks: list[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def _commits_per_second(platform: Platform) -> float:
    """Return the rate of small transactions with several concurrent writers, each waiting for the disk."""
    counts = [0] * WRITERS
    with platform.database() as conn:
        conn.execute("CREATE TABLE capacity (number int)")
    ends_at = time.monotonic() + WRITE_SECONDS

    def write(at: int) -> None:
        with platform.database() as conn:
            while time.monotonic() < ends_at:
                conn.execute("INSERT INTO capacity VALUES (1)")
                counts[at] += 1

    writers = [threading.Thread(target=write, args=(at,)) for at in range(WRITERS)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    return sum(counts) / WRITE_SECONDS
