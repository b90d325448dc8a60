"""`python -m bench`: measure a server, the bare graphs or both, or compare earlier results."""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import AsyncExitStack, ExitStack, aclosing
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from bench import capacity, last, page, report, side_by_side
from bench.in_process import InProcess
from bench.measuring import Processes, Row, our_process, processes_named
from bench.scenarios import BY_DEFAULT, SCENARIOS
from bench.server import Server
from bench.session import Options, Session
from bench.targets import Target, TargetError


def numbers(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(","))


def names(text: str) -> list[str]:
    chosen = text.split(",")
    unknown = [name for name in chosen if name not in SCENARIOS]
    if unknown:
        raise argparse.ArgumentTypeError(f"no scenario {unknown[0]!r}; there are {', '.join(SCENARIOS)}")
    return chosen


def header(text: str) -> tuple[str, str]:
    name, colon, value = text.partition(":")
    if not colon:
        raise argparse.ArgumentTypeError(f"not 'name: value': {text!r}")
    return name.strip(), value.strip()


def named_url(text: str) -> tuple[str, str]:
    name, _, url = text.partition("=")
    if not url.startswith("http://"):
        raise argparse.ArgumentTypeError(f"not NAME=http://…: {text!r}")
    return name, url


def parser() -> argparse.ArgumentParser:
    usage = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    what = usage.add_argument_group("what to measure")
    what.add_argument("--base-url", help="address of a deployment of bench/graphs")
    what.add_argument(
        "--header", type=header, action="append", default=[], help="'name: value' for each request"
    )
    what.add_argument(
        "--beside",
        type=named_url,
        action="append",
        default=[],
        help="NAME=URL: another server with bench/graphs, measured in turn with the first",
    )
    what.add_argument(
        "--in-process",
        nargs="?",
        const="memory",
        choices=["memory", "durable"],
        help="the bare graphs, with no server around them; durable: threads are kept in a PostgreSQL",
    )
    what.add_argument("--noisy-url", help="another deployment of bench/graphs, to burn CPU beside the first")
    what.add_argument(
        "--pid", action="append", default=[], help="NAME=PID: a process of the server, with its tree"
    )
    what.add_argument("--scenario", type=names, default=BY_DEFAULT, help=f"some of {','.join(SCENARIOS)}")
    how = usage.add_argument_group("how much")
    how.add_argument("--repeat", type=int, default=1, help="measure everything so many times")
    for name, default in asdict(Options()).items():
        kind = numbers if isinstance(default, tuple) else type(default)
        shown = ",".join(map(str, default)) if isinstance(default, tuple) else default
        how.add_argument(f"--{name.replace('_', '-')}", type=kind, default=default, help=f"default: {shown}")
    told = usage.add_argument_group("what to tell")
    told.add_argument("--label", default="server", help="the server's name in the tables")
    told.add_argument("--out", type=Path, help="append each result to this file too, as a JSON line")
    told.add_argument(
        "--table", type=Path, nargs="+", metavar="FILE", help="measure nothing, show these results"
    )
    told.add_argument(
        "--compare",
        type=Path,
        nargs=2,
        metavar="FILE",
        help="measure nothing, show the first over the second",
    )
    return usage


class Results:
    """Collects rows and writes each one to the given files immediately."""

    def __init__(self, *files: Any) -> None:
        self.rows: list[Row] = []
        self._files = files

    def add(self, row: Row) -> None:
        self.rows.append(row)
        for file in self._files:
            print(json.dumps(row), file=file, flush=True)


async def measure(
    target: Target, processes: Processes, asked: argparse.Namespace, results: Results, repeat: int
) -> None:
    """Run the requested scenarios once against one target. Raises TargetError."""
    options = Options(**{option.name: getattr(asked, option.name) for option in fields(Options)})
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(aclosing(target))
        noisy = None
        if asked.noisy_url and not target.shares_our_process:
            noisy = await stack.enter_async_context(aclosing(Server(asked.noisy_url, dict(asked.header))))
        session = Session(target, options, processes=processes, emit=results.add, noisy=noisy, repeat=repeat)
        for name in asked.scenario:
            if name not in ("coldstart", "deploying"):
                await session.check()
            await SCENARIOS[name](session)


def targets(asked: argparse.Namespace) -> Iterator[tuple[Target, Processes]]:
    """Yield each target with its known processes, created only when its turn comes. Raises TargetError."""
    if asked.base_url:
        yield Server(asked.base_url, dict(asked.header), asked.label), processes_named(asked.pid)
    for name, url in asked.beside:
        yield Server(url, {}, name), processes_named([])
    if asked.in_process:
        yield InProcess(durable=asked.in_process == "durable"), our_process()


def main(arguments: Sequence[str] | None = None) -> int:
    given = sys.argv[1:] if arguments is None else arguments
    if given[:1] == ["capacity"]:
        return capacity.main(given[1:])
    if given[:1] == ["limits"]:
        from bench import limits  # imported here: it needs the service, and measuring another server does not

        return limits.main(given[1:])
    if given[:1] == ["last"]:
        return last.main(given[1:])
    if given[:1] == ["page"]:
        return page.main(given[1:])
    usage = parser()
    asked = usage.parse_args(given)
    try:
        if asked.table:
            show(report.read(asked.table))
            return 0
        if asked.compare:
            print(report.comparison(*(report.read([path]) for path in asked.compare)))
            return 0
        if not (asked.base_url or asked.in_process):
            usage.error("give --base-url, --in-process, or both")
        if len({asked.label, *dict(asked.beside)}) <= len(asked.beside):
            usage.error("each server needs a name of its own: see --label")
        run(asked)
    except (TargetError, report.RowsError, OSError, ValueError) as failure:
        print(f"bench: {failure}", file=sys.stderr)
        return 1
    return 0


def run(asked: argparse.Namespace) -> None:
    """Measure the targets in turn, `--repeat` times, then print the tables. Raises TargetError."""
    with ExitStack() as stack:
        files = [sys.stdout, *([stack.enter_context(asked.out.open("a"))] if asked.out else [])]
        results = Results(*files)
        for repeat in range(asked.repeat):
            for target, processes in targets(asked):
                asyncio.run(measure(target, processes, asked, results, repeat))
    print()
    show(results.rows)


def show(rows: Sequence[Row]) -> None:
    """Print a table per scenario, the first target compared with each other one, and the side-by-side summary."""
    print(report.table(rows))
    by_target = list(report.targets(rows).values())
    for other in by_target[1:]:
        print("\n" + report.comparison(by_target[0], other))
    for title, table in (
        ("Side by side", side_by_side.table(rows)),
        ("Beside the bare graphs", side_by_side.floor(rows)),
    ):
        if table:
            print(f"\n### {title}\n\n{table}")


if __name__ == "__main__":
    sys.exit(main())
