"""Result rows as the bench writes them, and the table cells that the bench renders from them."""

from __future__ import annotations

from typing import Any

from bench.side_by_side import Line


def row(line: Line, label: str, value: float | None, **more: Any) -> dict[str, Any]:
    place = {"scenario": line.scenario, "case": line.case, "label": label}
    return place | ({line.figure: value} if value is not None else {}) | more


def cells(table: str) -> list[list[str]]:
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()]
