"""JavaScript in a `langgraph.json`: refused by the command line before the upload, and by the build."""

from __future__ import annotations

SUFFIXES = (".ts", ".mts", ".cts", ".tsx", ".js", ".mjs", ".cjs", ".jsx")


def refusal(module: str, kind: str) -> str | None:
    """Why this file cannot be loaded if it is JavaScript; `kind` is what the object in it is called."""
    if not module.endswith(SUFFIXES):
        return None
    return f"{module!r} is a JavaScript {kind}, which this server does not run: it runs Python only"
