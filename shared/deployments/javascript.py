"""JavaScript in a `langgraph.json`: rejected by the command line before the upload, and by the build."""

from __future__ import annotations

SUFFIXES = (".ts", ".mts", ".cts", ".tsx", ".js", ".mjs", ".cjs", ".jsx")


def refusal(module: str, kind: str) -> str | None:
    """Return an error text if the file is JavaScript, else None. `kind` names the kind of object in it for the text."""
    if not module.endswith(SUFFIXES):
        return None
    return f"{module!r} is a JavaScript {kind}, which this server does not run: it runs Python only"
