"""Measuring instruments: percentiles, and the CPU time and memory of process trees around a timed window."""

from __future__ import annotations

import contextlib
import math
import os
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any, Self

import psutil

Row = dict[str, Any]
CLIENT_BOUND = 0.9  # of a core; above it, a result describes this client rather than the target


def percentile(values: Sequence[float], percent: float) -> float:
    """Return the smallest value that is not exceeded by `percent` percent of the values."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(percent / 100 * len(ordered)) - 1)]


def milliseconds(name: str, seconds: Sequence[float]) -> Row:
    """Return `<name>_ms_p50`, `_p95`, `_p99` and `_max` of the durations, or an empty row for none."""
    if not seconds:
        return {}
    figures = {f"p{percent}": percentile(seconds, percent) for percent in (50, 95, 99)} | {
        "max": max(seconds)
    }
    return {f"{name}_ms_{key}": round(value * 1e3, 3) for key, value in figures.items()}


class Processes:
    """The processes of a target: named root processes and all their descendants."""

    def __init__(self, roots: Mapping[str, int]) -> None:
        self._roots = dict(roots)

    def __bool__(self) -> bool:
        return bool(self._roots)

    def cpu_seconds(self) -> dict[str, float]:
        """Return CPU seconds by root. Ended children are counted in their parents."""
        return {name: sum(_each(pid, _cpu_seconds)) for name, pid in self._roots.items()}

    def memory_mb(self) -> dict[str, float]:
        """Return the proportional set size in MiB by root: pages shared by processes count once."""
        return {
            name: round(sum(_each(pid, lambda process: process.memory_full_info().pss)) / 2**20, 1)
            for name, pid in self._roots.items()
        }


def _each(pid: int, figure: Any) -> Iterator[float]:
    with contextlib.suppress(psutil.NoSuchProcess):
        root = psutil.Process(pid)
        for process in [root, *root.children(recursive=True)]:
            with contextlib.suppress(psutil.NoSuchProcess):
                yield figure(process)


def _cpu_seconds(process: psutil.Process) -> float:
    times = process.cpu_times()
    return times.user + times.system + times.children_user + times.children_system


def _machine_cpu_seconds() -> float:
    times = psutil.cpu_times()
    return sum(times) - times.idle - getattr(times, "iowait", 0.0) - getattr(times, "guest", 0.0)


class Window:
    """A timed window: its duration, and the CPU time used in it by client, target and machine."""

    def __init__(self, processes: Processes, *, shares_our_process: bool) -> None:
        self._processes = processes
        self._shares_our_process = shares_our_process

    def __enter__(self) -> Self:
        self._cpu_before = self._processes.cpu_seconds()
        self._machine_before = _machine_cpu_seconds()
        self._client_before = time.process_time()
        self._opened_at = time.perf_counter()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.seconds = time.perf_counter() - self._opened_at
        self._client = time.process_time() - self._client_before
        self._machine = _machine_cpu_seconds() - self._machine_before
        after = self._processes.cpu_seconds()
        self._cpu = {name: after[name] - before for name, before in self._cpu_before.items()}

    def elapsed_seconds(self) -> float:
        return time.perf_counter() - self._opened_at

    def report(self, runs: int) -> Row:
        """Return the busy cores by user, and the CPU time per run if the target's processes are known.

        `other_cores` is work of neither client nor target; without known processes it includes the target's work.
        Measure again if it is high: it disturbs the result.
        """
        target = sum(self._cpu.values())
        client = 0.0 if self._shares_our_process else self._client
        row: Row = {
            "window_seconds": round(self.seconds, 3),
            "client_cores": round(client / self.seconds, 3),
            "other_cores": round(max(self._machine - client - target, 0.0) / self.seconds, 3),
        }
        if client / self.seconds > CLIENT_BOUND:
            row["client_bound"] = True
        if self._cpu:
            row["target_cores"] = round(target / self.seconds, 3)
        if self._cpu and runs:
            row["cpu_ms_per_run"] = round(target / runs * 1e3, 3)
            row["cpu_ms_per_run_by"] = {
                name: round(seconds / runs * 1e3, 3) for name, seconds in self._cpu.items()
            }
        return row


def processes_named(items: Iterable[str]) -> Processes:
    """Parse `NAME=PID` or `PID` texts. Raises ValueError."""
    roots = {}
    for item in items:
        name, _, pid = item.rpartition("=")
        roots[name or f"pid {pid}"] = int(pid)
    return Processes(roots)


def our_process() -> Processes:
    return Processes({"in-process": os.getpid()})
