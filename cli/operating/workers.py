"""`runyard workers`: the processes that do the work, what they do, and what waits for them."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import typer
from rich.console import Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from cli.api.client import Client
from cli.api.ids import version
from cli.options import Json, Key, Org, Url, open_client, sentences
from cli.output import console, printable

WATCH_SECONDS = 2.0
STATE_STYLES = {"silent": "bold red", "draining": "yellow"}
ISOLATION = {0: "none", 1: "other user", 2: "sandbox"}

Watch = Annotated[bool, typer.Option("--watch", help="Show it anew every two seconds, until Ctrl-C.")]


def command(
    watch: Watch = False,
    as_json: Json = False,
    url: Url = None,
    api_key: Key = None,
    org: Org = None,
) -> None:
    """Show pools, runners, builders and graph hosts.

    Of graph hosts an organization sees its own deployments', an operator's key all.
    """
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


def ask(client: Client) -> dict[str, Any]:
    """Return the workers, pools and builders. Raises CommandFailed."""
    return client.get("/v2/workers")


def shown(found: Mapping[str, Any]) -> Group:
    """The tables of one look."""
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
    """Columns whose names begin with a small letter hold numbers."""
    table = Table(box=None, pad_edge=False)
    for number, name in enumerate(columns):
        table.add_column(name, justify="right" if name[0].islower() else "left", no_wrap=number == 0)
    return table


def pools_table(pools: Sequence[Mapping[str, Any]]) -> Table:
    """Return a table of the pools: their runners, and the runs that wait."""
    table = plain_table("Pool", "runners", "running", "slots", "waiting", "oldest wait", "ended/min", "hosts")
    for pool in pools:
        is_stuck = pool["pending"] and pool["runners"] == pool["draining"]
        silent = pool.get("silent", 0)  # an older service does not say
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
    """`5 s`, `3 min`, `2.5 h`."""
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"
