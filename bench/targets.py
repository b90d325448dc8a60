"""What can be measured: the one interface that the scenarios see, and what a run through it leaves."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol


@dataclass(frozen=True, slots=True)
class Call:
    """One run to be made: streamed when it names a stream mode, waited for otherwise."""

    graph: str
    input: dict[str, Any]
    stream_mode: str | None = None
    thread_id: str | None = None
    proof: str = ""  # text that the answer holds if the graph did its work
    ends_with_client: bool = False  # a run that outlives its client must not disturb the next scenario


class Event(NamedTuple):
    arrived_at: float
    name: str
    data: Any


@dataclass(slots=True)
class Outcome:
    """When a run was sent and ended (wall clock: events carry it too), and why it failed, if it did."""

    sent_at: float = 0.0
    ended_at: float = 0.0
    error: str = ""

    @property
    def seconds(self) -> float:
        return self.ended_at - self.sent_at

    def events(self) -> list[Event]:
        """The events of a stream; decoded here, so that decoding falls outside any timed window."""
        raise NotImplementedError


@dataclass(slots=True)
class Recorded(Outcome):
    """An outcome whose events are at hand."""

    recorded: list[Event] = field(default_factory=list)

    def events(self) -> list[Event]:
        return self.recorded


class Target(Protocol):
    label: str
    shares_our_process: bool  # whether its CPU time is ours

    async def create_thread(self) -> str: ...

    async def run(self, call: Call, *, timeout_seconds: float) -> Outcome: ...

    async def aclose(self) -> None: ...


class TargetError(Exception):
    """The target does not do what every scenario needs; nothing can be measured."""
