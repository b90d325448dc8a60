"""`python -m bench last`: check that resource use stays flat however many runs a service has executed.

A dedicated platform executes runs whose data is removed again: temporary runs, threads with a short TTL, and
conversations that continue indefinitely and are pruned. Each step executes some runs and appends a row of figures
to the folder, so a million runs can be split into many steps over several days. Steps are compared once the
platform removes as much as it adds.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import signal
import statistics
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import psycopg

from bench.server import Server
from bench.targets import Call

CLIENTS = 8
STEP_SECONDS = 400.0
GONE_SECONDS = 180.0  # deadline for the removal of expired data; upkeep removes it once a minute
CONVERSATIONS = 1_000
RUNS_OF_A_THREAD = 5
TTL_MINUTES = 0.25
RETENTION_DAYS = 0.5 / 1440
LOG_LINES = 2_000
FLAT = 0.1
TABLES = (
    "run",
    "thread",
    "checkpoint",
    "checkpoint_blob",
    "checkpoint_write",
    "ended_run",
    "figure",
    "log_line",
    "webhook_delivery",
    "idempotent_answer",
)

SIZES = """
SELECT relname AS name, n_dead_tup AS dead, n_tup_upd AS updates, n_tup_hot_upd AS hot_updates, autovacuum_count AS vacuums,
    pg_table_size(relid) AS bytes, pg_indexes_size(relid) AS index_bytes
FROM pg_stat_user_tables WHERE relname = ANY(%s)
"""
INDEXES = """
SELECT indexrelname, pg_relation_size(indexrelid) FROM pg_stat_user_indexes WHERE relname = 'run'
"""
LEFT = """
SELECT (SELECT count(*) FROM thread), (SELECT count(*) FROM run), (SELECT count(*) FROM ended_run)
"""
RESET = "ALTER TABLE {} RESET ({})"
SET_OF = "SELECT relname, reloptions FROM pg_class WHERE relkind = 'r' AND reloptions IS NOT NULL"

Row = dict[str, Any]


class Load:
    """Executes runs of three kinds with several clients, and records their durations."""

    def __init__(self, server: Server, conversations: list[str], runs: int, first: int) -> None:
        self._server, self._conversations = server, conversations
        self._left = iter(range(first, first + runs))
        self.seconds: list[float] = []
        self.failures: Counter[str] = Counter()

    async def run(self, ends_at: float) -> None:
        await asyncio.gather(*(self._client(ends_at) for _ in range(CLIENTS)))

    async def _client(self, ends_at: float) -> None:
        own, left = "", 0
        for number in self._left:
            if time.monotonic() > ends_at:
                return
            kind = number % 10
            if kind < 4:
                thread = None
            elif kind < 8:
                if not left:
                    own, left = await _thread(self._server, "delete"), RUNS_OF_A_THREAD
                thread, left = own, left - 1
            else:
                thread = self._conversations[number // 10 % len(self._conversations)]
            call = Call("echo", {"text": "x"}, thread_id=thread, proof="echo: x")
            reply = await self._server.run(call, timeout_seconds=60)
            if reply.error:
                self.failures[reply.error] += 1
            else:
                self.seconds.append(reply.seconds)


async def _thread(server: Server, strategy: str) -> str:
    reply = await server.post("/threads", {"ttl": {"ttl": TTL_MINUTES, "strategy": strategy}})
    if reply.error or reply.status != 200:
        raise RuntimeError(f"POST /threads: {reply.error or reply.status}")
    return json.loads(reply.body)["thread_id"]


async def _conversations(server: Server, file: Path, count: int) -> list[str]:
    """Return the conversations of earlier steps, or create new ones."""
    with suppress(FileNotFoundError):
        return json.loads(file.read_text())
    made: list[str] = []
    while len(made) < count:
        made += await asyncio.gather(*(_thread(server, "keep_latest") for _ in range(min(CLIENTS, count))))
    file.write_text(json.dumps(made))
    return made


def _tables(database: psycopg.Connection[Any]) -> dict[str, Row]:
    found: dict[str, Row] = {}
    names = ("dead", "updates", "hot_updates", "vacuums", "bytes", "index_bytes")
    for name, *numbers in database.execute(SIZES, [list(TABLES)]).fetchall():
        found[name] = dict(zip(names, map(int, numbers), strict=True))
        counted = database.execute(f"SELECT count(*) FROM {name}").fetchone()  # type: ignore[call-overload]
        found[name]["rows"] = int(counted[0])
    return found


async def _gone(database: psycopg.Connection[Any], conversations: int) -> None:
    """Wait until only the conversations remain. After `GONE_SECONDS`, return anyway: the figures show what is left."""
    ends_at = time.monotonic() + GONE_SECONDS
    while time.monotonic() < ends_at:
        left = database.execute(LEFT).fetchone()
        if left is not None and left[0] <= conversations and left[1:] == (0, 0):
            return
        await asyncio.sleep(1)


def _untune(database: psycopg.Connection[Any]) -> None:
    """Reset every table to PostgreSQL's default settings, to measure what the tuned settings are worth."""
    for name, options in database.execute(SET_OF).fetchall():  # type: ignore[call-overload]
        set_ = ", ".join(option.partition("=")[0] for option in options)
        database.execute(RESET.format(name, set_))  # type: ignore[call-overload]


