"""Storage of a run's checkpoints: over the socket to the runner, or for a temporary run in this process's memory.

Both storages accept the same headers and blobs and answer in the same parts, so the saver reads them in one way.

A stored checkpoint in an answer consists of its record in the JSON (`thread_id`, `checkpoint_ns`, `checkpoint_id`,
`parent_checkpoint_id`, `type`, `metadata`, `blobs`: [[channel, version, type] …], `writes`: [[task_id, channel, type]
…]), and of the following parts: its data, its blobs and its writes, in this order.

`get_tuple` answers with `found` and one record. `list` answers with `items` and `more`. `ancestors` also answers with
`items` and `more`: a checkpoint (null: the newest) and its ancestors, the nearest first. These may contain only the
blobs and writes of the given `channels`.

LangGraph rebuilds a channel that is stored as its changes (`DeltaChannel`) from its value at an ancestor and the writes
since then. A record is decoded again for each checkpoint whose value is rebuilt, because a reducer may modify its
arguments.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from json import loads as json_loads
from typing import Any

from langgraph.checkpoint.base import PendingWrite

from .. import frames
from ..connection import Connection, Document
from ..serialization import dumps, without_nul

Load = Callable[[tuple[str, bytes]], Any]


class StorageFailed(Exception):
    """The runner refused a question, or the run is over."""


class Storage:
    """Stores checkpoints through the runner, for the run with this `id`.

    The runner may answer a question before it has stored earlier writes that were not waited for. A question after such
    writes therefore first waits for the answer to an empty write. The runner stores writes in order, so all earlier
    writes are stored by then.
    """

    def __init__(self, connection: Connection, id: bytes, thread_id: str) -> None:
        self._connection = connection
        self._barrier = {
            "thread_id": thread_id,
            "checkpoint_ns": "",
            "checkpoint_id": "",
            "task_id": "",
            "task_path": "",
            "writes": [],
        }
        self._id = id
        self._is_ahead = False  # a write was sent whose storing is not confirmed
        self.is_closed = False

    @staticmethod
    def head(parts: Sequence[bytes]) -> dict[str, Any]:
        """Return the JSON of an answer. Raises StorageFailed if it is an error."""
        head: dict[str, Any] = json_loads(parts[0])
        if "error" in head:
            raise StorageFailed(head["error"])
        return head

    def send(self, kind: int, header: dict[str, Any], blobs: list[bytes]) -> None:
        """Store without waiting."""
        if not self.is_closed:
            self._is_ahead = True
            self._connection.send(kind, self._id, frames.pack([_document(header)(0), *blobs]))

    async def ask(self, kind: int, header: dict[str, Any], blobs: list[bytes]) -> list[bytes]:
        """Store or read, and wait for the answer."""
        self._check_open()
        if kind == frames.ASK and self._is_ahead:
            self._is_ahead = False
            await self._connection.ask(frames.WRITES, self._id, _document(self._barrier), [])
        return await self._connection.ask(kind, self._id, _document(header), blobs)

    def ask_blocking(self, kind: int, header: dict[str, Any], blobs: list[bytes]) -> list[bytes]:
        """Store or read, and block until the answer arrives. For code that cannot await."""
        self._check_open()
        if kind == frames.ASK and self._is_ahead:
            self._is_ahead = False
            self._connection.ask_blocking(frames.WRITES, self._id, _document(self._barrier), [])
        return self._connection.ask_blocking(kind, self._id, _document(header), blobs)

    def _check_open(self) -> None:
        if self.is_closed:
            raise StorageFailed("the run is over")


def _document(header: dict[str, Any]) -> Document:
    return lambda number: without_nul(dumps({**header, "ask": number}))


class MemoryStorage(Storage):
    """Keeps the checkpoints of a temporary run in memory."""

    def __init__(self) -> None:
        self.is_closed = False
        self._checkpoints: dict[tuple[str, str], tuple[dict[str, Any], bytes]] = {}
        self._blobs: dict[tuple[str, str, str], tuple[str, bytes]] = {}
        self._writes: dict[tuple[str, str], dict[tuple[str, int], tuple[str, str, str, bytes]]] = {}

    def send(self, kind: int, header: dict[str, Any], blobs: list[bytes]) -> None:
        if kind == frames.CHECKPOINT:
            self._put(json_loads(dumps(header)), blobs)
        else:
            self._put_writes(header, blobs)

    async def ask(self, kind: int, header: dict[str, Any], blobs: list[bytes]) -> list[bytes]:
        return self.ask_blocking(kind, header, blobs)

    def ask_blocking(self, kind: int, header: dict[str, Any], blobs: list[bytes]) -> list[bytes]:
        if kind != frames.ASK:
            self.send(kind, header, blobs)
            return []
        if header["op"] == "get_tuple":
            return self._get(header)
        if header["op"] == "list":
            return self._list(header)
        if header["op"] == "ancestors":
            return self._ancestors(header)
        if header["op"] == "delete_thread":
            for store in (self._checkpoints, self._blobs, self._writes):
                store.clear()
            return [b"{}"]
        raise StorageFailed(f"{header['op']}: not on a temporary thread")

    def _put(self, header: dict[str, Any], blobs: list[bytes]) -> None:
        ns = header["checkpoint_ns"]
        self._checkpoints[ns, header["checkpoint_id"]] = header, blobs[0]
        for (channel, version, type_), data in zip(header["new"], blobs[1:], strict=True):
            self._blobs[ns, channel, version] = type_, data

    def _put_writes(self, header: dict[str, Any], blobs: list[bytes]) -> None:
        stored = self._writes.setdefault((header["checkpoint_ns"], header["checkpoint_id"]), {})
        for (idx, channel, type_), data in zip(header["writes"], blobs, strict=True):
            key = (header["task_id"], idx)
            if idx < 0 or key not in stored:
                stored[key] = header["task_path"], channel, type_, data

    def _get(self, question: dict[str, Any]) -> list[bytes]:
        ns, checkpoint_id = question["checkpoint_ns"], question["checkpoint_id"]
        ids = [id for stored_ns, id in self._checkpoints if stored_ns == ns]
        if checkpoint_id:
            ids = [id for id in ids if id == checkpoint_id]
        if not ids:
            return [b'{"found":false}']
        record, blobs = self._record(ns, max(ids))
        return [dumps({"found": True, **record}), *blobs]

    def _list(self, question: dict[str, Any]) -> list[bytes]:
        ns, before, checkpoint_id = question["checkpoint_ns"], question["before"], question["checkpoint_id"]
        keys = [
            (stored_ns, id)
            for (stored_ns, id), (header, _) in self._checkpoints.items()
            if ns in (None, stored_ns)
            and (not checkpoint_id or id == checkpoint_id)
            and (not before or id < before)
            and all(header["metadata"].get(key) == value for key, value in question["filter"].items())
        ]
        keys.sort(key=lambda key: key[1], reverse=True)
        return self._page(keys[: question["limit"]], more=len(keys) > question["limit"])

    def _ancestors(self, question: dict[str, Any]) -> list[bytes]:
        ns, id = question["checkpoint_ns"], question["checkpoint_id"]
        key = ns, id or max((id for stored_ns, id in self._checkpoints if stored_ns == ns), default="")
        chain: list[tuple[str, str]] = []
        while key in self._checkpoints and len(chain) < question["limit"]:
            chain.append(key)
            key = ns, self._checkpoints[key][0]["parent_checkpoint_id"] or ""
        return self._page(chain, more=key in self._checkpoints)

    def _page(self, keys: Sequence[tuple[str, str]], *, more: bool) -> list[bytes]:
        page = [self._record(*key) for key in keys]
        head = {"items": [record for record, _ in page], "more": more}
        return [dumps(head), *(blob for _, blobs in page for blob in blobs)]

    def writes_of(self, record: dict[str, Any]) -> list[tuple[str, str, str, bytes]]:
        """Return the writes of a checkpoint in order, as `(task id, channel, type, data)`."""
        stored = self._writes.get((record["checkpoint_ns"], record["checkpoint_id"]), {})
        ordered = sorted((path, task_id, idx) for (task_id, idx), (path, *_) in stored.items())
        return [(task_id, *stored[task_id, idx][1:]) for _, task_id, idx in ordered]

    def _record(self, ns: str, checkpoint_id: str) -> tuple[dict[str, Any], list[bytes]]:
        header, data = self._checkpoints[ns, checkpoint_id]
        writes = self.writes_of(header)
        blobs = [(c, v, *self._blobs[ns, c, v]) for c, v in header["blobs"].items()]
        record = {
            key: header[key]
            for key in (
                "thread_id", "checkpoint_ns", "checkpoint_id", "parent_checkpoint_id", "type", "metadata",
            )
        }  # fmt: skip
        record["blobs"] = [[channel, version, type_] for channel, version, type_, _ in blobs]
        record["writes"] = [write[:3] for write in writes]
        return record, [data, *(blob[3] for blob in blobs), *(write[3] for write in writes)]


class Overlay(Storage):
    """Reads from the runner, and keeps all writes in memory. The receiver of the query's answer stores them."""

    def __init__(self, connection: Connection, id: bytes, thread_id: str) -> None:
        super().__init__(connection, id, thread_id)
        self.written: list[tuple[int, dict[str, Any], list[bytes]]] = []
        self._memory = MemoryStorage()

    def send(self, kind: int, header: dict[str, Any], blobs: list[bytes]) -> None:
        self.written.append((kind, header, blobs))
        self._memory.send(kind, header, blobs)

    async def ask(self, kind: int, header: dict[str, Any], blobs: list[bytes]) -> list[bytes]:
        answer = self._memory_answer(kind, header, blobs)
        return answer or self._with_memory_writes(await super().ask(kind, header, blobs))

    def ask_blocking(self, kind: int, header: dict[str, Any], blobs: list[bytes]) -> list[bytes]:
        answer = self._memory_answer(kind, header, blobs)
        return answer or self._with_memory_writes(super().ask_blocking(kind, header, blobs))

    def _memory_answer(self, kind: int, header: dict[str, Any], blobs: list[bytes]) -> list[bytes] | None:
        """Return the answer if it concerns a checkpoint written here; None if the runner must be asked."""
        if kind != frames.ASK:
            self.send(kind, header, blobs)
            return [b"{}"]
        if header["op"] not in ("get_tuple", "ancestors"):
            return None
        answer = self._memory.ask_blocking(kind, header, [])
        head = self.head(answer)
        return answer if head.get("found") or head.get("items") else None

    def _with_memory_writes(self, parts: list[bytes]) -> list[bytes]:
        """Add the writes kept here to the runner's checkpoints.

        An update first adds writes to the existing checkpoint, and LangGraph then derives the new checkpoint from them.
        """
        head, blobs = self.head(parts), iter(parts[1:])
        records = head["items"] if "items" in head else [head] if head.get("found") else []
        if not any(self._memory.writes_of(record) for record in records):
            return parts
        merged: list[bytes] = []
        for record in records:
            merged += [next(blobs) for _ in range(1 + len(record["blobs"]))]
            writes = self._memory.writes_of(record)
            merged += [data for *_, data in writes]
            merged += [next(blobs) for _ in record["writes"]]
            record["writes"] = [write[:3] for write in writes] + record["writes"]
        return [dumps(head), *merged]


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
