"""The checkpoint saver of graphs. It serializes checkpoints and sends them to the runner, which stores them.

One saver serves all graphs and runs of the host; a context variable names the run of a call. A checkpoint is sent as
one frame. Its data contains small channel values. Large values are separate blobs by (channel, version), and only blobs
that are not stored yet are sent. Runs on a temporary thread keep their checkpoints in memory.
"""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Collection, Generator, Iterator, Sequence
from typing import Any, TypeVar

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import (
    WRITES_IDX_MAP,
    BaseCheckpointSaver,
    ChannelVersions,
    Checkpoint,
    CheckpointMetadata,
    CheckpointTuple,
)

from .. import frames
from .run_checkpoints import (
    RunCheckpoints,
    Saved,
    addressed_by,
    ancestors_question,
    as_tuple,
    config_metadata,
    config_of,
    current_run,
    list_question,
    next_page,
    tuple_question,
)
from .serializer import Allowed, allows_any, make_serializer
from .storage import DeltaHistory, Record, Records, Storage, read_all

# A serialized value up to this size is cheaper inside the checkpoint than as a separate row.
INLINE_BYTES = 512
T = TypeVar("T")
Header = dict[str, Any]
# A method that may wait for the storage is a generator: it yields the storage and a frame's kind, header and blobs, and
# receives the parts of the answer. LangGraph's async and sync methods take the same steps in two ways.
Steps = Generator[tuple[Storage, int, Header, list[bytes]], Any, T]


class CheckpointTooLarge(Exception):
    """A checkpoint exceeds the limit."""