def step(folder: Path, *, runs: int, seconds: float, untuned: bool = False) -> Row:
    """Start the folder's platform, execute runs on it and append the resulting figures. Raises RuntimeError."""
    from bench.costs import Meter, Platform  # imported here: only `step` needs psutil and Redis

    folder.mkdir(parents=True, exist_ok=True)
    platform = Platform(folder)
    platform.environment |= {
        "RUNYARD_RUN_RETENTION_DAYS": str(RETENTION_DAYS),
        "RUNYARD_MAX_LOG_LINES": str(LOG_LINES),
    }
    first = sum(row["runs"] for row in rows_of(folder))
    try:
        platform.start()
        meter = Meter(platform)
        with platform.database() as database:
            if untuned:
                _untune(database)
            row = asyncio.run(_loaded(platform.server(), meter, database, folder, runs, first, seconds))
        meter.close()
    finally:
        platform.stop()
    with (folder / "steps.jsonl").open("a") as file:
        print(json.dumps(row), file=file)
    return row


async def _loaded(
    server: Server,
    meter: Any,
    database: psycopg.Connection[Any],
    folder: Path,
    runs: int,
    first: int,
    seconds: float,
) -> Row:
    conversations = await _conversations(server, folder / "conversations.json", min(CONVERSATIONS, runs))
    before, cpu, began = _tables(database), meter.cpu(), time.monotonic()
    load = Load(server, conversations, runs, first)
    await load.run(began + seconds)
    took = time.monotonic() - began
    used = meter.cpu()
    done = len(load.seconds)
    await server.aclose()
    if done < 10 or sum(load.failures.values()) > done / 100:
        raise RuntimeError(f"of {done} runs failed {dict(load.failures)}")
    await _gone(database, len(conversations))
    meter.read()  # waits until PostgreSQL's processes have reported their statistics
    after = _tables(database)
    for name, table in after.items():
        for counter in ("updates", "hot_updates", "vacuums"):
            table[counter] -= before[name][counter]
    return {
        "runs": done,
        "failed": dict(load.failures),
        "seconds": round(took, 1),
        "p50_ms": round(statistics.median(load.seconds) * 1e3, 2),
        "p95_ms": round(statistics.quantiles(load.seconds, n=20)[-1] * 1e3, 2),
        "cpu_ms": {part: round((used[part] - cpu[part]) / done * 1e3, 3) for part in used},
        "memory": meter.memory(),
        "tables": after,
        "indexes_of_run": {name: int(size) for name, size in database.execute(INDEXES).fetchall()},
    }


