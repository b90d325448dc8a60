"""The store of graph code (`runtime.store`, `get_store()`). Each batch of operations is one question to the runner.

With a semantic index, the project's embedding function adds vectors to the operations before they are sent.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

from langchain_core.embeddings import Embeddings
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
    ensure_embeddings,
    get_text_at_path,
)

from . import frames
from .connection import Connection, Document
from .loader import LoadFailed, load_attribute
from .masking import masked
from .output import current_run_id, short_traceback
from .replays.overlay import current_overlay
from .serialization import dumps, loads

MAX_TEXTS = 1_000  # of one batch
MAX_REASON = 500
WHOLE = ["$"]  # the path of the whole value
LACKS_KEY = re.compile(r"api[_ -]?key|credential|access[_ -]?token", re.IGNORECASE)


class StoreFailed(Exception):
    """The store refuses an operation, or cannot be reached."""


class HostStore(BaseStore):
    """Reads and writes the deployment's store on behalf of the current run or query. A replay keeps its writes."""

    supports_ttl = True

    def __init__(
        self, connection: Connection, ttl: TTLConfig | None = None, index: SemanticIndex | None = None
    ) -> None:
        self._connection = connection
        self._index = index
        self.ttl_config = ttl

    async def abatch(self, ops: Iterable[Op]) -> list[Result]:
        requested = list(ops)
        described = [_described(op) for op in requested]
        if self._index is not None:
            await self._index.aadd_vectors(described)
        sent = _sent(described)
        parts = await self._connection.ask(frames.ASK, _caller(), _document(sent), []) if sent else []
        return _results(requested, described, parts)

    def batch(self, ops: Iterable[Op]) -> list[Result]:
        requested = list(ops)
        described = [_described(op) for op in requested]
        if self._index is not None:
            self._index.add_vectors(described)
        sent = _sent(described)
        parts = self._connection.ask_blocking(frames.ASK, _caller(), _document(sent), []) if sent else []
        return _results(requested, described, parts)


def _caller() -> bytes:
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


def _sent(described: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the operations to send to the runner: in a replay, only the reads."""
    overlay = current_overlay.get()
    return described if overlay is None else overlay.reads(described)


def _results(ops: Sequence[Op], described: Sequence[dict[str, Any]], parts: Sequence[bytes]) -> list[Result]:
    answer = loads(parts[0]) if parts else []
    if isinstance(answer, dict):
        raise StoreFailed(answer["error"])
    if (overlay := current_overlay.get()) is not None:
        answer = overlay.answers(described, answer)
    return [_result(op, result) for op, result in zip(ops, answer, strict=True)]


def _result(op: Op, answer: Any) -> Result:
    if isinstance(op, GetOp):
        return None if answer is None else Item(**_fields(answer))
    if isinstance(op, SearchOp):
        return [SearchItem(**_fields(item), score=item["score"]) for item in answer]
    if isinstance(op, ListNamespacesOp):
        return [tuple(namespace) for namespace in answer]
    return None


def _fields(item: dict[str, Any]) -> dict[str, Any]:
    times = {name: datetime.fromisoformat(item[name]) for name in ("created_at", "updated_at")}
    return {"namespace": tuple(item["namespace"]), "key": item["key"], "value": item["value"], **times}


class SemanticIndex:
    """Adds vectors to described store operations: `vectors` to puts, `near` to searches with a query.

    A put also gets `indexed_by`, the digest of the index configuration. Items with another digest are indexed again.
    """

    def __init__(self, embeddings: Embeddings, config: Mapping[str, Any]) -> None:
        self._embeddings = embeddings
        self._dims = config["dims"]
        self._fields = config.get("fields") or WHOLE
        self._digest = digest(config)

    async def aadd_vectors(self, ops: list[dict[str, Any]]) -> None:
        texts = self._texts(ops)
        self._add(
            ops, await self._embeddings.aembed_documents([text for _, _, text in texts]) if texts else []
        )
        for op in ops:
            if op.get("query"):
                op["near"] = self._checked(await self._embeddings.aembed_query(op["query"]))

    def add_vectors(self, ops: list[dict[str, Any]]) -> None:
        texts = self._texts(ops)
        self._add(ops, self._embeddings.embed_documents([text for _, _, text in texts]) if texts else [])
        for op in ops:
            if op.get("query"):
                op["near"] = self._checked(self._embeddings.embed_query(op["query"]))

    def _texts(self, ops: list[dict[str, Any]]) -> list[tuple[int, str, str]]:
        """Return the texts of all puts as `(position of the operation, field path, text)`."""
        texts = [
            (n, path, text)
            for n, op in enumerate(ops)
            if op["op"] == "put" and op.get("value") is not None and op.get("index") is not False
            for path in (self._fields if op.get("index") is None else op["index"])
            for text in get_text_at_path(op["value"], path)
        ]
        if len(texts) > MAX_TEXTS:
            raise ValueError(f"{len(texts)} texts to embed at once: the limit is {MAX_TEXTS}")
        return texts

    def _add(self, ops: list[dict[str, Any]], embeddings: list[list[float]]) -> None:
        for op in ops:
            if op["op"] == "put":
                op |= {"vectors": [], "indexed_by": self._digest}
        for (n, path, _), embedding in zip(self._texts(ops), embeddings, strict=True):
            ops[n]["vectors"].append((path, self._checked(embedding)))

    def _checked(self, embedding: list[float]) -> list[float]:
        if len(embedding) != self._dims:
            raise ValueError(
                f"an embedding of {len(embedding)} dimensions: store.index.dims says {self._dims}"
            )
        numbers = [float(number) for number in embedding]
        if not all(map(math.isfinite, numbers)):
            raise ValueError("an embedding with a number that is not finite")
        return numbers


def load_index(config: dict[str, Any]) -> SemanticIndex:
    """Return the index of a project's configuration. Raises LoadFailed."""
    embed = config["embed"]
    is_project_code = "/" in embed or ".py:" in embed
    try:
        function = load_attribute("store.index.embed", embed) if is_project_code else embed
        embeddings = ensure_embeddings(function)
    except LoadFailed:
        raise
    except Exception as error:  # any error of the project's module or the provider's package
        raise LoadFailed(
            f"store.index.embed: {embed} {_reason(error, is_project_code=is_project_code)}"
        ) from error
    return SemanticIndex(embeddings, config)


def digest(config: Mapping[str, Any]) -> str:
    """Return the digest of an index configuration. `shared/store_vectors.py` computes the same digest."""
    return hashlib.sha256(json.dumps(config, sort_keys=True).encode()).hexdigest()[:16]


def _reason(error: Exception, *, is_project_code: bool) -> str:
    """Return why the embeddings cannot be used: a reason, with a traceback if the project's own code failed."""
    reason = " ".join(masked(str(error)).split())[:MAX_REASON] or type(error).__name__
    if LACKS_KEY.search(reason):
        return f"needs its key when the project is built, among the deployment's variables: {reason}"
    if is_project_code:
        return f"cannot be used\n{short_traceback(error)}"
    return f"cannot be used: {reason}"
