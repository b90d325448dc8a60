"""Durable threads for the bare graphs: checkpoints in memory, and one PostgreSQL statement per run.

This is the least that a run must cost for its thread to survive the process: the lower bound for a durable server.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import psycopg
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import ChannelVersions, Checkpoint, CheckpointMetadata
from langgraph.checkpoint.memory import InMemorySaver

TABLE = """
CREATE TABLE checkpoint (
    thread_id text, checkpoint_id text, task_id text, type text, value bytea,
    PRIMARY KEY (thread_id, checkpoint_id, task_id)
)
"""
INSERT = """
INSERT INTO checkpoint SELECT * FROM unnest(%s::text[], %s::text[], %s::text[], %s::text[], %s::bytea[])
ON CONFLICT (thread_id, checkpoint_id, task_id) DO UPDATE SET type = excluded.type, value = excluded.value
"""

Kept = tuple[str, str, str, str, bytes]  # a row of the table


class LeanSaver(InMemorySaver):
    """A checkpointer that reads from memory and buffers writes until `commit`."""

    def __init__(self) -> None:
        super().__init__()
        self._waiting: dict[str, dict[tuple[str, str], Kept]] = defaultdict(dict)
        self._connection: psycopg.AsyncConnection[Any] | None = None

    async def open(self, url: str) -> None:
        self._connection = await psycopg.AsyncConnection.connect(url, autocommit=True)
        await self._connection.execute(TABLE)

    async def aclose(self) -> None:
        if self._connection is not None:
            await self._connection.close()

    def put(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        self._keep(config.get("configurable", {})["thread_id"], checkpoint["id"], "", checkpoint)
        return super().put(config, checkpoint, metadata, new_versions)

    def put_writes(
        self, config: RunnableConfig, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str = ""
    ) -> None:
        place = config.get("configurable", {})
        self._keep(place["thread_id"], place["checkpoint_id"], task_id, list(writes))
        super().put_writes(config, writes, task_id, task_path)

    def _keep(self, thread_id: str, checkpoint_id: str, task_id: str, value: Any) -> None:
        kind, data = self.serde.dumps_typed(value)
        self._waiting[thread_id][checkpoint_id, task_id] = (thread_id, checkpoint_id, task_id, kind, data)

    async def commit(self, thread_id: str) -> None:
        """Write the buffered checkpoints of a thread in one statement."""
        assert self._connection is not None
        if not (rows := self._waiting.pop(thread_id, {}).values()):
            return
        await self._connection.execute(
            INSERT, [list(column) for column in zip(*rows, strict=True)], prepare=True
        )