def rows_of(folder: Path) -> list[Row]:
    """Return the recorded steps."""
    try:
        return [json.loads(line) for line in (folder / "steps.jsonl").read_text().splitlines()]
    except FileNotFoundError:
        return []


def figures(row: Mapping[str, Any]) -> dict[str, float]:
    """Return the figures of a step that must stay flat."""
    tables = row["tables"].values()
    return {
        "rows": sum(table["rows"] for table in tables),
        "disk MB": sum(table["bytes"] + table["index_bytes"] for table in tables) / 1e6,
        "memory MB": sum(row["memory"].values()) / 1e6,
        "CPU ms a run": sum(row["cpu_ms"].values()),
        "of PostgreSQL": row["cpu_ms"]["postgres"],
        "p50 ms": row["p50_ms"],
        "p95 ms": row["p95_ms"],
    }


def table(rows: Sequence[Row]) -> str:
    """Render the steps as Markdown, with the drift between the middle and last third. The first third is warm-up."""
    shown = [figures(row) for row in rows]
    names = list(shown[0])
    lines = [f"| runs | {' | '.join(names)} | dead rows |", "|---" * (len(names) + 2) + "|"]
    total = 0
    for row, found in zip(rows, shown, strict=True):
        total += row["runs"]
        dead = sum(one["dead"] for one in row["tables"].values())
        lines.append(f"| {total:,} | {' | '.join(f'{found[name]:,.1f}' for name in names)} | {dead:,} |")
    drifted = drifts(rows)
    if drifted:
        lines.append(f"| drift | {' | '.join(f'{drifted[name]:+.0%}' for name in names)} | |")
    return "\n".join(lines)


def drifts(rows: Sequence[Row]) -> dict[str, float]:
    """Return the relative growth of each figure's median from the middle to the last third; empty below three steps."""
    third = len(rows) // 3
    if not third:
        return {}
    middle, last = [[figures(row) for row in part] for part in (rows[third:-third], rows[-third:])]
    found: dict[str, float] = {}
    for name in last[0]:
        before, after = (statistics.median(one[name] for one in part) for part in (middle, last))
        found[name] = after / before - 1 if before else 0.0
    return found


def parser() -> argparse.ArgumentParser:
    usage = argparse.ArgumentParser(prog="python -m bench last", description=__doc__)
    usage.add_argument("--folder", type=Path, required=True, help="the platform's, kept from step to step")
    usage.add_argument("--steps", type=int, default=1, help="how many now; 0: show those there are")
    usage.add_argument("--runs", type=int, default=20_000, help="runs of a step")
    usage.add_argument(
        "--seconds", type=float, default=STEP_SECONDS, help="a step ends then, whatever it has done"
    )
    usage.add_argument("--untuned", action="store_true", help="with PostgreSQL's own settings of tables")
    return usage


def main(arguments: Sequence[str]) -> int:
    """Return 1 if a figure of the last third is more than 10 % above the middle third, or if a step failed."""
    asked = parser().parse_args(arguments)
    if asked.steps < 0 or asked.runs < 10 or not asked.seconds > 0:
        print("bench: a step has at least 10 runs, and some time for them", file=sys.stderr)
        return 1
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # `step` then stops the platform
    try:
        for _ in range(asked.steps):
            row = step(asked.folder.absolute(), runs=asked.runs, seconds=asked.seconds, untuned=asked.untuned)
            print(json.dumps(figures(row)), flush=True)
        rows = rows_of(asked.folder)
        if not rows:
            raise RuntimeError(f"{asked.folder} has no steps")
    except (OSError, RuntimeError, ValueError) as failure:
        print(f"bench: {failure}", file=sys.stderr)
        return 1
    print(table(rows))
    grown = {name: drift for name, drift in drifts(rows).items() if drift > FLAT}
    return 1 if grown else 0
