"""`runyard login`, `logout`, `contexts`: manage contexts, which hold the address and key of services elsewhere."""

from __future__ import annotations

import re
import socket
import sys
import time
from typing import Annotated
from urllib.parse import urlsplit

import typer
from typer import Argument, Option

from cli.client import contexts
from cli.client.access import THIS_MACHINE, ApiKey
from cli.client.client import Client
from cli.client.contexts import KEY_PREFIX, LOCAL, Context, is_service_key
from cli.commands import command
from cli.errors import BadUsage, CommandFailed
from cli.output import Column, Output, printable

Name = Annotated[
    str | None,
    typer.Argument(
        help="Context. Default: the selected one.", metavar="CONTEXT", autocompletion=contexts.complete_name
    ),
]


@command
def login(
    out: Output,
    url: str = Argument(help="Address of the service, https://runyard.example.com.", metavar="URL"),
    name: str | None = Option(
        None, help="Name of the context. Default: host and path of URL.", metavar="CONTEXT"
    ),
    api_key: str | None = Option(
        None,
        help="API key; `-` reads it from stdin. Default: sign in with the browser if the service has sign-in,"
        " else a prompt.",
        metavar="KEY",
    ),
) -> None:
    """Sign in to a service, or check an API key, and keep address and key as a context, which becomes the current one.

    With sign-in, the command prints an address and a code. Open the address in any browser, sign in and confirm the
    code. The command then gets an API key with your role, which expires.

    Other commands then use this service and its key. `--url` and `--api-key`, RUNYARD_URL and RUNYARD_API_KEY take
    precedence. The key is kept in a file that only its owner can read, and is sent to this address only.
    """
    address = _checked_url(url)
    is_default, name = name is None, name or default_name(address)
    if not contexts.NAME.fullmatch(name) or name == LOCAL:
        raise BadUsage(
            f"{name!r} cannot be the name of a context: use letters, digits, `.`, `_`, `:` and `-`; `{LOCAL}` is taken."
            " --name gives another."
        )
    key = _sign_in(address) if api_key is None and _has_sign_in(address) else _read_key(api_key)
    context = Context(name, address, key)
    source = "this login" if api_key is None else "--api-key"
    with Client(address, ApiKey(context.key, source, "Log in with a key of that service.")) as client:
        me = client.get("/v2/me")
    if not isinstance(me, dict) or "role" not in me:
        raise CommandFailed(f"{address} does not answer as a runyard service. Nothing was kept.")
    with contexts.locked():
        stored = contexts.load()
        existing = stored.by_name.get(name)
        if is_default and existing and existing.url != address:
            raise BadUsage(
                f"The context {name} is the service {existing.url}. Nothing was kept."
                f" Give another name with --name, or replace that context with --name {name}."
            )
        contexts.save(stored.with_context(context))
    organization = me["organization"]["name"]
    out.done(
        f"Logged in to {address} with the role {me['role']} in the organization {organization}."
        f" {name} is the current context.",
        {"context": name, "url": address, "role": me["role"], "organization": organization},
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


def _has_sign_in(address: str) -> bool:
    """Return whether people can sign in to the service. False for a service that does not answer, or an older one."""
    with Client(address, "") as client:
        try:
            found = client.get("/v2/sign-in")
        except CommandFailed:
            return False
    return isinstance(found, dict) and found.get("is_configured") is True


def _sign_in(address: str) -> str:
    """Wait until a person confirms the code in a browser, and return the new key. Raises CommandFailed."""
    with Client(address, "") as client:
        login = client.send("POST", "/v2/sign-in/device", {"device": socket.gethostname()[:100] or "?"})
        url, code = printable(str(login["verification_url_complete"])), printable(str(login["user_code"]))
        typer.echo(f"Open {url}\nand confirm the code {code}. Waiting…", err=True)
        interval, ends_at = float(login["interval_seconds"]), time.monotonic() + login["expires_in_seconds"]
        while time.monotonic() < ends_at:
            time.sleep(interval)
            polled = client.send("POST", "/v2/sign-in/device/token", {"device_code": login["device_code"]})
            match polled["status"]:
                case "completed" if is_service_key(str(polled["key"])):
                    return str(polled["key"])
                case "pending" | "slow_down":
                    interval = float(polled["interval_seconds"])
                case "denied":
                    raise CommandFailed("The sign-in was refused in the browser. Nothing was kept.")
                case _:
                    break
    raise CommandFailed(
        "The code was not confirmed in time. Nothing was kept. Run the command again for a new code."
    )


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


@command
def logout(out: Output, name: Name = None) -> None:
    """Delete a context with its key from this machine. The key remains valid: `runyard keys revoke` ends it."""
    stored = contexts.load()
    if name is None:
        name = contexts.requested_by_name() or stored.current
    if name is None or name == LOCAL:
        raise BadUsage("No context is selected. `runyard contexts` lists them.")
    context = stored.get(name)
    with contexts.locked():
        contexts.save(contexts.load().without(name))
    out.done(f"Deleted {name} ({context.url}).", {"context": name, "deleted": True})


@command
def list_contexts(
    out: Output,
    use: str | None = Option(
        None,
        help=f"Make this context the current one; `{LOCAL}`: none, commands use the service of `runyard up`.",
        metavar="CONTEXT",
        autocompletion=contexts.complete_name,
    ),
) -> None:
    """List the contexts that `runyard login` created, or choose the current one."""
    stored = contexts.load()
    if use is not None:
        stored.using(use)  # raises before the lock creates the folder
        with contexts.locked():
            stored = contexts.load().using(use)
            contexts.save(stored)
    rows = [
        {"name": name, "url": context.url, "is_current": name == stored.current}
        for name, context in sorted(stored.by_name.items())
    ]
    if use is not None and not out.as_json:
        typer.echo(f"{use} is the current context." if stored.current else "No context is current.")
    else:
        out.rows(rows, COLUMNS, empty="There are no contexts. `runyard login URL` creates one.")


COLUMNS = (
    Column("", lambda row: "*" if row["is_current"] else ""),
    Column("Context", lambda row: row["name"]),
    Column("Address", lambda row: row["url"]),
)
