"""Waiting for a replay, and its result: a table, the verdict in words, and the exit code of a command."""

from __future__ import annotations

import io
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any

import typer
from rich.console import Console, Group, RenderableType
from rich.table import Table

from cli.client.client import Client
from cli.client.names import version
from cli.errors import NOT_JUDGED, RULE_FAILED, BadUsage
from cli.output import UNLIMITED, Column, printable, table
from shared.errors import Invalid
from shared.replays import rules
from shared.replays.comparison import Outcome

POLL_SECONDS = 1.0
OUTCOMES = tuple(map(str, Outcome))
SIDES = ("original", "replay")

FAIL_ON = f"Conditions under which it fails: `{rules.EXAMPLE}`. Metrics: {', '.join(rules.METRICS)}."

Replay = Mapping[str, Any]
Format = Callable[[float], str]


def check_rule(rule: str | None) -> str | None:
    """Return a valid rule. Raises BadUsage, so that a misspelt metric costs no deploy."""
    if rule is not None:
        try:
            rules.parse(rule)
        except Invalid as error:
            raise BadUsage(f"--{error.message.replace('_', '-', 1)}") from error
    return rule


def start(client: Client, deployment_id: str, body: Mapping[str, Any]) -> Replay:
    return client.send("POST", f"/v2/deployments/{deployment_id}/replays", body, repeat=True)


def follow(client: Client, replay: Replay) -> Replay:
    """Wait until a replay has ended, with a line of progress on a terminal. Ctrl-C leaves the replay running."""
    path = f"/v2/deployments/{replay['deployment_id']}/replays/{replay['id']}"
    has_screen = sys.stderr.isatty()
    while replay["ended_at"] is None:
        if has_screen:
            typer.echo(f"\r\x1b[K{progress(replay)}", err=True, nl=False)
        time.sleep(POLL_SECONDS)
        replay = client.get(path)
    if has_screen:
        typer.echo("\r\x1b[K", err=True, nl=False)
    return replay


def progress(replay: Replay) -> str:
    counts = replay["counts"]
    ended = sum(counts[name] for name in OUTCOMES)
    if replay["status"] == "preparing" or not counts["total"]:
        return "selecting runs"
    return f"{ended:,} of {counts['total']:,} cases: {counts_text(replay) or 'none has ended'}"


def counts_text(replay: Replay) -> str:
    return ", ".join(f"{replay['counts'][name]:,} {name}" for name in OUTCOMES if replay["counts"][name])


def exit_code(replay: Replay) -> int:
    """Return 0 if the replay passed, or reported without a rule. A replay that has not ended has not passed."""
    if replay["verdict"] == "failed":
        return RULE_FAILED
    is_reported = replay["status"] == "done" and not replay["fail_on"] and judged(replay) > 0
    return 0 if replay["verdict"] == "passed" or is_reported else NOT_JUDGED


def judged(replay: Replay) -> int:
    return sum(replay["counts"][name] for name in OUTCOMES if name != "skipped")


def verdict_text(replay: Replay) -> str:
    """Return the result as a sentence."""
    if replay["ended_at"] is None:
        return f"The replay is {replay['status']}: {progress(replay)}."
    failed = [rule["rule"] for rule in _rules(replay) if rule["failed"]]
    if replay["verdict"] == "failed":
        return f"Failed: {', '.join(failed)}."
    if replay["verdict"] == "passed":
        return f"Passed: {replay['fail_on']}."
    if exit_code(replay) == 0:
        return "Compared without a rule."
    unknown = [rule["rule"] for rule in _rules(replay) if rule["failed"] is None]
    why = replay["reason"] or (
        "no case was judged" if not judged(replay) else f"no figures for {', '.join(unknown)}"
    )
    status = "" if replay["status"] == "done" else f", the replay is {replay['status']}"
    return f"Could not be judged{status}: {why}."


def draw(replay: Replay) -> RenderableType:
    """Return the tables of a replay with its verdict."""
    return Group(_tables(replay), "", printable(verdict_text(replay)))


def _tables(replay: Replay) -> RenderableType:
    lines = [
        f"Replay {replay['id']} of {version(replay['revision_number'])}, tools {replay['tools']}, models"
        f" {replay['models']}, seed {replay['seed']}",
        f"{replay['counts']['total']:,} cases: {counts_text(replay) or 'none has ended'}",
        *(
            f"  {number:,} skipped: {reason}"
            for reason, number in ((replay["summary"] or {}).get("skipped") or {}).items()
        ),
    ]
    parts: list[RenderableType] = [printable("\n".join(lines))]
    if replay["summary"]:
        parts += ["", _figures(replay["summary"])]
    if _rules(replay):
        parts += ["", table(_rules(replay), RULES)]
    return Group(*parts)


def plain_text(replay: Replay) -> str:
    """Return the tables as lines of text, as a comment on a pull request shows them."""
    screen = Console(
        file=io.StringIO(), width=UNLIMITED, no_color=True, highlight=False, markup=False, emoji=False
    )
    with screen.capture() as captured:
        screen.print(_tables(replay))
    return "\n".join(line.rstrip() for line in captured.get().splitlines())


def _figures(summary: Mapping[str, Any]) -> Table:
    figures = [
        ("median time", "duration_seconds", "median", _seconds),
        ("p95 time", "duration_seconds", "p95", _seconds),
        ("tokens", "tokens", "total", _whole),
        ("tokens, median", "tokens", "median", _whole),
        ("cost", "cost", "total", _number),
        ("cost, median", "cost", "median", _number),
    ]
    rows = [
        (label, *(summary[name][side][kind] for side in SIDES), text) for label, name, kind, text in figures
    ]
    rows += [
        (f"score {name} ({score['pairs']} cases)", score["original"], score["replay"], _number)
        for name, score in summary["scores"].items()
    ]
    return table([row for row in rows if row[1] is not None], FIGURES)


FIGURES = (
    Column("", lambda row: row[0]),
    Column("original", lambda row: row[3](row[1])),
    Column("replay", lambda row: row[3](row[2])),
    Column("change", lambda row: _change(row[1], row[2])),
)
RULES = (
    Column("Rule", lambda rule: rule["rule"]),
    Column("original", lambda rule: _optional(rule["original"])),
    Column("replay", lambda rule: _optional(rule["value"])),
    Column("limit", lambda rule: _optional(rule["limit"])),
    Column("Result", lambda rule: {True: "failed", False: "passed", None: "no figures"}[rule["failed"]]),
)


def _rules(replay: Replay) -> list[Mapping[str, Any]]:
    return list((replay["summary"] or {}).get("rules") or ())


def _change(original: float, replay: float) -> str:
    if not original:
        return "-" if replay else "0 %"
    return f"{(replay - original) / abs(original) * 100:+.1f} %"


def _seconds(seconds: float) -> str:
    return f"{seconds * 1000:.0f} ms" if seconds < 1 else f"{seconds:,.2f} s"


def _whole(number: float) -> str:
    return f"{number:,.0f}"


def _number(number: float) -> str:
    """Return a number with four significant digits, and without trailing zeros."""
    return f"{number:,.4g}" if abs(number) < 1_000 else f"{number:,.0f}"


def _optional(number: float | None) -> str | None:
    return None if number is None else _number(number)
