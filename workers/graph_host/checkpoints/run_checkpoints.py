"""The saver's state of one run, and the questions that it sends to the runner."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import EXCLUDED_METADATA_KEYS, Checkpoint, CheckpointTuple, copy_checkpoint

from ..serialization import dumps, text_of
from .node_times import NodeTimes
from .storage import MemoryStorage, Records, Storage

PAGE = 50
# Entries of a config that address a checkpoint.
CHECKPOINT_KEYS = ("checkpoint_id", "checkpoint_ns", "checkpoint_map")

# Entries of `configurable` with the user's record. Checkpoints do not store them, nor those that LangGraph excludes.
PRIVATE = frozenset({"langgraph_auth_user", "langgraph_auth_permissions"})
# Larger entries are not stored in metadata: they are no search terms, and each checkpoint would repeat them.
MAX_ENTRY_BYTES = 4096


@dataclass
class Saved:
    """The newest checkpoint that a run has put in one namespace, as live objects."""

    checkpoint: Checkpoint
    metadata: dict[str, Any]
    parent_id: str | None
    writes: dict[tuple[str, int], tuple[str, str, Any, str]] = field(default_factory=dict)


@dataclass
class RunCheckpoints:
    """The saver's state of one run or query."""

    thread_id: str
    storage: Storage
    metadata: dict[str, Any] = field(default_factory=dict)
    waits: bool = False  # durability sync: `put` returns after the checkpoint is stored
    is_fresh: bool = False  # the thread has no checkpoint yet
    skips_root: bool = False  # the root's checkpoints are not sent: nothing reads them before the run ends
    newest: list[bytes] | None = None  # the thread's newest stored checkpoint, until this run writes
    last: dict[str, Saved] = field(default_factory=dict)
    stored_blobs: set[tuple[str, str, str, str]] = field(default_factory=set)
    is_over: bool = False  # the graph has returned, and `last` does not change any more
    ships_all: bool = False  # send all blobs of a checkpoint, including those that are stored already
    keeps_foreign: bool = False  # store checkpoints of other threads, too
    foreign: dict[str, MemoryStorage] = field(default_factory=dict)
    records: Records | None = None  # cache of records, for queries that write nothing
    times: NodeTimes | None = None  # of the nodes; None: the run keeps no spans

    def storage_of(self, thread_id: str) -> Storage:
        """Return the storage of a thread's checkpoints.

        A node may invoke another graph with a thread id of its choice. The deployment has no such thread, so its
        checkpoints are kept in memory until the run ends.
        """
        if thread_id == self.thread_id or self.keeps_foreign:
            return self.storage
        return self.foreign.setdefault(thread_id, MemoryStorage())


current_run: ContextVar[RunCheckpoints] = ContextVar("current_run")


def configured(configurable: dict[str, Any]) -> dict[str, Any]:
    """Return the entries of `configurable` that are stored in the metadata of a run's checkpoints."""
    return {name: value for name, value in configurable.items() if _is_shown(name) and _is_short(value)}


def config_metadata(config: RunnableConfig) -> dict[str, Any]:
    """Return the metadata that a graph's own config adds to a checkpoint, for example by `with_config`.

    Includes only scalars, as LangGraph's savers do, because `configurable` may contain any object.
    """
    entries = {**addressed_by(config), **(config.get("metadata") or {})}
    return {
        name: value
        for name, value in entries.items()
        if isinstance(value, str | int | float) and _is_shown(name) and _is_short(value)
    }


def _is_shown(name: str) -> bool:
    return not name.startswith("__") and name not in EXCLUDED_METADATA_KEYS and name not in PRIVATE


def _is_short(value: Any) -> bool:
    return not isinstance(value, str | list | dict) or len(dumps(value)) <= MAX_ENTRY_BYTES


def addressed_by(config: RunnableConfig | None) -> dict[str, Any]:
    """Return the `configurable` of a config, which addresses a thread or a checkpoint."""
    return (config or {}).get("configurable") or {}


def config_of(conf: Any, checkpoint_id: str) -> RunnableConfig:
    """Return the config that addresses a checkpoint."""
    return {
        "configurable": {
            "thread_id": conf["thread_id"],
            "checkpoint_ns": conf.get("checkpoint_ns", ""),
            "checkpoint_id": checkpoint_id,
        }
    }


def as_tuple(thread_id: str, ns: str, saved: Saved) -> CheckpointTuple:
    conf = {"thread_id": thread_id, "checkpoint_ns": ns}
    ordered = sorted(saved.writes.items(), key=lambda item: (item[1][3], *item[0]))
    writes = [(task_id, channel, _as_stored(value)) for _, (task_id, channel, value, _) in ordered]
    return CheckpointTuple(
        config_of(conf, saved.checkpoint["id"]),
        copy_checkpoint(saved.checkpoint),
        saved.metadata,  # type: ignore[arg-type]
        config_of(conf, saved.parent_id) if saved.parent_id else None,
        writes,
    )


def _as_stored(value: Any) -> Any:
    """Return an exception's repr, and any other value unchanged.

    Exceptions are stored as their repr, so a live checkpoint reads the same as a stored one.
    """
    return text_of(value, repr) if isinstance(value, BaseException) else value


def tuple_question(config: RunnableConfig) -> dict[str, Any]:
    conf = addressed_by(config)
    return {
        "op": "get_tuple",
        "thread_id": conf["thread_id"],
        "checkpoint_ns": conf.get("checkpoint_ns", ""),
        "checkpoint_id": conf.get("checkpoint_id"),
    }


def list_question(
    run: RunCheckpoints,
    config: RunnableConfig | None,
    filter: dict[str, Any] | None,
    before: RunnableConfig | None,
    limit: int | None,
) -> dict[str, Any] | None:
    if limit is not None and limit <= 0:
        return None
    conf = addressed_by(config)
    return {
        "op": "list",
        "thread_id": conf.get("thread_id", run.thread_id),
        "checkpoint_ns": conf.get("checkpoint_ns"),
        "checkpoint_id": conf.get("checkpoint_id"),
        "before": addressed_by(before).get("checkpoint_id"),
        "filter": filter or {},
        "limit": PAGE if limit is None else min(limit, PAGE),
        "remaining": limit,
    }


def ancestors_question(
    place: Sequence[str], checkpoint_id: str | None, channels: Collection[str]
) -> dict[str, Any]:
    thread_id, ns = place
    return {
        "op": "ancestors",
        "thread_id": thread_id,
        "checkpoint_ns": ns,
        "checkpoint_id": checkpoint_id,
        "channels": sorted(channels),
        "limit": PAGE,
    }


def next_page(question: dict[str, Any], parts: Sequence[bytes]) -> dict[str, Any] | None:
    """Return the question for the next page; None if there is none or the limit is reached."""
    head = Storage.head(parts)
    items = head["items"]
    remaining = question["remaining"]
    if remaining is not None:
        remaining -= len(items)
    if not items or not head["more"] or remaining == 0:
        return None
    limit = PAGE if remaining is None else min(remaining, PAGE)
    return {**question, "before": items[-1]["checkpoint_id"], "limit": limit, "remaining": remaining}
