"""Find the service's address, an API key and the organization in options, variables, contexts and files.

Variables come from the process environment and from `local`, which holds the variables of the project's `.env` or of
the `env` in its configuration. Names of runyard come first, then those of `langgraph deploy` in that command's order.

A variable of `langgraph deploy` often holds a LangSmith key. Such a key is a secret that the service must not receive,
so a value of these variables is used only if it begins like a key of the service.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import cache
from io import StringIO
from pathlib import Path
from urllib.parse import urlsplit

import typer
from dotenv import dotenv_values
from dotenv.parser import parse_stream

from cli import KEPT_KEY, KEPT_URL
from cli.client import contexts
from cli.client.contexts import KEY_PREFIX, Context, is_service_key, normalized
from cli.errors import BadUsage, CommandFailed
from shared.settings import Settings, names_of

KEY_NAMES = ("LANGGRAPH_HOST_API_KEY", "LANGSMITH_API_KEY", "LANGCHAIN_API_KEY")
TENANT_NAMES = ("RUNYARD_ORG", "LANGSMITH_TENANT_ID")
THIS_MACHINE = frozenset({"localhost", "127.0.0.1", "::1", "0.0.0.0", "::"})

OTHER_SERVICE = "--url, or --context before the command, names another."
LOCAL_SERVICE = "`runyard --context local` uses the service of this directory."

# Whether notices about the service are left out. Each call of `runyard` sets it.
is_quiet: ContextVar[bool] = ContextVar("is_quiet", default=False)

logging.getLogger("dotenv").setLevel(logging.ERROR)  # its warning does not name the file; _mention_line does


def read_env(path: Path = Path(".env")) -> dict[str, str]:
    """Return the non-empty variables of an env file; an empty dict without the file. Raises CommandFailed."""
    try:
        text = path.read_text(encoding="utf-8") if path.is_file() else ""
    except (OSError, UnicodeDecodeError) as error:
        raise CommandFailed(f"{path} cannot be read: {error}") from error
    for binding in parse_stream(StringIO(text)):
        if binding.error:
            _mention_line(path.resolve(), binding.original.line)
    return {name: value for name, value in dotenv_values(stream=StringIO(text)).items() if value}


@cache  # a command may read a file twice, and must warn once
def _mention_line(path: Path, line: int) -> None:
    typer.echo(f"Line {line} of {path} is not NAME=value: it sets nothing.", err=True)


@dataclass(frozen=True)
class Address:
    """The service's address. `notice` names the service, unless the user chose it by an option or a variable."""

    url: str
    notice: str = ""

    def announce(self) -> None:
        """Print the notice on stderr, so that the user sees which service a command changes or reads."""
        if self.notice and not is_quiet.get():
            typer.echo(self.notice, err=True)


def find_address(url: str | None, settings: Settings) -> Address:
    """Return the service's address. Raises BadUsage for a context that does not exist or contradicts the address.

    The first of: the option, RUNYARD_URL, the context that was requested by name, LANGGRAPH_HOST_URL, the current
    context, where the service of the data directory listens, this machine.
    """
    url, notice = _find_address(url, settings)
    return Address(url.rstrip("/"), notice)


def _find_address(url: str | None, settings: Settings) -> tuple[str, str]:
    """Return the address and the notice."""
    if url or _is_set("RUNYARD_URL", "RUNYARD_URL_FILE"):
        address = url or settings.url
        _check_requested(address, "--url" if url else "RUNYARD_URL")
        return address, ""
    is_requested = contexts.requested_by_name() is not None
    if not is_requested and (address := os.environ.get("LANGGRAPH_HOST_URL")):
        return address, ""
    context, kept = contexts.selected(), _read_kept(settings, KEPT_URL)
    if context:
        advice = OTHER_SERVICE if kept in (None, context.url) else LOCAL_SERVICE
        return context.url, "" if is_requested else f"Using {context.source}, {context.url}. {advice}"
    if _is_set(*names_of("listen_host"), *names_of("port")):
        return settings.url, ""
    address = kept or settings.url
    what = "the default address"
    if kept:
        what = "the service of " + ("RUNYARD_DATA_DIR" if _is_set("RUNYARD_DATA_DIR") else "this directory")
    return address, "" if is_requested else f"Using {what}, {address}. {OTHER_SERVICE}"


def _is_set(*names: str) -> bool:
    return any(os.environ.get(name) for name in names)


def _check_requested(url: str, source: str) -> None:
    """Raise BadUsage if `--context` names another service than the address that takes precedence over it."""
    if (
        (name := contexts.requested.get())
        and (context := contexts.selected())
        and context.url != normalized(url)
    ):
        raise BadUsage(
            f"--context {name} is the service {context.url}, but {source} is {url}, which takes precedence."
            f" Give only one of them."
        )


@dataclass(frozen=True)
class ApiKey:
    """An API key and its source, as error messages state it."""

    text: str = field(repr=False)
    source: str
    advice: str = "Set RUNYARD_API_KEY or pass --api-key."  # for a refused key


