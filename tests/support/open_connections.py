"""Connections of a server to its clients, as the system lists them: a process that is hardened hides its own files."""

from __future__ import annotations

import psutil

HELD = frozenset({psutil.CONN_ESTABLISHED, psutil.CONN_CLOSE_WAIT})


def held(base: str) -> int:
    """How many the server at this address has, closed by their clients or not."""
    port = int(base.rpartition(":")[2])
    found = psutil.net_connections("tcp")
    return sum(one.laddr.port == port and bool(one.raddr) and one.status in HELD for one in found)
