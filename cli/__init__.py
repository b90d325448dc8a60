"""The command line: a client of our own HTTP interface, and the starter of the whole service on one machine."""

import sys
from pathlib import Path

# Before what PYTHONPATH names: a project may have a `shared` or a `web` of its own.
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
