"""An SVG bar chart of how many times as good the first server is, with one bar per other server.

The chart draws its own background, so it is readable on light and dark pages.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from html import escape

from bench import report, side_by_side
from bench.measuring import Row
from bench.side_by_side import Line

WIDTH, WORDS, MARGIN = 960, 340, 24  # pixels: total width, label column, outer margin
BAR, GAP, TOP = 13, 12, 72  # bar height, space between lines, offset of the first line
TICKS = (0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100, 200)
STYLE = """
  .ground { fill: #ffffff; stroke: #d0d7de }
  text { font: 13px -apple-system, "Segoe UI", "DejaVu Sans", sans-serif; fill: #1f2328 }
  .soft { fill: #59636e }
  .grid { stroke: #d1d9e0 } .one { stroke: #59636e; stroke-width: 1.5 }
  .bar0 { fill: #0969da } .bar1 { fill: #bf8700 } .bar2 { fill: #8250df }
  @media (prefers-color-scheme: dark) {
    .ground { fill: #0d1117; stroke: #3d444d }
    text { fill: #f0f6fc }
    .soft { fill: #9198a1 }
    .grid { stroke: #2a313c } .one { stroke: #9198a1 }
    .bar0 { fill: #4493f8 } .bar1 { fill: #d29922 } .bar2 { fill: #ab7df8 }
  }
"""


def svg(rows: Sequence[Row]) -> str:
    """Draw one bar per line and server on a logarithmic scale. At 1 both servers are equal."""
    by_server = side_by_side.servers(rows)
    first, *others = by_server
    lines = [
        (line, found) for line in side_by_side.LINES if (found := _ratios(line, by_server, first, others))
    ]
    scale = _Scale([ratio for _, found in lines for _, ratio in found])
    bottom = TOP + sum(BAR * len(found) + GAP for _, found in lines)
    height = bottom + 2 * MARGIN
    title = f"How many times as good {first} is as {' and '.join(others)}; left of 1 the other is better"
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img">',
        f"<title>{escape(title)}</title>",
        f"<style>{STYLE}</style>",
        f'<rect class="ground" x="0.5" y="0.5" width="{WIDTH - 1}" height="{height - 1}" rx="8"/>',
        *_legend(first, others),
        *_grid(scale, bottom),
        *_bars(lines, scale),
    ]
    return "\n".join([*parts, "</svg>\n"])


class _Scale:
    """A logarithmic scale that maps a ratio to an x coordinate."""

    def __init__(self, ratios: Sequence[float]) -> None:
        least, most = min([*ratios, 0.9]), max([*ratios, 1.1])
        low = max((tick for tick in TICKS if tick <= least), default=least)
        high = min((tick for tick in TICKS if tick >= most), default=most)
        self.ticks = [tick for tick in TICKS if low <= tick <= high]
        self._low, self._high = math.log(low), math.log(high)

    def x(self, ratio: float) -> float:
        share = (math.log(ratio) - self._low) / (self._high - self._low)
        return round(WORDS + share * (WIDTH - WORDS - 3 * MARGIN), 1)


def _ratios(
    line: Line, by_server: dict[str, list[Row]], first: str, others: Sequence[str]
) -> list[tuple[int, float]]:
    ours = line.value(by_server[first])
    ratios = [line.times_as_good(ours, line.value(by_server[other])) for other in others]
    return [(number, ratio) for number, ratio in enumerate(ratios) if ratio is not None]


def _legend(first: str, others: Sequence[str]) -> Iterator[str]:
    yield f'<text x="{MARGIN}" y="30">{escape(first)}: times as good as</text>'
    yield f'<text class="soft" x="{MARGIN}" y="50">left of 1 the other is better</text>'
    x = WORDS
    for number, other in enumerate(others):
        yield f'<rect class="bar{number}" x="{x}" y="20" width="{BAR}" height="{BAR}"/>'
        yield f'<text x="{x + BAR + 6}" y="30">{escape(other)}</text>'
        x += 60 + 8 * len(other)


def _grid(scale: _Scale, bottom: int) -> Iterator[str]:
    for tick in scale.ticks:
        x = scale.x(tick)
        kind = "one" if tick == 1 else "grid"
        yield f'<line class="{kind}" x1="{x}" y1="{TOP - 10}" x2="{x}" y2="{bottom}"/>'
        yield f'<text class="soft" x="{x}" y="{bottom + 20}" text-anchor="middle">{tick:g}</text>'


def _bars(lines: Sequence[tuple[Line, list[tuple[int, float]]]], scale: _Scale) -> Iterator[str]:
    y = TOP
    for line, found in lines:
        middle = y + BAR * len(found) / 2 + 4
        yield f'<text x="{WORDS - 12}" y="{middle}" text-anchor="end">{escape(line.asks)}</text>'
        for number, ratio in found:
            from_x, to_x = sorted((scale.x(1), scale.x(ratio)))
            yield f'<rect class="bar{number}" x="{from_x}" y="{y}" width="{max(to_x - from_x, 1):.1f}" height="{BAR - 1}"/>'
            yield f'<text class="soft" x="{scale.x(max(ratio, 1)) + 5:.1f}" y="{y + 10.5}">{report.rounded(ratio)}</text>'
            y += BAR
        y += GAP
