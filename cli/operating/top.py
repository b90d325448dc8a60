"""`runyard top`: show pools, deployments and running runs live in a terminal."""

from __future__ import annotations

import select
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

import typer
from rich.console import Group
from rich.live import Live
from rich.text import Text
from typer import Option

from cli.client.client import Client
from cli.client.names import address_in, served_at, version
from cli.commands import command
from cli.errors import CommandFailed
from cli.operating import workers
from cli.output import Column, Output, console, duration, table

LOOK_SECONDS = 2.0
QUIT = ("q", "Q", "\x03", "\x04")
BUSIEST, RUNS_OF_EACH = 5, 10  # deployments whose runs are listed, and runs listed of each


@command
def top(
    client: Client, out: Output, once: bool = Option(False, "--once", help="Print once and exit.")
) -> None:
    """Show running and waiting runs of pools and deployments, live; `q` exits.

    The figures of deployments cover the last hour. Without a terminal, each refresh is printed below the one before.
    """
    if once:
        answer = read(client)
        out.show(answer, lambda: draw(answer))
    elif out.as_json:
        out.repeat(lambda: read(client), LOOK_SECONDS)
    elif console().is_terminal and sys.stdin.isatty():
        _live(client)
    else:
        while True:
            console().print(draw(read(client)))
            time.sleep(LOOK_SECONDS)
            typer.echo()


def _live(client: Client) -> None:
    with (
        keys() as pressed,
        Live(draw(read(client)), console=console(), auto_refresh=False, screen=True) as live,
    ):
        while pressed(LOOK_SECONDS) not in QUIT:
            live.update(draw(read(client)), refresh=True)


@contextmanager
def keys() -> Iterator[Any]:
    """Read the terminal key by key.

    Yields a function that waits up to a number of seconds for a key. It returns the key, or "" after the timeout.
    """
    import termios  # does not exist on Windows, and only this function needs it
    import tty

    before = termios.tcgetattr(sys.stdin)
    try:
        tty.setcbreak(sys.stdin)
        yield lambda seconds: sys.stdin.read(1) if select.select([sys.stdin], [], [], seconds)[0] else ""
    finally:
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)


def read(client: Client) -> dict[str, Any]:
    """Return the pools, deployments and running runs to show. Raises CommandFailed."""
    deployments = client.get("/v2/metrics/overview", {"window": "hour"})["deployments"]
    running = (each for each in deployments if each["running"])
    busiest = sorted(running, key=lambda each: -each["running"])[:BUSIEST]
    return {
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "pools": client.get("/v2/workers")["pools"],
        "deployments": deployments,
        "runs": [run for each in busiest for run in _running_runs(client, each)],
    }


def _running_runs(client: Client, deployment: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return running runs of a deployment, at most RUNS_OF_EACH; an empty list if its API refuses.

    A deployment that is being deleted meanwhile must not end the command.
    """
    try:
        record = client.deployment(deployment["id"])
        address = served_at(client.url, record["name"], address_in(record))
        with client.at(address) as at:
            query = {"status": ["running"], "limit": RUNS_OF_EACH}
            runs = at.send("POST", "/runs/search", query, repeat=True)
    except CommandFailed:
        return []
    return [
        {
            "deployment": deployment["name"],
            "run_id": run["run_id"],
            "thread_id": run["thread_id"],
            "started_at": run["started_at"],
            "attempt": run.get("attempt"),
        }
        for run in runs
    ]


def draw(answer: Mapping[str, Any], now: datetime | None = None) -> Group:
    """Return the tables of one refresh."""
    now = now or datetime.now(UTC)
    parts: list[Any] = [table(answer["pools"], workers.POOLS), Text()]
    if answer["deployments"]:
        rows = sorted(answer["deployments"], key=lambda row: (-row["running"] - row["waiting"], row["name"]))
        parts.append(table(rows, DEPLOYMENTS))
    else:
        parts.append(Text("There are no deployments. `runyard deploy` makes one."))
    if answer["runs"]:
        rows = sorted(answer["runs"], key=lambda row: row["started_at"] or "")
        parts += [Text(), table([{**row, "seconds": _age(row, now)} for row in rows], RUNS)]
    return Group(*parts)


def _age(run: Mapping[str, Any], now: datetime) -> float:
    started_at = datetime.fromisoformat(run["started_at"]) if run["started_at"] else now
    return max((now - started_at).total_seconds(), 0)


def seconds(value: float | None) -> str | None:
    """Return a duration such as `0.35 s` or `12 s`; None for None."""
    if value is None:
        return None
    return f"{value:.2f} s" if value < 10 else duration(value)


def _failed(row: Mapping[str, Any]) -> Text:
    return Text(str(row["failed"]), style="red" if row["failed"] else "")


DEPLOYMENTS = (
    Column("Deployment", lambda row: row["name"], no_wrap=True),
    Column("Pool", lambda row: row["pool"]),
    Column("revision", lambda row: version(row["revision_number"])),
    Column("running", lambda row: row["running"]),
    Column("waiting", lambda row: row["waiting"]),
    Column("oldest wait", lambda row: duration(row["oldest_wait_seconds"]) if row["waiting"] else None),
    Column("runs/min", lambda row: f"{row['runs_a_minute']:.1f}"),
    Column("failed", _failed),
    Column("p50", lambda row: seconds(row["duration_p50"])),
    Column("p95", lambda row: seconds(row["duration_p95"])),
)
RUNS = (
    Column("Run", lambda run: run["run_id"], no_wrap=True),
    Column("Deployment", lambda run: run["deployment"]),
    Column("Thread", lambda run: run["thread_id"]),
    Column("for", lambda run: duration(run["seconds"])),
    Column("attempt", lambda run: run["attempt"] or None),
)
