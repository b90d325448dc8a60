"""The network of replayed runs, as far as this process sees it: connections are refused and reported.

A replay without `network` opens connections only for its models, and for tools that are executed. Others would reach
services for a second time, for example from a plain node of the graph. The interpreter announces each connection to an
audit hook, which refuses it with an OSError.

This is no security boundary: it sees neither other processes nor libraries that bypass Python's sockets, such as gRPC,
nor connections that exist already. If no call of a replay can need the network, the runner starts the host without one
(`workers/runner/quarantine.py`).
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import Any

from .replay import current_replay, is_in_service

REFUSAL = 'a replay opens no connections outside of its models: "network": true allows them'


def _connected(arguments: tuple[Any, ...]) -> str | None:
    """Return the address of a connection or datagram; None for a socket of this machine's file system."""
    address = arguments[1]
    return f"{address[0]}:{address[1]}" if isinstance(address, tuple) else None


_EVENTS: Mapping[str, Callable[[tuple[Any, ...]], str | None]] = {
    "socket.getaddrinfo": lambda arguments: f"{_text(arguments[0])}:{_text(arguments[1])}",
    "socket.gethostbyname": lambda arguments: _text(arguments[0]),
    "socket.connect": _connected,
    "socket.sendto": _connected,
    "socket.sendmsg": _connected,
}


def _text(value: Any) -> str:
    return value.decode("ascii", "replace") if isinstance(value, bytes) else str(value)


def watch() -> None:
    """Refuse the connections of replayed runs from now on. An audit hook cannot be removed."""
    sys.addaudithook(_on_event)


def _on_event(event: str, arguments: tuple[Any, ...]) -> None:
    if event not in _EVENTS:
        return
    current = current_replay.get()
    if current is None or current.has_network or is_in_service():
        return
    address = _EVENTS[event](arguments)
    if address is not None:
        current.report_network(address)
        raise ConnectionRefusedError(REFUSAL)