class HostSaver(BaseCheckpointSaver[str]):
    """Saves and loads the checkpoints of the current run or query."""

    def __init__(self, allowed: Allowed = (), *, max_bytes: int = 32 << 20) -> None:
        if allows_any():
            allowed = True
        super().__init__(serde=make_serializer(allowed))
        self._allowed = None if allowed is True else set(allowed)
        self._max_bytes = max_bytes

    def with_allowlist(self, extra_allowlist: Collection[tuple[str, ...]]) -> HostSaver:
        """Allow these additional types, and return this saver.

        LangGraph calls this for each run. Only types that are new cause a new serializer.
        """
        if self._allowed is not None and not self._allowed.issuperset(extra_allowlist):
            self._allowed.update(extra_allowlist)
            self.serde = make_serializer(self._allowed)
        return self

    # Writing

    async def aput(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        return await _awaited(self._put(config, checkpoint, metadata, new_versions))

    def put(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        return _blocking(self._put(config, checkpoint, metadata, new_versions))

    def _put(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> Steps[RunnableConfig]:
        run, conf = current_run.get(), addressed_by(config)
        storage = run.storage_of(conf["thread_id"])
        frame = self._frame(run, config, checkpoint, metadata, new_versions)
        if frame and run.waits:
            yield storage, frames.CHECKPOINT, *frame
        elif frame:
            storage.send(frames.CHECKPOINT, *frame)
        return config_of(conf, checkpoint["id"])

    async def aput_writes(
        self, config: RunnableConfig, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str = ""
    ) -> None:
        self.put_writes(config, writes, task_id, task_path)

    def put_writes(
        self, config: RunnableConfig, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str = ""
    ) -> None:
        run = current_run.get()
        conf = addressed_by(config)
        ns = conf.get("checkpoint_ns", "")
        self._remember_writes(run, conf, writes, task_id, task_path)
        if run.times is not None and conf["thread_id"] == run.thread_id:
            run.times.end_task(ns, conf["checkpoint_id"], task_id, task_path, writes)
        if run.skips_root and not ns:
            return
        items, blobs = [], []
        for position, (channel, value) in enumerate(writes):
            type_, data = self.serde.dumps_typed(value)
            items.append([WRITES_IDX_MAP.get(channel, position), channel, type_])
            blobs.append(bytes(data))
        header = {
            "thread_id": conf["thread_id"],
            "checkpoint_ns": ns,
            "checkpoint_id": conf["checkpoint_id"],
            "task_id": task_id,
            "task_path": task_path,
            "writes": items,
        }
        self._check_size(blobs)
        run.storage_of(conf["thread_id"]).send(frames.WRITES, header, blobs)

    def _frame(
        self,
        run: RunCheckpoints,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> tuple[dict[str, Any], list[bytes]] | None:
        """Remember the checkpoint. Returns the `(header, blobs)` of the frame to send, or None if none is sent."""
        conf = addressed_by(config)
        ns = conf.get("checkpoint_ns", "")
        parent_id = conf.get("checkpoint_id")
        everything: dict[str, Any] = {**config_metadata(config), **run.metadata, **metadata}
        everything.pop("writes", None)
        if conf["thread_id"] == run.thread_id:
            run.last[ns] = Saved(checkpoint, everything, parent_id)
            if run.times is not None:
                run.times.begin_step(ns, checkpoint)
            if not ns:
                run.newest = None
                if run.skips_root:
                    return None
        return self._encode(run, conf, checkpoint, parent_id, everything, new_versions)

    def _encode(
        self,
        run: RunCheckpoints,
        conf: dict[str, Any],
        checkpoint: Checkpoint,
        parent_id: str | None,
        metadata: dict[str, Any],
        new_versions: ChannelVersions,
    ) -> tuple[dict[str, Any], list[bytes]]:
        thread_id, ns = conf["thread_id"], conf.get("checkpoint_ns", "")
        versions = checkpoint["channel_versions"]
        small: dict[str, Any] = {}
        typed: dict[str, Any] = {}
        refers: dict[str, str] = {}
        new: list[list[str]] = []
        blobs: list[bytes] = [b""]
        for channel, value in checkpoint["channel_values"].items():
            version = str(versions.get(channel, ""))
            key = (thread_id, ns, channel, version)
            if key in run.stored_blobs and channel not in new_versions and not run.ships_all:
                refers[channel] = version
            elif _is_small(value):
                small[channel] = value
            else:
                type_, data = self.serde.dumps_typed(value)
                if len(data) <= INLINE_BYTES or not version:
                    typed[channel] = [type_, bytes(data)]
                else:
                    refers[channel] = version
                    new.append([channel, version, type_])
                    blobs.append(bytes(data))
                    run.stored_blobs.add(key)
        body = {"checkpoint": {**checkpoint, "channel_values": small}, "typed": typed}
        type_, blobs[0] = self.serde.dumps_typed(body)
        self._check_size(blobs)
        header = {
            "thread_id": thread_id,
            "checkpoint_ns": ns,
            "checkpoint_id": checkpoint["id"],
            "parent_checkpoint_id": parent_id,
            "type": type_,
            "blobs": refers,
            "new": new,
            "metadata": metadata,
        }
        return header, blobs

    def _remember_writes(
        self,
        run: RunCheckpoints,
        conf: dict[str, Any],
        writes: Sequence[tuple[str, Any]],
        task_id: str,
        task_path: str,
    ) -> None:
        if conf["thread_id"] != run.thread_id:
            return
        ns = conf.get("checkpoint_ns", "")
        if not ns:
            run.newest = None
        saved = run.last.get(ns)
        if saved is None or saved.checkpoint["id"] != conf["checkpoint_id"]:
            return
        for position, (channel, value) in enumerate(writes):
            key = (task_id, WRITES_IDX_MAP.get(channel, position))
            if key[1] < 0 or key not in saved.writes:
                saved.writes[key] = (task_id, channel, value, task_path)

    def _check_size(self, blobs: list[bytes]) -> None:
        size = sum(map(len, blobs))
        if size > self._max_bytes:
            raise CheckpointTooLarge(f"checkpoint of {size} bytes: the limit is {self._max_bytes} bytes")

    # Reading

    async def aget_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        return await _awaited(self._get(config))

    def get_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        return _blocking(self._get(config))

    def _get(self, config: RunnableConfig) -> Steps[CheckpointTuple | None]:
        run = current_run.get()
        is_known, known = self._from_memory(run, config)
        if is_known:
            return known
        storage = run.storage_of(addressed_by(config)["thread_id"])
        loaded = self._one(run, (yield storage, frames.ASK, tuple_question(config), []))
        if loaded is not None and run.times is not None:
            run.times.continue_from(loaded.checkpoint)
        return loaded

    async def alist(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> AsyncIterator[CheckpointTuple]:
        run = current_run.get()
        question = list_question(run, config, filter, before, limit)
        while question is not None:
            page, question = await _awaited(self._page(run, question))
            for item in page:
                yield item

    def list(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> Iterator[CheckpointTuple]:
        run = current_run.get()
        question = list_question(run, config, filter, before, limit)
        while question is not None:
            page, question = _blocking(self._page(run, question))
            yield from page

    def _page(
        self, run: RunCheckpoints, question: Header
    ) -> Steps[tuple[Iterator[CheckpointTuple], Header | None]]:
        """Return the checkpoints of one page, and the question for the next page; None after the last."""
        parts = yield run.storage_of(question["thread_id"]), frames.ASK, question, []
        return self._many(run, parts), next_page(question, parts)

    def _from_memory(
        self, run: RunCheckpoints, config: RunnableConfig
    ) -> tuple[bool, CheckpointTuple | None]:
        """Return `(is_known, answer)`: whether the answer is known without asking the runner, and the answer."""
        conf = addressed_by(config)
        if conf.get("thread_id") != run.thread_id:
            return False, None
        ns, checkpoint_id = conf.get("checkpoint_ns", ""), conf.get("checkpoint_id")
        saved = run.last.get(ns)
        if saved is not None:
            if run.is_over and checkpoint_id in (None, saved.checkpoint["id"]):
                return True, as_tuple(run.thread_id, ns, saved)
            return False, None
        if run.is_fresh and not checkpoint_id:
            return True, None
        if run.newest is not None and not ns:
            newest = self._one(run, run.newest)
            if not checkpoint_id or (newest and newest.checkpoint["id"] == checkpoint_id):
                return True, newest
        return False, None

    async def aget_delta_channel_history(
        self, *, config: RunnableConfig, channels: Sequence[str]
    ) -> dict[str, Any]:
        return await _awaited(self._delta_history(config, channels))

    def get_delta_channel_history(self, *, config: RunnableConfig, channels: Sequence[str]) -> dict[str, Any]:
        return _blocking(self._delta_history(config, channels))

    def _delta_history(self, config: RunnableConfig, channels: Sequence[str]) -> Steps[dict[str, Any]]:
        """Collect the writes and values of channels in a checkpoint's ancestors, a page of ancestors per question."""
        run, conf = current_run.get(), addressed_by(config)
        place = conf["thread_id"], conf.get("checkpoint_ns", "")
        storage = run.storage_of(conf["thread_id"])
        history = DeltaHistory(channels)
        records = {} if run.records is None else run.records
        is_known, target = self._from_memory(run, config)
        if is_known:
            parent = addressed_by(target.parent_config if target else None)
            id = parent.get("checkpoint_id")
        else:
            record = yield from _read(storage, records, place, conf.get("checkpoint_id"), channels)
            id = record.parent_id if record else None
        while id and history.open:
            ancestor = yield from _read(storage, records, place, id, channels)
            if ancestor is None:
                break
            history.take(ancestor, self.serde.loads_typed)
            id = ancestor.parent_id
        return history.result()

    def _one(self, run: RunCheckpoints, parts: Sequence[bytes]) -> CheckpointTuple | None:
        head = Storage.head(parts)
        return self._decode(run, Record.read(head, iter(parts[1:]))) if head.get("found") else None

    def _many(self, run: RunCheckpoints, parts: Sequence[bytes]) -> Iterator[CheckpointTuple]:
        records = read_all(Storage.head(parts)["items"], iter(parts[1:]))
        if run.records is not None:
            run.records |= {record.key: record for record in records}
        for record in records:
            yield self._decode(run, record)

    def _decode(self, run: RunCheckpoints, record: Record) -> CheckpointTuple:
        head, load = record.head, self.serde.loads_typed
        thread_id, ns = head["thread_id"], head["checkpoint_ns"]
        body = load((head["type"], record.data))
        checkpoint: Checkpoint = body["checkpoint"]
        values = checkpoint["channel_values"]
        for channel, (type_, data) in body["typed"].items():
            values[channel] = load((type_, data))
        for (channel, version, type_), data in zip(head["blobs"], record.blobs, strict=True):
            values[channel] = load((type_, data))
            run.stored_blobs.add((thread_id, ns, channel, version))
        writes = [
            (task_id, channel, load((type_, data)))
            for (task_id, channel, type_), data in zip(head["writes"], record.writes, strict=True)
        ]
        conf = {"thread_id": thread_id, "checkpoint_ns": ns}
        parent_id = head["parent_checkpoint_id"]
        return CheckpointTuple(
            config_of(conf, head["checkpoint_id"]),
            checkpoint,
            head["metadata"],
            config_of(conf, parent_id) if parent_id else None,
            writes,
        )

    # Removing, copying

    async def adelete_thread(self, thread_id: str) -> None:
        await _awaited(_change({"op": "delete_thread", "thread_id": thread_id}))

    def delete_thread(self, thread_id: str) -> None:
        _blocking(_change({"op": "delete_thread", "thread_id": thread_id}))

    async def adelete_for_runs(self, run_ids: Sequence[str]) -> None:
        await _awaited(_change({"op": "delete_for_runs", "run_ids": [*run_ids]}))

    def delete_for_runs(self, run_ids: Sequence[str]) -> None:
        _blocking(_change({"op": "delete_for_runs", "run_ids": [*run_ids]}))

    async def acopy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        await _awaited(_change({"op": "copy_thread", "source": source_thread_id, "target": target_thread_id}))

    def copy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        _blocking(_change({"op": "copy_thread", "source": source_thread_id, "target": target_thread_id}))

    async def aprune(self, thread_ids: Sequence[str], *, strategy: str = "keep_latest") -> None:
        await _awaited(_change({"op": "prune", "thread_ids": [*thread_ids], "strategy": strategy}))

    def prune(self, thread_ids: Sequence[str], *, strategy: str = "keep_latest") -> None:
        _blocking(_change({"op": "prune", "thread_ids": [*thread_ids], "strategy": strategy}))

    def get_next_version(self, current: str | None, channel: None) -> str:
        """Return the next version: text that sorts after the current one.

        It ends with random digits, because two forks of one checkpoint must not share a version.
        """
        number = 0 if current is None else int(str(current).split(".")[0])
        return f"{number + 1:010}.{random.getrandbits(40):010x}"


async def _awaited(steps: Steps[T]) -> T:
    """Take the steps of a method, awaiting the storage's answers."""
    answer: list[bytes] | None = None
    while True:
        try:
            storage, kind, header, blobs = steps.send(answer)
        except StopIteration as end:
            return end.value
        answer = await storage.ask(kind, header, blobs)


def _blocking(steps: Steps[T]) -> T:
    """Take the steps of a method, blocking until the storage answers."""
    answer: list[bytes] | None = None
    while True:
        try:
            storage, kind, header, blobs = steps.send(answer)
        except StopIteration as end:
            return end.value
        answer = storage.ask_blocking(kind, header, blobs)


def _change(question: Header) -> Steps[None]:
    """Remove or copy stored checkpoints. Raises StorageFailed if the runner refuses."""
    run = current_run.get()
    run.stored_blobs.clear()
    storage = run.storage_of(question.get("thread_id", run.thread_id))
    storage.head((yield storage, frames.ASK, question, []))


def _read(
    storage: Storage,
    records: Records,
    place: tuple[str, str],
    checkpoint_id: str | None,
    channels: Collection[str],
) -> Steps[Record | None]:
    """Return the record of a checkpoint (None: the newest) with these channels.

    Asks the storage for it and its ancestors unless `records` has it.
    """
    record = records.get((*place, checkpoint_id)) if checkpoint_id else None
    if record is not None and record.has(channels):
        return record
    needed = frozenset(channels).union((record and record.channels) or ())
    parts = yield storage, frames.ASK, ancestors_question(place, checkpoint_id, needed), []
    fetched = read_all(Storage.head(parts)["items"], iter(parts[1:]), needed)
    for one in fetched:
        known = records.get(one.key)
        if known is None or not known.has(needed):
            records[one.key] = one
    return fetched[0] if fetched else None


def _is_small(value: Any) -> bool:
    kind = type(value)
    return value is None or kind is bool or kind is int or kind is float or (kind is str and len(value) < 128)
