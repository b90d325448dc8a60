"""`runyard workers`: show worker processes with their load and the waiting runs; drain and resume workers."""

from __future__ import annotations

import json
import math
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Annotated, Any
from urllib.parse import quote

import typer
from rich.console import Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from cli.api.client import Client
from cli.api.ids import version
from cli.errors import BadUsage, CommandFailed, TimedOut
from cli.options import Json, Key, Org, Url, new_app, open_client, sentences
from cli.output import console, printable

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
        show_default=False,
    ),
]


@app.callback(invoke_without_command=True, no_args_is_help=False)
def show(
    context: typer.Context,
    watch: Watch = False,
    as_json: Json = False,
    url: Url = None,
    api_key: Key = None,
    org: Org = None,
) -> None:
    """Show pools, runners, builders and graph hosts; drain and resume workers.

    A key sees the graph hosts of its organization's deployments; an operator's key sees all graph hosts.
    """
    if context.invoked_subcommand is not None:
        return
    with sentences(as_json=as_json), open_client(url, api_key, org) as client:
        if not watch:
            found = ask(client)
            if as_json:
                typer.echo(json.dumps(found, indent=2))
            else:
                console().print(shown(found))
            return
        if as_json:
            while True:
                typer.echo(json.dumps(ask(client)))
                time.sleep(WATCH_SECONDS)
        with Live(shown(ask(client)), console=console(), auto_refresh=False) as live:
            while True:
                time.sleep(WATCH_SECONDS)
                live.update(shown(ask(client)), refresh=True)


@app.command("drain")
def drain(
    worker: Worker = None,
    wait: Annotated[
        float,
        typer.Option(
            "--wait", min=0, help="Seconds to wait until its runs have ended; then exit 3.", metavar="SECONDS"
        ),
    ] = 0,
    as_json: Json = False,
    url: Url = None,
    api_key: Key = None,
    org: Org = None,
) -> None:
    """Drain a worker: it takes no new runs or builds, and finishes those that it has.

    Other runners of the pool take the runs that wait. The worker stays drained until `runyard workers resume` or until
    its process ends: a worker that starts is ready. It notices within five seconds. Needs an operator's key.
    """
    with sentences(as_json=as_json), open_client(url, api_key, org) as client:
        rows = _change(client, worker, "drain")
        if wait:
            _wait_until_idle(client, rows, wait)
        _print_changed(_again(client, rows), DRAINING, as_json=as_json)
        pools = client.get("/v2/workers")["pools"]
        for pool in pools:
            if not as_json and pool["runners"] and pool["runners"] == pool["draining"]:
                typer.echo(
                    f"No other runner serves the pool {pool['name']}: its new runs wait until one is resumed or started.",
                    err=True,
                )


@app.command("resume")
def resume(
    worker: Worker = None,
    as_json: Json = False,
    url: Url = None,
    api_key: Key = None,
    org: Org = None,
) -> None:
    """End the drain of a worker: it takes new runs or builds again. Needs an operator's key."""
    with sentences(as_json=as_json), open_client(url, api_key, org) as client:
        rows = _change(client, worker, "resume")
        _print_changed(_again(client, rows), READY, as_json=as_json)


def _change(client: Client, worker: str | None, action: str) -> list[dict[str, Any]]:
    """Drain or resume the selected workers. Returns their rows from before the change. Raises CommandFailed."""
    rows = _named(ask(client)["workers"], worker)
    for row in rows:
        client.send("POST", f"/v2/workers/{quote(row['id'], safe='')}/{action}", repeat=True)
    return rows


def _named(rows: Sequence[dict[str, Any]], worker: str | None) -> list[dict[str, Any]]:
    """Return the workers whose id is `worker`, or begins with it followed by a colon.

    Without `worker`, return the only runner. Raises CommandFailed if none matches, and BadUsage if there are several
    runners.
    """
    if worker is None:
        found = [row for row in rows if row["kind"] == "runner"]
        if len(found) > 1:
            names = ", ".join(sorted(f"{row['host_name']}:{row['pid']}" for row in found))
            raise BadUsage(f"There are {len(found)} runners; choose one: {printable(names)}.")
    else:
        found = [row for row in rows if f"{row['id']}:".startswith(f"{worker}:")]
    if not found:
        raise CommandFailed(f"There is no worker {worker or ''}".rstrip() + ". `runyard workers` lists them.")
    return found


