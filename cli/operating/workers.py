"""`runyard workers`: show worker processes with their load and the waiting runs; drain and resume workers."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Annotated, Any
from urllib.parse import quote

import typer
from rich.console import Group
from rich.live import Live
from rich.text import Text
from typer import Option

from cli.client.client import Client
from cli.client.names import version
from cli.commands import Service, command, new_app
from cli.errors import BadUsage, CommandFailed, TimedOut
from cli.output import Column, Output, console, duration, printable, table

WATCH_SECONDS = 2.0
STATE_STYLES = {"silent": "bold red", "draining": "yellow"}
ISOLATION = {0: "none", 1: "other user", 2: "sandbox"}

READY, DRAINING = "ready", "draining"

app = new_app()

Watch = Annotated[bool, typer.Option("--watch", help="Refresh every two seconds until Ctrl-C.")]
Worker = Annotated[
    str | None,
    typer.Argument(
        help="Worker: HOST, HOST:PID, or the id that --json prints. HOST alone stands for all workers of that machine."
        " Default: the only runner.",
        metavar="WORKER",
    ),
]


@app.callback(invoke_without_command=True, no_args_is_help=False)
@command
def show(service: Service, out: Output, context: typer.Context, watch: Watch = False) -> None:
    """Show pools, runners, builders and graph hosts; drain and resume workers.

    A key sees the graph hosts of its organization's deployments; an operator's key sees all graph hosts.
    """
    if context.invoked_subcommand is not None:
        return
    with service.open() as client:
        if not watch:
            answer = read(client)
            out.show(answer, lambda: draw(answer))
        elif out.as_json:
            out.repeat(lambda: read(client), WATCH_SECONDS)
        else:
            with Live(draw(read(client)), console=console(), auto_refresh=False) as live:
                while True:
                    time.sleep(WATCH_SECONDS)
                    live.update(draw(read(client)), refresh=True)


@app.command("drain")
@command
def drain(
    client: Client,
    out: Output,
    worker: Worker = None,
    wait: float = Option(
        0, min=0, help="Seconds to wait until its runs have ended; then exit 3.", metavar="SECONDS"
    ),
) -> None:
    """Drain a worker: it takes no new runs or builds, and finishes those that it has.

    Other runners of the pool take the runs that wait. The worker stays drained until `runyard workers resume` or until
    its process ends: a worker that starts is ready. It notices within five seconds. Needs an operator's key.
    """
    rows = _change(client, worker, "drain")
    if wait:
        _wait_until_idle(client, rows, wait)
    _print_changed(_read_again(client, rows), DRAINING, out)
    for pool in [] if out.as_json else read(client)["pools"]:
        if pool["runners"] and pool["runners"] == pool["draining"]:
            typer.echo(
                f"No other runner serves the pool {pool['name']}: its new runs wait until one is resumed or started.",
                err=True,
            )


@app.command("resume")
@command
def resume(client: Client, out: Output, worker: Worker = None) -> None:
    """End the drain of a worker: it takes new runs or builds again. Needs an operator's key."""
    rows = _change(client, worker, "resume")
    _print_changed(_read_again(client, rows), READY, out)


def _change(client: Client, worker: str | None, action: str) -> list[dict[str, Any]]:
    """Drain or resume the selected workers. Returns their rows from before the change. Raises CommandFailed."""
    rows = _select(read(client)["workers"], worker)
    for row in rows:
        client.send("POST", f"/v2/workers/{quote(row['id'], safe='')}/{action}", repeat=True)
    return rows


def _select(rows: Sequence[dict[str, Any]], worker: str | None) -> list[dict[str, Any]]:
    """Return the workers whose id is `worker`, or begins with it followed by a colon.

    Without `worker`, return the only runner. Raises CommandFailed if none matches, and BadUsage if there are several
    runners.
    """
    if worker is None:
        selected = [row for row in rows if row["kind"] == "runner"]
        if len(selected) > 1:
            names = ", ".join(sorted(f"{row['host_name']}:{row['pid']}" for row in selected))
            raise BadUsage(f"There are {len(selected)} runners; choose one: {printable(names)}.")
    else:
        selected = [row for row in rows if f"{row['id']}:".startswith(f"{worker}:")]
    if not selected:
        raise CommandFailed(f"There is no worker {worker or ''}".rstrip() + ". `runyard workers` lists them.")
    return selected


