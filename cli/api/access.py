"""Where the command line finds the service: its address, an API key, the organization.

A variable is looked for in the process environment and in `local`: what the project's `.env` (or the `env` of
its configuration) sets. Our own names come first, then those of `langgraph deploy`, in the order it has.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from functools import cache
from io import StringIO
from pathlib import Path

import typer
from dotenv import dotenv_values
from dotenv.parser import parse_stream

from cli.errors import CommandFailed
from shared.settings import Settings

KEY_NAMES = ("LANGGRAPH_HOST_API_KEY", "LANGSMITH_API_KEY", "LANGCHAIN_API_KEY")
TENANT_NAMES = ("RUNYARD_ORG", "LANGSMITH_TENANT_ID")
KEPT_KEY, KEPT_URL = "admin.key", "url"  # in the data directory: what `runyard up` made and where it listens

logging.getLogger("dotenv").setLevel(logging.ERROR)  # its warning names no file; ours does


def read_env(path: Path = Path(".env")) -> dict[str, str]:
    """The variables of an env file; none when there is no such file."""
    try:
        text = path.read_text(encoding="utf-8") if path.is_file() else ""
    except (OSError, UnicodeDecodeError) as error:
        raise CommandFailed(f"{path} cannot be read: {error}") from error
    for binding in parse_stream(StringIO(text)):
        if binding.error:
            _mention_line(path.resolve(), binding.original.line)
    return {name: value for name, value in dotenv_values(stream=StringIO(text)).items() if value}


@cache  # a command may read a file twice
def _mention_line(path: Path, line: int) -> None:
    typer.echo(f"Line {line} of {path} is not NAME=value: it sets nothing.", err=True)


def find_url(url: str | None, settings: Settings) -> str:
    """The service's address: given, from the environment, where `runyard up` last listened, or this machine's."""
    named = any(os.environ.get(name) for name in ("RUNYARD_URL", "RUNYARD_URL_FILE"))
    given = url or (settings.url if named else os.environ.get("LANGGRAPH_HOST_URL"))
    if not given and not any(os.environ.get(name) for name in ("RUNYARD_HOST", "RUNYARD_PORT")):
        given = _kept(settings, KEPT_URL)
    return (given or settings.url).rstrip("/")


def find_key(key: str | None, settings: Settings, local: Mapping[str, str] | None = None) -> str:
    """An API key: given, from a variable, or the one `runyard up` keeps; else CommandFailed."""
    local = read_env() if local is None else local
    chosen = key or settings.api_key or local.get("RUNYARD_API_KEY") or os.environ.get(KEY_NAMES[0])
    for name in KEY_NAMES:  # of these, what stands in the project goes before what the shell has
        chosen = chosen or local.get(name) or os.environ.get(name)
    chosen = (chosen or _kept(settings, KEPT_KEY) or "").strip()
    if not chosen:
        raise CommandFailed(
            "No API key. Set RUNYARD_API_KEY in the environment or in .env, or pass --api-key."
            " In the folder where `runyard up` was started, the one it keeps there is used,"
            " and `runyard keys create` makes others."
        )
    if not chosen.isascii() or not chosen.isprintable():
        raise CommandFailed("The API key holds characters that no key has. Check RUNYARD_API_KEY and .env.")
    return chosen


def find_tenant(org: str | None, local: Mapping[str, str] | None = None) -> str | None:
    """The organization to act in, when the key is not bound to one: given, or from a variable."""
    local = read_env() if local is None else local
    for name in TENANT_NAMES:
        org = org or local.get(name) or os.environ.get(name)
    return org


def _kept(settings: Settings, name: str) -> str | None:
    try:
        return (settings.data_dir / name).read_text().strip() or None
    except OSError:
        return None
