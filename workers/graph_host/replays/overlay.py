"""The store of a replayed run: reads see the deployment's store, writes are kept in memory until the run ends.

`HostStore` sends the reads of a batch to the runner and passes the answers to `StoreOverlay`, which adds the run's own
writes to them. Reads see the state before the batch, as in the deployment's store.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from contextvars import ContextVar
from datetime import UTC, datetime
from math import sqrt
from typing import Any

from ..serialization import dumps, loads

Namespace = tuple[str, ...]
Op = Mapping[str, Any]  # a described operation, as `HostStore` sends it


class StoreOverlay:
    """The items that one run has written: None for a deleted item. Several threads may use it at the same time."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._items: dict[tuple[Namespace, str], dict[str, Any] | None] = {}
        self._vectors: dict[tuple[Namespace, str], list[Sequence[float]]] = {}

    def reads(self, ops: Sequence[Op]) -> list[dict[str, Any]]:
        """Return the operations to send to the runner: the reads, with limits that leave room for the run's own items.

        A read must not restart the time to live of an item.
        """
        room = len(self._items)
        return [
            {
                **op,
                **({"refresh": False} if "refresh" in op else {}),
                **({"limit": op["limit"] + op["offset"] + room, "offset": 0} if "limit" in op else {}),
                **({"max_depth": None} if "max_depth" in op else {}),
            }
            for op in ops
            if op["op"] != "put"
        ]

    def answers(self, ops: Sequence[Op], stored: Sequence[Any]) -> list[Any]:
        """Return the results of all operations. `stored` are the runner's answers to the reads."""
        rest = iter(stored)
        with self._lock:
            results = [None if op["op"] == "put" else self._read(op, next(rest)) for op in ops]
            for op in ops:
                if op["op"] == "put":
                    self._put(op)
        return results

    def _read(self, op: Op, stored: Any) -> Any:
        if op["op"] == "get":
            key = tuple(op["namespace"]), op["key"]
            return self._items.get(key, stored)
        if op["op"] == "search":
            return self._search(op, stored)
        return self._namespaces(op, stored)

    def _put(self, op: Op) -> None:
        key = tuple(op["namespace"]), op["key"]
        if op["value"] is None:
            self._items[key] = None
            return
        now = datetime.now(UTC).isoformat()
        existing = self._items.get(key)
        self._vectors[key] = [vector for _, vector in op.get("vectors") or ()]
        self._items[key] = {
            "namespace": list(key[0]),
            "key": key[1],
            "value": loads(dumps(op["value"])),
            "created_at": existing["created_at"] if existing else now,
            "updated_at": now,
        }

    def _search(self, op: Op, stored: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
        """Order the items as the service does: by score, those without one last, then the last changed first."""
        prefix, near = tuple(op["namespace"]), op.get("near")
        kept = [item for item in stored if (tuple(item["namespace"]), item["key"]) not in self._items]
        added = [
            {**item, "score": _score(near, self._vectors.get(key, ()))}
            for key, item in self._items.items()
            if item is not None
            and key[0][: len(prefix)] == prefix
            and _matches(item["value"], op.get("filter") or {})
        ]
        newest = sorted(added, key=lambda item: item["updated_at"], reverse=True) + kept
        if near is not None:
            newest.sort(key=lambda item: (item["score"] is None, -(item["score"] or 0.0)))
        return newest[op["offset"] : op["offset"] + op["limit"]]

    def _namespaces(self, op: Op, stored: Sequence[Sequence[str]]) -> list[list[str]]:
        """Return the namespaces of both. One whose items this run has deleted is still listed."""
        own = {
            namespace
            for (namespace, _), item in self._items.items()
            if item is not None and all(_fits(namespace, *match) for match in op["matches"])
        }
        depth = op["max_depth"]
        listed = sorted({namespace[:depth] for namespace in (*own, *map(tuple, stored))})
        return [list(namespace) for namespace in listed[op["offset"] : op["offset"] + op["limit"]]]


def _fits(namespace: Namespace, kind: str, labels: Sequence[str]) -> bool:
    if len(namespace) < len(labels):
        return False
    part = namespace[: len(labels)] if kind == "prefix" else namespace[len(namespace) - len(labels) :]
    return all(label in ("*", own) for label, own in zip(labels, part, strict=True))


def _score(near: Sequence[float] | None, vectors: Sequence[Sequence[float]]) -> float | None:
    """Return the cosine similarity of the nearest vector."""
    if near is None:
        return None
    return max((score for vector in vectors for score in _similarity(near, vector)), default=None)


def _similarity(a: Sequence[float], b: Sequence[float]) -> Iterator[float]:
    length = sqrt(sum(x * x for x in a)) * sqrt(sum(x * x for x in b))
    if length:
        yield min(sum(x * y for x, y in zip(a, b, strict=True)) / length, 1.0)


def _matches(value: Any, filter: Mapping[str, Any]) -> bool:
    """Whether a value matches a filter, by the rules of `shared/store.py`."""
    return all(
        _compared(value.get(key) if isinstance(value, dict) else None, expected)
        for key, expected in filter.items()
    )


def _compared(value: Any, expected: Any) -> bool:
    if not isinstance(expected, Mapping):
        return _holds(value, "$eq", expected)
    if any(key.startswith("$") for key in expected):
        return all(_holds(value, operator, operand) for operator, operand in expected.items())
    return isinstance(value, dict) and _matches(value, expected)


def _holds(value: Any, operator: str, operand: Any) -> bool:
    if operator in ("$eq", "$ne"):
        return (_plain(value) == _plain(operand)) == (operator == "$eq")
    a, b = _plain(value), _plain(operand)
    if type(a) is not type(b) and not _are_numbers(a, b):
        return False
    return {"$gt": a > b, "$gte": a >= b, "$lt": a < b, "$lte": a <= b}[operator]


def _plain(value: Any) -> Any:
    return loads(dumps(value))


def _are_numbers(a: Any, b: Any) -> bool:
    return all(isinstance(value, int | float) and not isinstance(value, bool) for value in (a, b))


current_overlay: ContextVar[StoreOverlay | None] = ContextVar("current_overlay", default=None)