def _read_again(client: Client, rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the current rows of these workers, without workers whose process has ended."""
    ids = {row["id"] for row in rows}
    return [row for row in read(client)["workers"] if row["id"] in ids]


def _wait_until_idle(client: Client, rows: Sequence[Mapping[str, Any]], seconds: float) -> None:
    """Wait until these workers execute nothing. Raises TimedOut after `seconds`.

    A worker learns of its drain with its next heartbeat, and may claim work until then. Only its second heartbeat
    after the request therefore proves that it is idle.
    """
    give_up_at = time.monotonic() + seconds
    silent: dict[str, float] = {}
    heartbeats: Counter[str] = Counter()  # by worker, including the last one before the request
    while True:
        current = _read_again(client, rows)
        for row in current:
            heartbeats[row["id"]] += row["silent_seconds"] < silent.get(row["id"], math.inf)
            silent[row["id"]] = row["silent_seconds"]
        busy = [row for row in current if row["running"] or heartbeats[row["id"]] <= 2]
        if not busy:
            return
        if time.monotonic() > give_up_at:
            names = ", ".join(f"{row['host_name']}:{row['pid']} ({_unfinished(row)})" for row in busy)
            raise TimedOut(printable(f"Not idle after {seconds:g} s: {names}. The drain continues."))
        time.sleep(WATCH_SECONDS)


def _unfinished(row: Mapping[str, Any]) -> str:
    """Return the reason why a worker is not known to be idle."""
    return f"{row['running']} running" if row["running"] else "has not confirmed the drain yet"


def _print_changed(rows: Sequence[Mapping[str, Any]], state: str, out: Output) -> None:
    if out.as_json:
        fields = ("id", "state", "running")
        out.done("", [{field: row[field] for field in fields} for row in rows])
        return
    for row in rows:
        busy = f", {row['running']} running" if state == DRAINING else ""
        typer.echo(printable(f"{row['kind']} {row['host_name']}:{row['pid']}: {row['state']}{busy}"))


def read(client: Client) -> dict[str, Any]:
    """Return the workers, pools and builders. Raises CommandFailed."""
    return client.get("/v2/workers")


def draw(answer: Mapping[str, Any]) -> Group:
    """Return the tables of one refresh."""
    parts: list[Any] = [table(answer["pools"], POOLS), Text()]
    if answer["workers"]:
        parts.append(table(answer["workers"], WORKERS))
    else:
        parts.append(Text("No worker runs: nothing is built, and no run starts.", style="bold red"))
    hosts = [host | {"worker": worker} for worker in answer["workers"] for host in worker["hosts"]]
    if hosts:
        parts += [Text(), table(hosts, HOSTS)]
    return Group(*parts)


def _runners(pool: Mapping[str, Any]) -> Text:
    is_stuck = pool["pending"] and pool["runners"] == pool["draining"]
    silent = pool.get("silent", 0)  # older services do not return it
    text = f"{pool['runners']} + {silent} silent" if silent else str(pool["runners"])
    return Text(text, style="bold red" if is_stuck else "")


def _state(worker: Mapping[str, Any]) -> Text:
    state = worker["state"]
    text = f"silent for {duration(worker['silent_seconds'])}" if state == "silent" else state
    return Text(text, style=STATE_STYLES.get(state, "green"))


POOLS = (
    Column("Pool", lambda pool: pool["name"], no_wrap=True),
    Column("runners", _runners),
    Column("running", lambda pool: pool["running"]),
    Column("slots", lambda pool: pool["slots"]),
    Column("waiting", lambda pool: pool["pending"]),
    Column("oldest wait", lambda pool: duration(pool["oldest_wait_seconds"]) if pool["pending"] else None),
    Column("ended/min", lambda pool: pool["ended_a_minute"]),
    Column("hosts", lambda pool: pool["hosts"]),
)
WORKERS = (
    Column("Worker", lambda worker: worker["kind"], no_wrap=True),
    Column("Pool", lambda worker: worker["pool"] or None),
    Column("State", _state),
    Column("running", lambda worker: worker["running"]),
    Column("slots", lambda worker: worker["slots"]),
    Column("hosts", lambda worker: worker["host_count"]),
    Column("Isolation", lambda worker: ISOLATION.get(worker["isolation"], worker["isolation"])),
    Column("Version", lambda worker: worker["version"]),
    Column("Host", lambda worker: worker["host_name"]),
    Column("pid", lambda worker: worker["pid"]),
)
HOSTS = (
    Column("Graph host of", lambda host: host["deployment"], no_wrap=True),
    Column("revision", lambda host: version(host["revision_number"])),
    Column("runs", lambda host: host["runs"]),
    Column("memory", lambda host: f"{host['memory_mb']}/{host['memory_limit_mb']} MiB"),
    Column("age", lambda host: duration(host["age_seconds"])),
    Column("idle", lambda host: None if host["runs"] else duration(host["idle_seconds"])),
    Column("State", lambda host: "answers" if host["is_healthy"] else Text("blocked", style="bold red")),
    Column("Host", lambda host: host["worker"]["host_name"]),
    Column("pid", lambda host: host["pid"]),
)
