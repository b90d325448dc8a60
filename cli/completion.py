"""Shell completion of the names of deployments, which the service returns, and of contexts."""

from __future__ import annotations

import io
import os
import re
import threading
from contextlib import redirect_stderr

import typer

from cli.api import contexts
from cli.api.access import find_key, find_tenant, find_url
from cli.api.client import Client
from shared.settings import Settings

LIMIT_SECONDS = 1.0  # timeout: the shell blocks until the completion returns
MOST = 100
PLAIN = re.compile(r"[A-Za-z0-9._-]+")  # shells' completion scripts may evaluate special characters


def deployment_names(ctx: typer.Context, incomplete: str) -> list[str]:
    """Return the names of deployments that begin with `incomplete`.

    Returns an empty list without a key, or if the service does not answer in time. Prints nothing.
    """
    found: list[str] = []
    asking = threading.Thread(target=_ask, args=(ctx, incomplete, found), daemon=True)
    with redirect_stderr(io.StringIO()):
        asking.start()
        asking.join(LIMIT_SECONDS)
    return list(found)


def _ask(ctx: typer.Context, incomplete: str, found: list[str]) -> None:
    try:
        contexts.requested.set(ctx.find_root().params.get("context"))
        settings, given = Settings.from_env(os.environ), ctx.params
        url = find_url(given.get("url"), settings)
        key = find_key(given.get("api_key"), settings, url=url)
        with Client(url, key, tenant=find_tenant(given.get("org"))) as client:
            answer = client.get("/v2/deployments", {"name_contains": incomplete, "limit": MOST})
        names = [row["name"] for row in answer["resources"]]
        found += sorted(name for name in names if name.startswith(incomplete) and PLAIN.fullmatch(name))
    except Exception:  # the outermost loop: a shell must not print a traceback between the words of a command
        return


def context_names(incomplete: str) -> list[str]:
    """Return the names of contexts that begin with `incomplete`. Prints nothing."""
    try:
        return sorted(name for name in contexts.load().by_name if name.startswith(incomplete))
    except Exception:  # as above
        return []
