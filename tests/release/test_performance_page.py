"""docs/operating/performance.md matches the bench: the same lines, and tables and a chart rendered from the measurements."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from bench import chart, page, report, side_by_side
from bench.__main__ import main
from bench.side_by_side import LINES
from tests.support.bench_rows import cells, row

MEASURED = report.read([page.MEASURED])
PAGE = page.PAGE.read_text()
FAST = next(line for line in LINES if line.figure == "runs_per_second")
SOON = next(line for line in LINES if line.figure == "whole_ms_p50")


def test_every_line_of_the_bench_is_on_the_page() -> None:
    shown = [line[0] for line in cells(PAGE.partition(page.BEGIN)[2]) if len(line) > 2]

    assert shown[2 : 2 + len(LINES) + 2] == [*(line.asks for line in LINES), *side_by_side.FAILURES]


def test_the_page_and_its_chart_are_made_of_what_was_measured() -> None:
    assert page.with_tables(PAGE, MEASURED) == PAGE
    assert page.CHART.read_text() == chart.svg(MEASURED)


def test_each_server_of_the_page_was_asked_everything() -> None:
    for server, rows in side_by_side.servers(MEASURED).items():
        assert [line.asks for line in LINES if line.value(rows) is None] == [], server


def test_the_chart_has_a_bar_for_each_ratio_and_one_left_of_1_for_what_is_worse() -> None:
    rows = [row(FAST, "ours", 90), row(FAST, "a<b", 30), row(SOON, "ours", 20), row(SOON, "a<b", 5)]

    drawn = ET.fromstring(chart.svg(rows))

    bars = [part for part in drawn.iter() if part.get("class") == "bar0" and part.get("y") != "20"]
    one = next(float(part.get("x1", "")) for part in drawn.iter() if part.get("class") == "one")
    texts = [part.text for part in drawn.iter() if part.tag.endswith("text")]
    ends = [(float(bar.get("x", "")), float(bar.get("x", "")) + float(bar.get("width", ""))) for bar in bars]
    assert [
        (left == pytest.approx(one, abs=0.2), right == pytest.approx(one, abs=0.2)) for left, right in ends
    ] == [
        (False, True),  # four times slower
        (True, False),
    ]
    assert {"0.25", "3", "a<b"} <= set(texts)


def test_results_make_the_page_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    results, kept, text, picture = (tmp_path / name for name in ("r.jsonl", "kept.jsonl", "p.md", "c.svg"))
    for name, path in (("MEASURED", kept), ("PAGE", text), ("CHART", picture)):
        monkeypatch.setattr(page, name, path)
    text.write_text(f"# Before\n\n{page.BEGIN}old\n{page.END}\nAfter\n")
    rows = [
        row(FAST, "ours", 10, errors=2),
        row(FAST, "ours", 30, target_cores=1, other_cores=0.3),
        row(FAST, "theirs", 5),
    ]
    results.write_text("".join(json.dumps(one) + "\n" for one in rows))

    assert main(["page", str(results)]) == 0
    made = text.read_text(), picture.read_text()
    assert main(["page"]) == 0

    assert made == (text.read_text(), picture.read_text())
    assert made[0].startswith("# Before\n")
    assert made[0].endswith("\nAfter\n")
    assert [FAST.asks, FAST.unit, "20", "5", "4"] in cells(made[0])
    assert [next(iter(side_by_side.FAILURES)), "", "2", "0", ""] in cells(made[0])
    assert "One round; other work kept 0.3 cores" in made[0], "the fewest of any figure"
    assert report.read([kept])[0] == row(FAST, "ours", 20, repeats=2, other_cores=0.3)


def test_one_server_is_no_comparison(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    results = tmp_path / "r.jsonl"
    results.write_text("".join(json.dumps(row(FAST, label, 1)) + "\n" for label in ("ours", "in-process")))

    with pytest.raises(SystemExit):
        main(["page", str(results)])

    assert "of several servers" in capsys.readouterr().err
