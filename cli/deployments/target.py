"""The deployment that a command is about: the argument that names it, its record, and a client of its own API."""

from __future__ import annotations

import io
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr
from dataclasses import dataclass
from typing import Annotated, Any

import typer

from cli.client import access, contexts
from cli.client.client import Client
from cli.client.names import PREVIEW_SIGN, address_in, served_at
from cli.commands import Service
from cli.deployments.project import deployment_name, name_here
from cli.errors import BadUsage, CommandFailed

NAME_FORMS = "Deployment: its name, its id or the end of its id"
HERE = "Default: the name that `deploy` gives the project of this directory."

# Completion of names in a shell
COMPLETION_SECONDS = 1.0  # timeout: the shell blocks until the completion returns
MOST_COMPLETIONS = 100
PLAIN = re.compile(r"[A-Za-z0-9._-]+")  # shells' completion scripts may evaluate special characters


def complete_name(ctx: typer.Context, incomplete: str) -> list[str]:
    """Return the names of deployments that begin with `incomplete`.

    Returns an empty list without a key, or if the service does not answer in time. Prints nothing.
    """
    names: list[str] = []
    lookup = threading.Thread(target=_find_names, args=(ctx, incomplete, names), daemon=True)
    with redirect_stderr(io.StringIO()):
        lookup.start()
        lookup.join(COMPLETION_SECONDS)
    return list(names)


def _find_names(ctx: typer.Context, incomplete: str, names: list[str]) -> None:
    try:
        access.is_quiet.set(True)
        contexts.requested.set(ctx.find_root().params.get("context"))
        options = {name: ctx.params.get(name) for name in ("url", "api_key", "org")}
        with Service(**options).open() as client:
            answer = client.get("/v2/deployments", {"name_contains": incomplete, "limit": MOST_COMPLETIONS})
        matches = (row["name"] for row in answer["resources"] if row["name"].startswith(incomplete))
        names += sorted(name for name in matches if PLAIN.fullmatch(name))
    except (CommandFailed, LookupError, TypeError, ValueError):  # no answer, or not one of this service
        return


def _name_argument(help: str) -> Any:
    return typer.Argument(help=help, metavar="DEPLOYMENT", autocompletion=complete_name)


Name = Annotated[str | None, _name_argument(f"{NAME_FORMS}. {HERE}")]
NameOrPreview = Annotated[
    str | None, _name_argument(f"{NAME_FORMS}; DEPLOYMENT--PREVIEW stands for a preview. {HERE}")
]
RequiredName = Annotated[str, _name_argument(f"{NAME_FORMS}.")]
NameOrConsole = Annotated[str | None, _name_argument(f"{NAME_FORMS}. Default: the console's first page.")]
NameOrAll = Annotated[str | None, _name_argument(f"{NAME_FORMS}. Default: all deployments.")]
NameOption = Annotated[str | None, typer.Option("--name", "-n", hidden=True)]  # for older scripts

Wide = Annotated[
    bool, typer.Option("--wide", "-w", help="Print full ids and more columns. Default on a wide terminal.")
]
Limit = Annotated[int, typer.Option(min=1, max=1000, help="Largest number of rows.", metavar="N")]


@dataclass(frozen=True)
class Target(Service):
    """A deployment or preview whose own API a command calls. Adds its argument to the options of the service."""

    name: NameOrPreview = None
    option: NameOption = None

    @contextmanager
    def api(self) -> Iterator[Client]:
        """Open a client of the deployment's own API. Raises CommandFailed if no revision serves."""
        name = one_name(self.name, self.option)
        with self.open() as client, client.at(serving(client, name)[0]) as api:
            yield api

    @contextmanager
    def api_and_item(self, item: str | None, label: str) -> Iterator[tuple[Client, str]]:
        """Open a client of the deployment's own API. Yields it with the second argument, such as a run's id.

        A single argument is the second one. Raises BadUsage if there is none, or if the deployment is given twice.
        """
        name = self.name
        if item is None:
            name, item = None, name
        if item is None:
            raise BadUsage(f"{label} is missing.")
        with Target(self.url, self.api_key, self.org, name, self.option).api() as api:
            yield api, item


def one_name(name: str | None, option: str | None) -> str | None:
    """Return the deployment's name from the argument or the option. Raises BadUsage if both are set."""
    if name and option:
        raise BadUsage("The deployment is given twice: as an argument and by an option.")
    return name or option


def resolve_deployment(client: Client, name_or_id: str | None) -> dict[str, Any]:
    """Return the deployment with that name or id, or with the name that `deploy` derives from this text.

    Without a name, return the deployment of the current directory. Raises CommandFailed if there is none.
    """
    if name_or_id is None:
        return client.require(name_here())
    try:
        return client.require(name_or_id)
    except CommandFailed:
        normal = deployment_name(name_or_id)
        deployment = client.find(normal) if normal != name_or_id else None
        if deployment is None:
            raise
        return deployment


def resolve_with_preview(
    client: Client, name_or_id: str | None
) -> tuple[dict[str, Any], dict[str, Any] | None]:
    """Return the deployment and, if the name has the form `NAME--PREVIEW`, its preview.

    A deployment whose own name has that form takes precedence, as in the service's addresses. Raises CommandFailed.
    """
    name, sign, preview = (name_or_id or "").rpartition(PREVIEW_SIGN)
    if not (name and sign and preview) or client.find(str(name_or_id)):
        return resolve_deployment(client, name_or_id), None
    deployment = resolve_deployment(client, name)
    return deployment, find_preview(client, deployment, preview)


def find_preview(client: Client, deployment: dict[str, Any], preview: str) -> dict[str, Any]:
    """Return the preview of that name. Raises CommandFailed."""
    for row in client.previews(deployment["id"]):
        if row["name"] == preview:
            return row
    name = deployment["name"]
    raise CommandFailed(
        f"{name} has no preview {preview!r}. `runyard previews {name}` lists those there are."
    )


def find_by_name(client: Client, name: str) -> dict[str, Any] | None:
    """Return the deployment of that name, or of the name that `deploy --name` derives from it, or None."""
    return client.find(name) or client.find(deployment_name(name))


def serving(client: Client, name: str | None) -> tuple[str, str]:
    """Return the address of a deployment or preview below the service's, and its name as commands accept it.

    Raises CommandFailed if no revision serves.
    """
    deployment, preview = resolve_with_preview(client, name)
    if preview is not None:
        if not preview["url"]:
            raise CommandFailed(
                f"The preview {preview['name']} of {deployment['name']} does not serve yet."
                f" `runyard previews {deployment['name']}` shows its newest revision."
            )
        target = f"{deployment['name']}{PREVIEW_SIGN}{preview['name']}"
        return served_at(client.url, target, preview["url"]), target
    if not deployment.get("active_revision_id"):
        raise CommandFailed(
            f"{deployment['name']} does not serve yet. `runyard status {deployment['name']}` tells why."
        )
    return served_at(client.url, deployment["name"], address_in(deployment)), deployment["name"]
