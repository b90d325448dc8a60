"""`runyard login`, `logout`, `contexts`: manage contexts, which hold the address and key of services elsewhere."""

from __future__ import annotations

import json
import re
import sys
from typing import Annotated, Any
from urllib.parse import urlsplit

import typer
from rich.table import Table
from rich.text import Text

from cli import completion
from cli.api import contexts
from cli.api.access import THIS_MACHINE, ApiKey
from cli.api.client import Client
from cli.api.contexts import KEY_PREFIX, LOCAL, Context, is_service_key
from cli.errors import BadUsage, CommandFailed
from cli.options import Json, sentences
from cli.output import console, printable

Name = Annotated[
    str | None,
    typer.Argument(
        help="Context. Default: the selected one.",
        metavar="CONTEXT",
        show_default=False,
        autocompletion=completion.context_names,
    ),
]


def login(
    url: Annotated[
        str, typer.Argument(help="Address of the service, https://runyard.example.com.", metavar="URL")
    ],
    name: Annotated[
        str | None,
        typer.Option(
            "--name",
            help="Name of the context. Default: host and path of URL.",
            metavar="CONTEXT",
            show_default=False,
        ),
    ] = None,
    api_key: Annotated[
        str | None,
        typer.Option(
            "--api-key",
            help="API key; `-` reads it from stdin. Default: a prompt without echo.",
            metavar="KEY",
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Check an API key against a service and keep both as a context, which becomes the current one.

    Other commands then use this service and its key. `--url` and `--api-key`, RUNYARD_URL and RUNYARD_API_KEY take
    precedence. The key is kept in a file that only its owner can read, and is sent to this address only.
    """
    with sentences(as_json=as_json):
        address = _checked_url(url)
        is_default, name = name is None, name or default_name(address)
        if not contexts.NAME.fullmatch(name) or name == LOCAL:
            raise BadUsage(
                f"{name!r} cannot be the name of a context: use letters, digits, `.`, `_`, `:` and `-`; `{LOCAL}` is taken."
                " --name gives another."
            )
        context = Context(name, address, _read_key(api_key))
        source = "this login" if api_key is None else "--api-key"
        with Client(address, ApiKey(context.key, source, "Log in with a key of that service.")) as client:
            me = client.get("/v2/me")
        if not isinstance(me, dict) or "role" not in me:
            raise CommandFailed(f"{address} does not answer as a runyard service. Nothing was kept.")
        with contexts.locked():
            kept = contexts.load()
            existing = kept.by_name.get(name)
            if is_default and existing and existing.url != address:
                raise BadUsage(
                    f"The context {name} is the service {existing.url}. Nothing was kept."
                    f" Give another name with --name, or replace that context with --name {name}."
                )
            contexts.save(kept.with_context(context))
        facts = {
            "context": name,
            "url": address,
            "role": me["role"],
            "organization": me["organization"]["name"],
        }
        if as_json:
            typer.echo(json.dumps(facts, indent=2))
            return
        typer.echo(
            printable(
                f"Logged in to {address} with the role {me['role']} in the organization {facts['organization']}."
                f" {name} is the current context."
            )
        )


def default_name(address: str) -> str:
    """Return host, port and path of an address as the name of a context: `::1:8123`, `example.com-staging`."""
    parts = urlsplit(address)
    return re.sub(r"[^A-Za-z0-9._:-]", "-", re.sub(r"[\[\]]", "", parts.netloc) + parts.path)


def _checked_url(text: str) -> str:
    """Return the normalized address. Raises BadUsage unless it is the http(s) address of a service.

    Warns if the API key would be sent unencrypted to another machine.
    """
    refusal = f"{printable(text)!r} is not the address of a service: it must begin with http:// or https://."
    try:
        parts = urlsplit(text)
        _ = parts.port  # raises ValueError for an invalid port
    except ValueError:
        raise BadUsage(refusal) from None
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise BadUsage(refusal)
    if parts.username or parts.password or parts.query or parts.fragment:
        raise BadUsage("The address must not contain a user, a password, a query or a fragment.")
    if parts.scheme == "http" and parts.hostname not in THIS_MACHINE:
        typer.echo("Warning: with http:// the API key travels unencrypted.", err=True)
    return contexts.normalized(text)


def _read_key(text: str | None) -> str:
    """Read the key from the option, stdin or a prompt. Raises BadUsage for text that is no key of a runyard service."""
    if text == "-":
        text = sys.stdin.readline()
    elif text is None:
        if not sys.stdin.isatty():
            raise BadUsage("There is no terminal to ask for the key: pass it on stdin with --api-key -.")
        text = typer.prompt("API key", hide_input=True)
    key = str(text).strip()
    if not is_service_key(key):
        raise BadUsage(
            f"This is not a key of a runyard service, which begins with {KEY_PREFIX}. Nothing was sent or kept."
        )
    return key


def logout(name: Name = None, as_json: Json = False) -> None:
    """Delete a context with its key from this machine. The key remains valid: `runyard keys revoke` ends it."""
    with sentences(as_json=as_json):
        kept = contexts.load()
        if name is None:
            name = contexts.requested_by_name() or kept.current
        if name is None or name == LOCAL:
            raise BadUsage("No context is selected. `runyard contexts` lists them.")
        context = kept.get(name)
        with contexts.locked():
            contexts.save(contexts.load().without(name))
        typer.echo(
            json.dumps({"context": name, "deleted": True}) if as_json else f"Deleted {name} ({context.url})."
        )


def list_contexts(
    use: Annotated[
        str | None,
        typer.Option(
            "--use",
            help=f"Make this context the current one; `{LOCAL}`: none, commands use the service of `runyard up`.",
            metavar="CONTEXT",
            autocompletion=completion.context_names,
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """List the contexts that `runyard login` created, or choose the current one."""
    with sentences(as_json=as_json):
        kept = contexts.load()
        if use is not None:
            kept.using(use)  # raises before the lock creates the folder
            with contexts.locked():
                kept = contexts.load().using(use)
                contexts.save(kept)
        rows: list[dict[str, Any]] = [
            {"name": name, "url": context.url, "is_current": name == kept.current}
            for name, context in sorted(kept.by_name.items())
        ]
        if as_json:
            typer.echo(json.dumps(rows, indent=2))
        elif use is not None:
            typer.echo(f"{use} is the current context." if kept.current else "No context is current.")
        elif not rows:
            typer.echo("There are no contexts. `runyard login URL` creates one.")
        else:
            table = Table("", "Context", "Address", box=None, pad_edge=False)
            for row in rows:
                table.add_row(
                    "*" if row["is_current"] else "",
                    Text(printable(row["name"])),
                    Text(printable(row["url"])),
                )
            console().print(table)
