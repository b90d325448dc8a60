"""The store of graph code (`runtime.store`, `get_store()`). Each batch of operations is one question to the runner."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any

from langgraph.store.base import (
    BaseStore,
    GetOp,
    Item,
    ListNamespacesOp,
    Op,
    PutOp,
    Result,
    SearchItem,
    SearchOp,
    TTLConfig,
)

from . import frames
from .connection import Connection, Document
from .meaning import MeaningIndex
from .output import current_run_id
from .serialization import dumps, loads


class StoreFailed(Exception):
    """The store refuses an operation, or cannot be reached."""


class HostStore(BaseStore):
    """Reads and writes the deployment's store on behalf of the current run or query."""

    supports_ttl = True

    def __init__(
        self, connection: Connection, ttl: TTLConfig | None = None, index: MeaningIndex | None = None
    ) -> None:
        self._connection = connection
        self._index = index
        self.ttl_config = ttl

    async def abatch(self, ops: Iterable[Op]) -> list[Result]:
        asked = list(ops)
        described = [_described(op) for op in asked]
        if self._index is not None:
            await self._index.aadd_vectors(described)
        parts = await self._connection.ask(frames.ASK, _asker(), _document(described), [])
        return _results(asked, parts)

    def batch(self, ops: Iterable[Op]) -> list[Result]:
        asked = list(ops)
        described = [_described(op) for op in asked]
        if self._index is not None:
            self._index.add_vectors(described)
        parts = self._connection.ask_blocking(frames.ASK, _asker(), _document(described), [])
        return _results(asked, parts)


def _asker() -> bytes:
    id = current_run_id.get()
    if id == frames.NOBODY:
        raise StoreFailed("the store can only be used while a graph runs")
    return id


def _document(described: Sequence[dict[str, Any]]) -> Document:
    return lambda number: dumps({"ask": number, "op": "store", "ops": described})


def _described(op: Op) -> dict[str, Any]:
    if isinstance(op, GetOp):
        return {"op": "get", "namespace": op.namespace, "key": op.key, "refresh": op.refresh_ttl}
    if isinstance(op, PutOp):
        return {
            "op": "put",
            "namespace": op.namespace,
            "key": op.key,
            "value": op.value,
            "ttl": op.ttl,
            "index": op.index,
        }
    if isinstance(op, SearchOp):
        return {
            "op": "search",
            "namespace": op.namespace_prefix,
            "filter": op.filter,
            "limit": op.limit,
            "offset": op.offset,
            "refresh": op.refresh_ttl,
            "query": op.query,
            "near": None,
        }
    if isinstance(op, ListNamespacesOp):
        matches = [(match.match_type, match.path) for match in op.match_conditions or ()]
        return {
            "op": "namespaces",
            "matches": matches,
            "max_depth": op.max_depth,
            "limit": op.limit,
            "offset": op.offset,
        }
    raise ValueError(f"Unknown operation type: {type(op)}")


def _results(ops: Sequence[Op], parts: Sequence[bytes]) -> list[Result]:
    answer = loads(parts[0])
    if isinstance(answer, dict):
        raise StoreFailed(answer["error"])
    return [_result(op, found) for op, found in zip(ops, answer, strict=True)]


def _result(op: Op, found: Any) -> Result:
    if isinstance(op, GetOp):
        return None if found is None else Item(**_fields(found))
    if isinstance(op, SearchOp):
        return [SearchItem(**_fields(item), score=item["score"]) for item in found]
    if isinstance(op, ListNamespacesOp):
        return [tuple(namespace) for namespace in found]
    return None


def _fields(found: dict[str, Any]) -> dict[str, Any]:
    times = {name: datetime.fromisoformat(found[name]) for name in ("created_at", "updated_at")}
    return {"namespace": tuple(found["namespace"]), "key": found["key"], "value": found["value"], **times}
