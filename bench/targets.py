"""The interface that scenarios use to measure a target, and the outcome of a run."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol


@dataclass(frozen=True, slots=True)
class Call:
    """A run to execute: streamed if it names a stream mode, waited for otherwise."""

    graph: str
    input: dict[str, Any]
    stream_mode: str | None = None
    thread_id: str | None = None
    proof: str = ""  # text that the answer contains if the graph worked
    ends_with_client: bool = False  # cancel on disconnect: a leftover run disturbs later scenarios


class Event(NamedTuple):
    arrived_at: float
    name: str
    data: Any


@dataclass(slots=True)
class Outcome:
    """Start and end of a run in wall-clock time, which events also carry, and its error if it failed."""

    sent_at: float = 0.0
    ended_at: float = 0.0
    error: str = ""

    @property
    def seconds(self) -> float:
        return self.ended_at - self.sent_at

    def events(self) -> list[Event]:
        """Return the events of a stream. They are decoded here to keep decoding out of the timed window."""
        raise NotImplementedError


@dataclass(slots=True)
class Recorded(Outcome):
    """An outcome that holds its decoded events."""

    recorded: list[Event] = field(default_factory=list)

    def events(self) -> list[Event]:
        return self.recorded


class Target(Protocol):
    label: str
    shares_our_process: bool  # True if the target's CPU time is that of this process

    async def create_thread(self) -> str: ...

    async def run(self, call: Call, *, timeout_seconds: float) -> Outcome: ...

    async def aclose(self) -> None: ...


class TargetError(Exception):
    """The target fails what every scenario needs, so that nothing can be measured."""
