"""Calls the functions `check_…` of the program that is named, and prints what failed in each, as JSON."""

import asyncio
import json
import runpy
import sys
import traceback
from pathlib import Path

found = runpy.run_path(str(Path(__file__).with_name(sys.argv[1])))
outcomes = {}
for name, check in found.items():
    if name.startswith("check_"):
        try:
            asyncio.run(check())
        except BaseException:
            outcomes[name] = traceback.format_exc()
        else:
            outcomes[name] = None
print(json.dumps(outcomes))
