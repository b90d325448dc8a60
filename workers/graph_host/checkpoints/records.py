"""Records of stored checkpoints, and the history of channels that are stored as their changes.

LangGraph rebuilds such a channel (`DeltaChannel`) from its value at an ancestor and the writes since then. A record is
decoded again for each checkpoint whose value is rebuilt, because a reducer may modify its arguments.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from langgraph.checkpoint.base import PendingWrite

Load = Callable[[tuple[str, bytes]], Any]


@dataclass(slots=True)
class Record:
    """One stored checkpoint. `channels` are the channels whose blobs and writes it contains; None: all channels."""

    head: dict[str, Any]
    data: bytes
    blobs: list[bytes]
    writes: list[bytes]
    channels: frozenset[str] | None = None
    _body: dict[str, Any] | None = None

    @classmethod
    def read(
        cls, head: dict[str, Any], parts: Iterator[bytes], channels: frozenset[str] | None = None
    ) -> Record:
        """Read a record's parts: its data, then its blobs, then its writes."""
        data = next(parts)
        blobs = [next(parts) for _ in head["blobs"]]
        return cls(head, data, blobs, [next(parts) for _ in head["writes"]], channels)

    @property
    def key(self) -> tuple[str, str, str]:
        return self.head["thread_id"], self.head["checkpoint_ns"], self.head["checkpoint_id"]

    @property
    def parent_id(self) -> str | None:
        return self.head["parent_checkpoint_id"]

    def has(self, channels: Collection[str]) -> bool:
        return self.channels is None or self.channels.issuperset(channels)

    def values(self, load: Load, channels: Collection[str]) -> dict[str, Any]:
        """Return the values of these channels, as far as they are stored with the checkpoint."""
        body = self._body = self._body or load((self.head["type"], self.data))
        small = body["checkpoint"]["channel_values"]
        values = {channel: small[channel] for channel in channels if channel in small}
        for channel, typed in body["typed"].items():
            if channel in channels:
                values[channel] = load(typed)
        for (channel, _, type_), data in zip(self.head["blobs"], self.blobs, strict=True):
            if channel in channels:
                values[channel] = load((type_, data))
        return values

    def pending(self, load: Load, channels: Collection[str]) -> Iterator[PendingWrite]:
        """Yield the writes to these channels, the last first."""
        for (task_id, channel, type_), data in zip(
            reversed(self.head["writes"]), reversed(self.writes), strict=True
        ):
            if channel in channels:
                yield task_id, channel, load((type_, data))


Records = dict[tuple[str, str, str], Record]


def read_all(
    items: Iterable[dict[str, Any]], parts: Iterator[bytes], channels: frozenset[str] | None = None
) -> list[Record]:
    """Read all records of an answer."""
    return [Record.read(head, parts, channels) for head in items]


@dataclass
class DeltaHistory:
    """Collects the writes and values of some channels from a checkpoint's ancestors, the nearest ancestor first."""

    channels: Collection[str]
    _writes: dict[str, list[PendingWrite]] = field(init=False)
    _seeds: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._writes = {channel: [] for channel in self.channels}
        self.open = set(self.channels)  # channels without a value in the ancestors so far

    def take(self, ancestor: Record, load: Load) -> None:
        for write in ancestor.pending(load, self.open):
            self._writes[write[1]].append(write)
        values = ancestor.values(load, self.open)
        self._seeds |= values
        self.open -= values.keys()

    def result(self) -> dict[str, Any]:
        """Return by channel its `writes`, the oldest first, and as `seed` its value before them if one is stored."""
        return {
            channel: {
                "writes": self._writes[channel][::-1],
                **({"seed": self._seeds[channel]} if channel in self._seeds else {}),
            }
            for channel in self.channels
        }