def _again(client: Client, rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the current rows of these workers, without workers whose process has ended."""
    ids = {row["id"] for row in rows}
    return [row for row in ask(client)["workers"] if row["id"] in ids]


def _wait_until_idle(client: Client, rows: Sequence[Mapping[str, Any]], seconds: float) -> None:
    """Wait until these workers execute nothing. Raises TimedOut after `seconds`.

    A worker learns of its drain with its next heartbeat, and may claim work until then. Only its second heartbeat
    after the request therefore proves that it is idle.
    """
    give_up_at = time.monotonic() + seconds
    silent: dict[str, float] = {}
    heartbeats: Counter[str] = Counter()  # by worker, including the last one before the request
    while True:
        now = _again(client, rows)
        for row in now:
            heartbeats[row["id"]] += row["silent_seconds"] < silent.get(row["id"], math.inf)
            silent[row["id"]] = row["silent_seconds"]
        busy = [row for row in now if row["running"] or heartbeats[row["id"]] <= 2]
        if not busy:
            return
        if time.monotonic() > give_up_at:
            names = ", ".join(f"{row['host_name']}:{row['pid']} ({_unfinished(row)})" for row in busy)
            raise TimedOut(printable(f"Not idle after {seconds:g} s: {names}. The drain continues."))
        time.sleep(WATCH_SECONDS)


def _unfinished(row: Mapping[str, Any]) -> str:
    """Return the reason why a worker is not known to be idle."""
    return f"{row['running']} running" if row["running"] else "has not confirmed the drain yet"


def _print_changed(rows: Sequence[Mapping[str, Any]], state: str, *, as_json: bool) -> None:
    if as_json:
        typer.echo(
            json.dumps([{"id": row["id"], "state": row["state"], "running": row["running"]} for row in rows])
        )
        return
    for row in rows:
        busy = f", {row['running']} running" if state == DRAINING else ""
        typer.echo(printable(f"{row['kind']} {row['host_name']}:{row['pid']}: {row['state']}{busy}"))


def ask(client: Client) -> dict[str, Any]:
    """Return the workers, pools and builders. Raises CommandFailed."""
    return client.get("/v2/workers")


def shown(found: Mapping[str, Any]) -> Group:
    """Return the tables of one refresh."""
    parts: list[Any] = [pools_table(found["pools"]), Text()]
    if found["workers"]:
        parts.append(_workers(found["workers"]))
    else:
        parts.append(Text("No worker runs: nothing is built, and no run starts.", style="bold red"))
    hosts = [(worker, host) for worker in found["workers"] for host in worker["hosts"]]
    if hosts:
        parts += [Text(), _hosts(hosts)]
    return Group(*parts)


def plain_table(*columns: str) -> Table:
    """Return a table without borders. Columns whose names begin with a lower-case letter are right-aligned."""
    table = Table(box=None, pad_edge=False)
    for number, name in enumerate(columns):
        table.add_column(name, justify="right" if name[0].islower() else "left", no_wrap=number == 0)
    return table


def pools_table(pools: Sequence[Mapping[str, Any]]) -> Table:
    """Return a table of the pools with their runners and waiting runs."""
    table = plain_table("Pool", "runners", "running", "slots", "waiting", "oldest wait", "ended/min", "hosts")
    for pool in pools:
        is_stuck = pool["pending"] and pool["runners"] == pool["draining"]
        silent = pool.get("silent", 0)  # older services do not return it
        table.add_row(
            Text(printable(pool["name"])),
            Text(
                f"{pool['runners']} + {silent} silent" if silent else str(pool["runners"]),
                style="bold red" if is_stuck else "",
            ),
            str(pool["running"]),
            str(pool["slots"]),
            str(pool["pending"]),
            duration(pool["oldest_wait_seconds"]) if pool["pending"] else "-",
            str(pool["ended_a_minute"]),
            str(pool["hosts"]),
        )
    return table


def _workers(workers: Sequence[Mapping[str, Any]]) -> Table:
    table = plain_table(
        "Worker", "Pool", "State", "running", "slots", "hosts", "Isolation", "Version", "Host", "pid"
    )
    for worker in workers:
        state, style = worker["state"], STATE_STYLES.get(worker["state"], "green")
        if state == "silent":
            state = f"silent for {duration(worker['silent_seconds'])}"
        table.add_row(
            worker["kind"],
            Text(printable(worker["pool"] or "-")),
            Text(state, style=style),
            str(worker["running"]),
            str(worker["slots"]),
            str(worker["host_count"]),
            ISOLATION.get(worker["isolation"], str(worker["isolation"])),
            worker["version"],
            Text(printable(worker["host_name"])),
            str(worker["pid"]),
        )
    return table


def _hosts(hosts: Sequence[tuple[Mapping[str, Any], Mapping[str, Any]]]) -> Table:
    table = plain_table("Graph host of", "revision", "runs", "memory", "age", "idle", "State", "Host", "pid")
    for worker, host in hosts:
        table.add_row(
            Text(printable(host["deployment"])),
            version(host["revision_number"]),
            str(host["runs"]),
            f"{host['memory_mb']}/{host['memory_limit_mb']} MiB",
            duration(host["age_seconds"]),
            "-" if host["runs"] else duration(host["idle_seconds"]),
            "answers" if host["is_healthy"] else Text("blocked", style="bold red"),
            Text(printable(worker["host_name"])),
            str(host["pid"]),
        )
    return table


def duration(seconds: float) -> str:
    """Return a duration such as `5 s`, `3 min` or `2.5 h`."""
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"
