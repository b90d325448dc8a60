"""Execute Python blocks in one namespace. Started as a program by `sessions.py`: one JSON object per line each way."""

from __future__ import annotations

import json
import os
import sys
import traceback
from typing import Any


def main() -> None:
    requests, answers = sys.stdin, os.fdopen(3, "w")
    namespace: dict[str, Any] = {"__name__": "__main__"}
    for line in requests:
        block = json.loads(line)
        os.chdir(block["folder"])
        os.environ.clear()
        os.environ.update(block["environment"])
        error = None
        try:
            exec(compile(block["text"], block["place"], "exec"), namespace)
        except BaseException:  # outermost loop, also SystemExit: the traceback goes to the test, which fails
            error = traceback.format_exc()
        sys.stdout.flush()
        print(json.dumps({"error": error}), file=answers, flush=True)


main()
