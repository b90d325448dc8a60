"""`runyard top`: show pools, deployments and running runs live in a terminal."""

from __future__ import annotations

import json
import select
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Annotated, Any

import typer
from rich.console import Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from cli.api.addresses import address_in, served_at
from cli.api.client import Client
from cli.api.ids import version
from cli.errors import CommandFailed
from cli.operating import workers
from cli.options import Json, Key, Org, Url, open_client, sentences
from cli.output import console, printable

LOOK_SECONDS = 2.0
QUIT = ("q", "Q", "\x03", "\x04")
BUSIEST, RUNS_OF_EACH = 5, 10  # deployments whose runs are listed, and runs listed of each


def command(
    once: Annotated[bool, typer.Option("--once", help="Print once and exit.")] = False,
    as_json: Json = False,
    url: Url = None,
    api_key: Key = None,
    org: Org = None,
) -> None:
    """Show running and waiting runs of pools and deployments, live; `q` exits.

    The figures of deployments cover the last hour. Without a terminal, each refresh is printed below the one before.
    """
    with sentences(as_json=as_json), open_client(url, api_key, org) as client:
        if as_json:
            _print_json(client, once=once)
        elif once or not (console().is_terminal and sys.stdin.isatty()):
            _print(client, once=once)
        else:
            _live(client)


def _print_json(client: Client, *, once: bool) -> None:
    if once:
        typer.echo(json.dumps(ask(client), indent=2))
        return
    while True:
        typer.echo(json.dumps(ask(client)))
        time.sleep(LOOK_SECONDS)


def _print(client: Client, *, once: bool) -> None:
    while True:
        console().print(shown(ask(client)))
        if once:
            return
        time.sleep(LOOK_SECONDS)
        typer.echo()


def _live(client: Client) -> None:
    with (
        keys() as pressed,
        Live(shown(ask(client)), console=console(), auto_refresh=False, screen=True) as live,
    ):
        while pressed(LOOK_SECONDS) not in QUIT:
            live.update(shown(ask(client)), refresh=True)


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


def ask(client: Client) -> dict[str, Any]:
    """Return the pools, deployments and running runs to show. Raises CommandFailed."""
    deployments = client.get("/v2/metrics/overview", {"window": "hour"})["deployments"]
    return {
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "pools": client.get("/v2/workers")["pools"],
        "deployments": deployments,
        "runs": [run for each in _busiest(deployments) for run in _running(client, each)],
    }


def _busiest(deployments: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    running = [each for each in deployments if each["running"]]
    return sorted(running, key=lambda each: -each["running"])[:BUSIEST]


def _running(client: Client, deployment: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return running runs of a deployment, at most RUNS_OF_EACH; an empty list if its API refuses.

    A deployment that is being deleted meanwhile must not end the command.
    """
    try:
        record = client.deployment(deployment["id"])
        address = served_at(client.url, record["name"], address_in(record))
        with client.at(address) as at:
            wanted = {"status": ["running"], "limit": RUNS_OF_EACH}
            found = at.send("POST", "/runs/search", wanted, repeat=True)
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
        for run in found
    ]


def shown(found: Mapping[str, Any], now: datetime | None = None) -> Group:
    """Return the tables of one refresh."""
    now = now or datetime.now(UTC)
    parts: list[Any] = [workers.pools_table(found["pools"]), Text()]
    if found["deployments"]:
        parts.append(_deployments(found["deployments"]))
    else:
        parts.append(Text("There are no deployments. `runyard deploy` makes one."))
    if found["runs"]:
        parts += [Text(), _runs(found["runs"], now)]
    return Group(*parts)


def _deployments(rows: Sequence[Mapping[str, Any]]) -> Table:
    table = workers.plain_table(
        "Deployment",
        "Pool",
        "revision",
        "running",
        "waiting",
        "oldest wait",
        "runs/min",
        "failed",
        "p50",
        "p95",
    )
    for row in sorted(rows, key=lambda row: (-row["running"] - row["waiting"], row["name"])):
        table.add_row(
            Text(printable(row["name"])),
            Text(printable(row["pool"])),
            version(row["revision_number"]) if row["revision_number"] else "-",
            str(row["running"]),
            str(row["waiting"]),
            workers.duration(row["oldest_wait_seconds"]) if row["waiting"] else "-",
            f"{row['runs_a_minute']:.1f}",
            Text(str(row["failed"]), style="red" if row["failed"] else ""),
            seconds(row["duration_p50"]),
            seconds(row["duration_p95"]),
        )
    return table


def _runs(rows: Sequence[Mapping[str, Any]], now: datetime) -> Table:
    table = workers.plain_table("Run", "Deployment", "Thread", "for", "attempt")
    for row in sorted(rows, key=lambda row: row["started_at"] or ""):
        since = datetime.fromisoformat(row["started_at"]) if row["started_at"] else now
        table.add_row(
            printable(row["run_id"]),
            Text(printable(row["deployment"])),
            printable(row["thread_id"]),
            workers.duration(max((now - since).total_seconds(), 0)),
            str(row["attempt"] or "-"),
        )
    return table


def seconds(value: float | None) -> str:
    """Return a duration such as `0.35 s` or `12 s`; a dash for None."""
    if value is None:
        return "-"
    return f"{value:.2f} s" if value < 10 else workers.duration(value)
