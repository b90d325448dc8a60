"""Print facts about this process as JSON and run until stopped: `python -m tests.support.what_it_is [ARGUMENT]`.

With ARGUMENT `ends` the process exits at once with code 3.
"""

from __future__ import annotations

import gc
import json
import os
import sys
import time
from pathlib import Path

import psutil

if __name__ == "__main__":
    facts = {
        "arguments": sys.argv[1:],
        "pid": os.getpid(),
        "parent": os.getppid(),
        "session": os.getsid(0),
        "environment": dict(os.environ),
        "folder": str(Path.cwd()),
        "title": psutil.Process().cmdline(),
        "input": sys.stdin.read(),
        "collects": gc.isenabled(),
        "is_patched": "gevent.monkey" in sys.modules,
        "descriptors": sorted(os.listdir("/proc/self/fd")),
    }
    print("facts " + json.dumps(facts), flush=True)
    if sys.argv[1:] == ["ends"]:
        sys.exit(3)
    time.sleep(600)
