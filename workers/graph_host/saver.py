"""The checkpoint saver graphs are given: it serialises, and leaves the storing to the runner.

One saver serves every graph and run of the host; which run a call belongs to is known by context. A
checkpoint leaves as one frame: small channel values inside its data, large ones as blobs by (channel,
version), and only those that are not stored yet. Runs on a temporary thread keep theirs in memory.

The rest of the host relies on this: an ASK is answered after the CHECKPOINT and WRITES frames that this
run sent before it are stored.
"""

from __future__ import annotations

import random
import sys
from collections.abc import AsyncIterator, Collection, Iterator, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import (
    WRITES_IDX_MAP,
    BaseCheckpointSaver,
    ChannelVersions,
    Checkpoint,
    CheckpointMetadata,
    CheckpointTuple,
    copy_checkpoint,
)
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer

from . import frames
from .serialization import text_of
from .storage import MemoryStorage, Storage

# A serialised value up to this size is cheaper inside the checkpoint than as a row of its own.
INLINE_BYTES = 512
PAGE = 50


class CheckpointTooLarge(Exception):
    """A checkpoint exceeds the limit."""


@dataclass
class Saved:
    """The newest checkpoint a run has put in one namespace, as the objects themselves."""

    checkpoint: Checkpoint
    metadata: dict[str, Any]
    parent_id: str | None
    writes: dict[tuple[str, int], tuple[str, str, Any, str]] = field(default_factory=dict)


@dataclass
class RunCheckpoints:
    """What the saver knows about one run."""

    thread_id: str
    storage: Storage
    metadata: dict[str, Any] = field(default_factory=dict)
    waits: bool = False  # durability sync: a put returns when it is stored
    is_fresh: bool = False  # the thread has no checkpoint at all
    skips_root: bool = False  # nobody reads the root's checkpoints before the run is over
    newest: list[bytes] | None = None  # the thread's newest stored checkpoint, until we add to it
    last: dict[str, Saved] = field(default_factory=dict)
    stored_blobs: set[tuple[str, str, str, str]] = field(default_factory=set)
    is_over: bool = False  # the graph has returned: what is in `last` changes no more
    keeps_foreign: bool = False  # other threads' checkpoints are stored like our own
    foreign: dict[str, MemoryStorage] = field(default_factory=dict)

    def storage_of(self, thread_id: str) -> Storage:
        """Where a thread's checkpoints are.

        A node may invoke another graph under a thread id of its own making. There is no such thread
        here: its checkpoints live as long as the run.
        """
        if thread_id == self.thread_id or self.keeps_foreign:
            return self.storage
        return self.foreign.setdefault(thread_id, MemoryStorage())


current_run: ContextVar[RunCheckpoints] = ContextVar("current_run")


