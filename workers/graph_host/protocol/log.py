"""Events of protocol v2 in a run's log, besides the classic events.

An event's name is `~` and a JSON array: method, namespace, end of the event's id ("": its number in the log), and name
of the custom event. Its data is the complete `params`, which later components pass on without decoding.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from ..serialization import dumps

Namespace = tuple[str, ...]
Send = Callable[[bytes, bytes], None]  # head and data of an EVENT frame

PROTOCOL = "protocol"  # the internal stream mode that requests these events; callers cannot use it
TOO_LARGE = "event_too_large"  # the custom event in place of one that exceeds the limit


def now() -> int:
    """Milliseconds since the epoch."""
    return time.time_ns() // 1_000_000


class ProtocolLog:
    """Writes the events of protocol v2 of one run."""

    def __init__(self, send: Send, *, max_bytes: int) -> None:
        self._send = send
        self._max_bytes = max_bytes
        self._heads: dict[tuple[str, Namespace, str | None], bytes] = {}
        self._places: dict[tuple[Namespace, str | None], bytes] = {}

    def write(
        self,
        method: str,
        ns: Namespace,
        data: bytes,
        *,
        node: str | None = None,
        id_tail: str = "",
        name: str | None = None,
        timestamp: int | None = None,
    ) -> bool:
        """Write one event. If it is too large, write a custom event in its place and return False."""
        at = b"%d" % (now() if timestamp is None else timestamp)
        params = b"".join((self._place(ns, node), at, b',"data":', data, b"}"))
        if len(params) > self._max_bytes:
            if name != TOO_LARGE:
                self._say_too_large(method, ns, len(params))
            return False
        self._send(_head(method, ns, id_tail, name) if id_tail else self._head(method, ns, name), params)
        return True

    def _head(self, method: str, ns: Namespace, name: str | None) -> bytes:
        key = (method, ns, name)
        head = self._heads.get(key)
        if head is None:
            head = self._heads[key] = _head(method, ns, "", name)
        return head

    def _place(self, ns: Namespace, node: str | None) -> bytes:
        """Return the encoded params up to the timestamp."""
        key = (ns, node)
        place = self._places.get(key)
        if place is None:
            of_node = b"" if node is None else b'"node":' + dumps(node) + b","
            place = b'{"namespace":' + dumps(list(ns)) + b"," + of_node + b'"timestamp":'
            self._places[key] = place
        return place

    def _say_too_large(self, method: str, ns: Namespace, size: int) -> None:
        message = f"{method} event of {size} bytes: the limit is {self._max_bytes} bytes"
        data: dict[str, Any] = {"name": TOO_LARGE, "payload": {"method": method, "message": message}}
        self.write("custom", ns, dumps(data), name=TOO_LARGE)


def _head(method: str, ns: Namespace, id_tail: str, name: str | None) -> bytes:
    return b"~" + dumps([method, list(ns), id_tail, name]) + b"\n"
