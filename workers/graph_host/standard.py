"""What the host's own work needs of the standard library, bound before user code can replace it there.

A graph that sets `json.dumps`, `time.sleep` or the like to something of its own harms itself, not the runs
that come after it.
"""

from __future__ import annotations

from json import dumps as json_dumps
from json import loads as json_loads
from time import monotonic, sleep

__all__ = ["json_dumps", "json_loads", "monotonic", "sleep"]