def find_key(
    key: str | None, settings: Settings, local: Mapping[str, str] | None = None, *, url: str
) -> ApiKey:
    """Return the API key for the service at `url`. Raises CommandFailed when there is none.

    `--api-key` and RUNYARD_API_KEY may hold a key of any form. The key of the selected context and the key that
    `runyard up` keeps are sent to their own service only. The variables of `langgraph deploy` come last and must hold
    a key of a runyard service.
    """
    project = ".env" if local is None else "the project's variables"
    local = read_env() if local is None else local
    explicit = [
        (key, "--api-key"),
        (settings.api_key, "RUNYARD_API_KEY of the environment"),
        (local.get("RUNYARD_API_KEY"), f"RUNYARD_API_KEY of {project}"),
    ]
    context = contexts.selected() if not any(text for text, _ in explicit) else None
    if context and context.url == normalized(url):
        explicit.append((context.key, context.source))
    if _is_kept_service(url, settings):
        explicit.append((_read_kept(settings, KEPT_KEY), str(settings.data_dir / KEPT_KEY)))
    for text, source in explicit:
        if text and (text := text.strip()):
            if not text.isascii() or not text.isprintable():
                raise CommandFailed(f"The API key from {source} holds characters that no key has.")
            return ApiKey(text, source)
    withheld: list[str] = []
    for text, source in _peer_keys(local, project):
        if is_service_key(text):
            return ApiKey(text, source)
        withheld.append(source)
    raise CommandFailed(_no_key(url, settings, withheld, context))


def _peer_keys(local: Mapping[str, str], project: str) -> Iterator[tuple[str, str]]:
    """Yield the keys in the variables of `langgraph deploy` with their sources, in the order that it has."""
    places = [(KEY_NAMES[0], os.environ, "the environment")]
    for name in KEY_NAMES:  # the project's variables take precedence over the environment
        places += [(name, local, project), (name, os.environ, "the environment")]
    for name, variables, place in places:
        if text := variables.get(name, "").strip():
            yield text, f"{name} of {place}"


def _is_kept_service(url: str, settings: Settings) -> bool:
    """Whether the service at `url` is the one that keeps its key in the data directory.

    While that service does not run, its port may belong to another program. The answer is then False.
    """
    local_address = _read_kept(settings, KEPT_URL)
    return local_address is not None and _origin(url) == _origin(local_address)


def is_local(url: str, settings: Settings) -> bool:
    """Whether an address leads to this machine, by its host or as the service of the data directory."""
    local_address = _read_kept(settings, KEPT_URL) or settings.local_url
    return _origin(url)[1] == "localhost" or _origin(url) == _origin(local_address)


def _origin(url: str) -> tuple[str, str | None, int | None]:
    """Return scheme, host and port of an address. All names of this machine count as one host."""
    try:
        parts = urlsplit(url)
        port = parts.port or {"http": 80, "https": 443}.get(parts.scheme)
    except ValueError:
        return "", url, None
    return parts.scheme, "localhost" if parts.hostname in THIS_MACHINE else parts.hostname, port


def _no_key(url: str, settings: Settings, withheld: list[str], context: Context | None) -> str:
    """Return the error text for a call without a key: the sources that were not used, and what to set."""
    reasons = [f"No API key for {url}."]
    if withheld:
        sources = " and ".join(dict.fromkeys(withheld))
        reasons.append(f"Not sent: {sources}, since a key of runyard begins with {KEY_PREFIX}.")
    if context:
        reasons.append(f"Not sent: the key of {context.source}, since it belongs to {context.url}.")
    if _read_kept(settings, KEPT_KEY):
        local_address = _read_kept(settings, KEPT_URL)
        why = (
            f"it belongs to {local_address}" if local_address else "the service of this folder is not running"
        )
        reasons.append(f"Not sent: {settings.data_dir / KEPT_KEY}, since {why}.")
        if not local_address:
            reasons.append("`runyard up` or `runyard dev` starts it.")
    return " ".join(
        (
            *reasons,
            "Set RUNYARD_API_KEY in the environment or in .env, pass --api-key, or keep a key with `runyard login`.",
            "Commands in the folder of a running `runyard up` or `runyard dev` use the key that it keeps there,",
            "and `runyard keys create` in that folder makes others.",
        )
    )


def find_tenant(org: str | None, local: Mapping[str, str] | None = None) -> str | None:
    """Return the organization from the option or a variable. A key that is bound to one organization needs none."""
    local = read_env() if local is None else local
    for name in TENANT_NAMES:
        org = org or local.get(name) or os.environ.get(name)
    return org


def _read_kept(settings: Settings, name: str) -> str | None:
    """Return the content of a file that `runyard up` writes; None if there is none, or with control characters.

    The folder may be untrusted, and a terminal would execute control characters in a notice or an error.
    """
    try:
        text = (settings.data_dir / name).read_text().strip()
    except (OSError, UnicodeDecodeError):
        return None
    return text if text and text.isprintable() else None
