"""`python -m bench page FILE...`: write the tables and the chart of `docs/operating/performance.md` from results.

`bench/measured.jsonl` keeps only the figures that the tables show, so both can be rendered again without measuring.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from bench import chart, report, side_by_side
from bench.measuring import Row

PROJECT = Path(__file__).parents[1]
MEASURED = PROJECT / "bench" / "measured.jsonl"
PAGE = PROJECT / "docs" / "operating" / "performance.md"
CHART = PROJECT / "docs" / "pictures" / "performance.svg"
BEGIN, END = "<!-- made by `python -m bench page` -->\n", "<!-- end -->\n"


def main(arguments: Sequence[str]) -> int:
    usage = argparse.ArgumentParser(prog="python -m bench page", description=__doc__)
    usage.add_argument("results", nargs="*", type=Path, help=f"without any, {MEASURED.name} is read again")
    asked = usage.parse_args(arguments)
    try:
        if asked.results:
            rows = kept(report.read(asked.results))
            if len(side_by_side.servers(rows)) < 2:
                usage.error("the page is of several servers: give the results of each")
            MEASURED.write_text("".join(json.dumps(row) + "\n" for row in rows))
        rows = report.read([MEASURED])
    except (report.RowsError, OSError) as failure:
        print(f"bench: {failure}", file=sys.stderr)
        return 1
    PAGE.write_text(with_tables(PAGE.read_text(), rows))
    CHART.write_text(chart.svg(rows))
    return 0


def kept(rows: Sequence[Row]) -> list[Row]:
    """Reduce each target to one row per case with the medians of the shown figures, plus one row of failures."""
    found = []
    for label, of_target in report.targets(rows).items():
        cases: dict[tuple[str, str], Row] = {}
        for line in side_by_side.LINES:
            if (value := line.value(of_target)) is not None:
                place = {"scenario": line.scenario, "case": line.case, "label": label}
                row = cases.setdefault((line.scenario, line.case), place)
                row[line.figure] = round(value, 3)
                row |= _conditions(line.rows(of_target))
        failed = {name: sum(row.get(name, 0) for row in of_target) for name in side_by_side.COUNTED}
        found += [*cases.values(), {"scenario": "failures", "case": "all", "label": label, **failed}]
    return found


def _conditions(rows: Sequence[Row]) -> Row:
    """Return the number of repeats and the CPU use of other work, which is unknown without the server's processes."""
    known = [row for row in rows if "target_cores" in row]
    other = report.median(known, "other_cores")
    return {"repeats": len(rows)} | ({} if other is None else {"other_cores": round(other, 3)})


def with_tables(page: str, rows: Sequence[Row]) -> str:
    """Return the page with the tables of these rows between its two markers."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    parts = [side_by_side.table(rows), side_by_side.floor(rows), conditions(rows)]
    made = "\n\n".join(part for part in parts if part)
    return f"{before}{BEGIN}\n{made}\n\n{END}{after}"


def conditions(rows: Sequence[Row]) -> str:
    """Describe the smallest number of repeats and the median disturbance by other work."""
    rounds = min((row["repeats"] for row in rows if "repeats" in row), default=0)
    other = report.median(rows, "other_cores")
    times = "One round" if rounds == 1 else f"Medians of {rounds} rounds"
    disturbed = "" if other is None else f"; other work kept {other:.1f} cores of the machine busy meanwhile"
    return f"{times}{disturbed}."
