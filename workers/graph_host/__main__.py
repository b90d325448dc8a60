"""Starts the graph host: `ENV/bin/python path/to/graph_host --socket FD [--threads N]`.

This directory must not stay on `sys.path`: a project may have its own modules called `host` or `output`, and
project code must not import ours. `boot` therefore removes the directory from the path and creates the package
`graph_host` by hand.
"""

from __future__ import annotations

import gc
import importlib
import importlib.util
import os
import sys
from types import ModuleType

PACKAGE = "graph_host"


def boot() -> ModuleType:
    """Create the package `graph_host` and return its host module."""
    here = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [entry for entry in sys.path if os.path.abspath(entry or os.curdir) != here]
    spec = importlib.util.spec_from_file_location(
        PACKAGE, os.path.join(here, "__init__.py"), submodule_search_locations=[here]
    )
    assert spec is not None
    assert spec.loader is not None
    package = importlib.util.module_from_spec(spec)
    sys.modules[PACKAGE] = package
    spec.loader.exec_module(package)
    return importlib.import_module(f"{PACKAGE}.host")


if __name__ == "__main__":
    gc.disable()  # until the libraries are loaded: they are never freed, and each collection would scan them
    # Must be set before langgraph is imported, which reads the variable once.
    os.environ.setdefault("LANGGRAPH_STRICT_MSGPACK", "true")
    boot().main(sys.argv[1:])