class HostSaver(BaseCheckpointSaver[str]):
    """Saves the checkpoints of whichever run is current."""

    def __init__(self, allowed: Collection[tuple[str, ...]] = (), *, max_bytes: int = 32 << 20) -> None:
        super().__init__(serde=_serializer(allowed))
        self._allowed = set(allowed)
        self._max_bytes = max_bytes

    def with_allowlist(self, extra_allowlist: Collection[tuple[str, ...]]) -> HostSaver:
        """Allow these types too. langgraph asks at each run: one saver stays, only new types cost."""
        if not self._allowed.issuperset(extra_allowlist):
            self._allowed.update(extra_allowlist)
            self.serde = _serializer(self._allowed)
        return self

    # Writing

    async def aput(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        run = current_run.get()
        frame = self._put(run, config, checkpoint, metadata, new_versions)
        storage = run.storage_of(config["configurable"]["thread_id"])
        if frame and run.waits:
            await storage.ask(frames.CHECKPOINT, *frame)
        elif frame:
            storage.send(frames.CHECKPOINT, *frame)
        return _config(config["configurable"], checkpoint["id"])

    def put(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        run = current_run.get()
        frame = self._put(run, config, checkpoint, metadata, new_versions)
        storage = run.storage_of(config["configurable"]["thread_id"])
        if frame and run.waits:
            storage.ask_blocking(frames.CHECKPOINT, *frame)
        elif frame:
            storage.send(frames.CHECKPOINT, *frame)
        return _config(config["configurable"], checkpoint["id"])

    async def aput_writes(
        self, config: RunnableConfig, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str = ""
    ) -> None:
        self.put_writes(config, writes, task_id, task_path)

    def put_writes(
        self, config: RunnableConfig, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str = ""
    ) -> None:
        run = current_run.get()
        conf = config["configurable"]
        ns = conf.get("checkpoint_ns", "")
        self._remember_writes(run, conf, writes, task_id, task_path)
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

    def _put(
        self,
        run: RunCheckpoints,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> tuple[dict[str, Any], list[bytes]] | None:
        """Remember the checkpoint, and give the frame to send, if any."""
        conf = config["configurable"]
        ns = conf.get("checkpoint_ns", "")
        parent_id = conf.get("checkpoint_id")
        everything: dict[str, Any] = {**run.metadata, **metadata}
        everything.pop("writes", None)
        if conf["thread_id"] == run.thread_id:
            run.last[ns] = Saved(checkpoint, everything, parent_id)
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
            if key in run.stored_blobs and channel not in new_versions:
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
        run = current_run.get()
        known, found = self._from_memory(run, config)
        if known:
            return found
        storage = run.storage_of(config["configurable"]["thread_id"])
        return self._one(run, await storage.ask(frames.ASK, _question(config), []))

    def get_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        run = current_run.get()
        known, found = self._from_memory(run, config)
        if known:
            return found
        storage = run.storage_of(config["configurable"]["thread_id"])
        return self._one(run, storage.ask_blocking(frames.ASK, _question(config), []))

    async def alist(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> AsyncIterator[CheckpointTuple]:
        run = current_run.get()
        question: dict[str, Any] | None = _list_question(run, config, filter, before, limit)
        while question is not None:
            parts = await run.storage_of(question["thread_id"]).ask(frames.ASK, question, [])
            for item in self._many(run, parts):
                yield item
            question = _next_page(question, parts)

    def list(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> Iterator[CheckpointTuple]:
        run = current_run.get()
        question: dict[str, Any] | None = _list_question(run, config, filter, before, limit)
        while question is not None:
            parts = run.storage_of(question["thread_id"]).ask_blocking(frames.ASK, question, [])
            yield from self._many(run, parts)
            question = _next_page(question, parts)

    def _from_memory(
        self, run: RunCheckpoints, config: RunnableConfig
    ) -> tuple[bool, CheckpointTuple | None]:
        """Whether the answer is known without asking, and the answer."""
        conf = config["configurable"]
        if conf.get("thread_id") != run.thread_id:
            return False, None
        ns, wanted = conf.get("checkpoint_ns", ""), conf.get("checkpoint_id")
        saved = run.last.get(ns)
        if saved is not None:
            if run.is_over and wanted in (None, saved.checkpoint["id"]):
                return True, _as_tuple(run.thread_id, ns, saved)
            return False, None
        if run.is_fresh and not wanted:
            return True, None
        if run.newest is not None and not ns:
            found = self._one(run, run.newest)
            if not wanted or (found and found.checkpoint["id"] == wanted):
                return True, found
        return False, None

    def _one(self, run: RunCheckpoints, parts: Sequence[bytes]) -> CheckpointTuple | None:
        head = Storage.head(parts)
        return self._decode(run, head, iter(parts[1:])) if head.get("found") else None

    def _many(self, run: RunCheckpoints, parts: Sequence[bytes]) -> Iterator[CheckpointTuple]:
        blobs = iter(parts[1:])
        for head in Storage.head(parts)["items"]:
            yield self._decode(run, head, blobs)

    def _decode(self, run: RunCheckpoints, head: dict[str, Any], blobs: Iterator[bytes]) -> CheckpointTuple:
        thread_id, ns = head["thread_id"], head["checkpoint_ns"]
        load = self.serde.loads_typed
        body = load((head["type"], next(blobs)))
        checkpoint: Checkpoint = body["checkpoint"]
        values = checkpoint["channel_values"]
        for channel, (type_, data) in body["typed"].items():
            values[channel] = load((type_, data))
        for channel, version, type_ in head["blobs"]:
            values[channel] = load((type_, next(blobs)))
            run.stored_blobs.add((thread_id, ns, channel, version))
        writes = [(task_id, channel, load((type_, next(blobs)))) for task_id, channel, type_ in head["writes"]]
        conf = {"thread_id": thread_id, "checkpoint_ns": ns}
        parent_id = head["parent_checkpoint_id"]
        return CheckpointTuple(
            _config(conf, head["checkpoint_id"]),
            checkpoint,
            head["metadata"],
            _config(conf, parent_id) if parent_id else None,
            writes,
        )

    # Removing, copying

    async def _do(self, question: dict[str, Any]) -> None:
        run = current_run.get()
        run.stored_blobs.clear()
        storage = run.storage_of(question.get("thread_id", run.thread_id))
        storage.head(await storage.ask(frames.ASK, question, []))

    def _do_blocking(self, question: dict[str, Any]) -> None:
        run = current_run.get()
        run.stored_blobs.clear()
        storage = run.storage_of(question.get("thread_id", run.thread_id))
        storage.head(storage.ask_blocking(frames.ASK, question, []))

    async def adelete_thread(self, thread_id: str) -> None:
        await self._do({"op": "delete_thread", "thread_id": thread_id})

    def delete_thread(self, thread_id: str) -> None:
        self._do_blocking({"op": "delete_thread", "thread_id": thread_id})

    async def adelete_for_runs(self, run_ids: Sequence[str]) -> None:
        await self._do({"op": "delete_for_runs", "run_ids": [*run_ids]})

    def delete_for_runs(self, run_ids: Sequence[str]) -> None:
        self._do_blocking({"op": "delete_for_runs", "run_ids": [*run_ids]})

    async def acopy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        await self._do({"op": "copy_thread", "source": source_thread_id, "target": target_thread_id})

    def copy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        self._do_blocking({"op": "copy_thread", "source": source_thread_id, "target": target_thread_id})

    async def aprune(self, thread_ids: Sequence[str], *, strategy: str = "keep_latest") -> None:
        await self._do({"op": "prune", "thread_ids": [*thread_ids], "strategy": strategy})

    def prune(self, thread_ids: Sequence[str], *, strategy: str = "keep_latest") -> None:
        self._do_blocking({"op": "prune", "thread_ids": [*thread_ids], "strategy": strategy})

    def get_next_version(self, current: str | None, channel: None) -> str:
        """Ordered text, with a random end: two forks of one checkpoint must not share a version."""
        number = 0 if current is None else int(str(current).split(".")[0])
        return f"{number + 1:010}.{random.getrandbits(40):010x}"


def _serializer(allowed: Collection[tuple[str, ...]]) -> JsonPlusSerializer:
    return JsonPlusSerializer(pickle_fallback=False, allowed_msgpack_modules=list(allowed))


def _is_small(value: Any) -> bool:
    kind = type(value)
    return value is None or kind is bool or kind is int or kind is float or (kind is str and len(value) < 128)


def _config(conf: Any, checkpoint_id: str) -> RunnableConfig:
    return {
        "configurable": {
            "thread_id": conf["thread_id"],
            "checkpoint_ns": conf.get("checkpoint_ns", ""),
            "checkpoint_id": checkpoint_id,
        }
    }


def _as_tuple(thread_id: str, ns: str, saved: Saved) -> CheckpointTuple:
    conf = {"thread_id": thread_id, "checkpoint_ns": ns}
    ordered = sorted(saved.writes.items(), key=lambda item: (item[1][3], *item[0]))
    writes = [(task_id, channel, _as_stored(value)) for _, (task_id, channel, value, _) in ordered]
    return CheckpointTuple(
        _config(conf, saved.checkpoint["id"]),
        copy_checkpoint(saved.checkpoint),
        saved.metadata,  # type: ignore[arg-type]
        _config(conf, saved.parent_id) if saved.parent_id else None,
        writes,
    )


def _as_stored(value: Any) -> Any:
    """An exception is stored as its repr; so it reads the same before and after."""
    return text_of(value, repr) if isinstance(value, BaseException) else value


def _question(config: RunnableConfig) -> dict[str, Any]:
    conf = config["configurable"]
    return {
        "op": "get_tuple",
        "thread_id": conf["thread_id"],
        "checkpoint_ns": conf.get("checkpoint_ns", ""),
        "checkpoint_id": conf.get("checkpoint_id"),
    }


def _list_question(
    run: RunCheckpoints,
    config: RunnableConfig | None,
    filter: dict[str, Any] | None,
    before: RunnableConfig | None,
    limit: int | None,
) -> dict[str, Any] | None:
    if limit is not None and limit <= 0:
        return None
    conf = config["configurable"] if config else {}
    return {
        "op": "list",
        "thread_id": conf.get("thread_id", run.thread_id),
        "checkpoint_ns": conf.get("checkpoint_ns"),
        "checkpoint_id": conf.get("checkpoint_id"),
        "before": before["configurable"].get("checkpoint_id") if before else None,
        "filter": filter or {},
        "limit": PAGE if limit is None else min(limit, PAGE),
        "wanted": limit,
    }


def _next_page(question: dict[str, Any], parts: Sequence[bytes]) -> dict[str, Any] | None:
    """The question for what comes after this page; None when there is no more, or no more is wanted."""
    head = Storage.head(parts)
    items = head["items"]
    wanted = question["wanted"]
    if wanted is not None:
        wanted -= len(items)
    if not items or not head["more"] or wanted == 0:
        return None
    limit = PAGE if wanted is None else min(wanted, PAGE)
    return {**question, "before": items[-1]["checkpoint_id"], "limit": limit, "wanted": wanted}


def project_types(directories: Sequence[str]) -> set[tuple[str, str]]:
    """Every class a loaded module of the project defines: what its own checkpoints may hold."""
    found: set[tuple[str, str]] = set()
    roots = tuple(directory.rstrip("/") + "/" for directory in directories)
    for name, module in list(sys.modules.items()):
        path = getattr(module, "__file__", None) or ""
        if path.startswith(roots) and "/site-packages/" not in path:
            for value in list(vars(module).values()):
                if isinstance(value, type) and value.__module__ == name:
                    found.add((name, value.__name__))
    return found
