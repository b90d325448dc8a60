"""The open steps of a run, or of one of its subagents. No two of them have the same name."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from heapq import heappop, heappush


@dataclass(frozen=True, slots=True)
class Step:
    node: str
    number: int

    @property
    def name(self) -> str:
        return self.node if self.number == 1 else f"{self.node}#{self.number}"


class OpenSteps:
    """Steps by task. A further step of a node that is open gets a number, the lowest that is free: `work#2`."""

    def __init__(self) -> None:
        self._steps: dict[str, Step] = {}  # by task
        self._names: set[str] = set()
        # By node: the numbers of closed steps, and the next unused number.
        self._free: dict[str, list[int]] = {}

    def open(self, task: str, node: str) -> str | None:
        """Open the step of a task and return its name. Returns None if it is open."""
        if task in self._steps:
            return None
        step = self._numbered(node)
        while step.name in self._names:  # of a node whose name ends in a number
            step = self._numbered(node)
        self._steps[task] = step
        self._names.add(step.name)
        return step.name

    def _numbered(self, node: str) -> Step:
        free = self._free.setdefault(node, [1])
        number = heappop(free)
        if not free:
            free.append(number + 1)
        return Step(node, number)

    def close(self, task: str) -> str | None:
        """Close the step of a task and return its name. Returns None if it is not open."""
        step = self._steps.pop(task, None)
        if step is None:
            return None
        self._names.discard(step.name)
        heappush(self._free[step.node], step.number)
        return step.name

    def items(self) -> Iterator[tuple[str, str]]:
        """Yield the task and the name of each open step."""
        for task, step in self._steps.items():
            yield task, step.name
