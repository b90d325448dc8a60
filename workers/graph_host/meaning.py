"""The store's semantic index: embeds parts of stored values by the project's embedding function."""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Mapping
from typing import Any

from langchain_core.embeddings import Embeddings
from langgraph.store.base import ensure_embeddings, get_text_at_path

from .loader import LoadFailed, load_attribute, user_traceback
from .masking import masked

MAX_TEXTS = 1_000  # of one batch
MAX_REASON = 500
WHOLE = ["$"]  # the path of the whole value
LACKS_KEY = re.compile(r"api[_ -]?key|credential|access[_ -]?token", re.IGNORECASE)


class MeaningIndex:
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
        self._give(
            ops, await self._embeddings.aembed_documents([text for _, _, text in texts]) if texts else []
        )
        for op in ops:
            if op.get("query"):
                op["near"] = self._checked(await self._embeddings.aembed_query(op["query"]))

    def add_vectors(self, ops: list[dict[str, Any]]) -> None:
        texts = self._texts(ops)
        self._give(ops, self._embeddings.embed_documents([text for _, _, text in texts]) if texts else [])
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

    def _give(self, ops: list[dict[str, Any]], embeddings: list[list[float]]) -> None:
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


def load(config: dict[str, Any]) -> MeaningIndex:
    """Return the index of a project's configuration. Raises LoadFailed."""
    embed = config["embed"]
    is_own = "/" in embed or ".py:" in embed
    try:
        found = load_attribute("store.index.embed", embed) if is_own else embed
        embeddings = ensure_embeddings(found)
    except LoadFailed:
        raise
    except Exception as error:  # any error of the project's module or the provider's package
        raise LoadFailed(f"store.index.embed: {embed} {_why(error, is_own=is_own)}") from error
    return MeaningIndex(embeddings, config)


def digest(config: Mapping[str, Any]) -> str:
    """Return the digest of an index configuration. `shared/store_vectors.py` computes the same digest."""
    return hashlib.sha256(json.dumps(config, sort_keys=True).encode()).hexdigest()[:16]


def _why(error: Exception, *, is_own: bool) -> str:
    """Return why the embeddings cannot be used: a reason, with a traceback if the project's own code failed."""
    reason = " ".join(masked(str(error)).split())[:MAX_REASON] or type(error).__name__
    if LACKS_KEY.search(reason):
        return f"needs its key when the project is built, among the deployment's variables: {reason}"
    if is_own:
        return f"cannot be used\n{user_traceback(error)}"
    return f"cannot be used: {reason}"
