"""Options, client and error output shared by all commands."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Annotated, Any

import typer
from typer.core import TyperArgument, TyperCommand, TyperOption
from typer.models import Default

from cli.api.access import find_key, find_tenant, find_url
from cli.api.client import Client
from cli.errors import INTERRUPTED, CommandFailed
from cli.machine.embedded import CannotStart
from shared.settings import BadSetting, Settings

Url = Annotated[
    str | None,
    typer.Option(
        "--url", help="Address of the service (RUNYARD_URL).", metavar="URL", rich_help_panel="Service"
    ),
]
Key = Annotated[
    str | None,
    typer.Option(
        "--api-key",
        help="API key (RUNYARD_API_KEY; `runyard --help` lists other sources).",
        metavar="KEY",
        rich_help_panel="Service",
    ),
]
Org = Annotated[
    str | None,
    typer.Option(
        "--org",
        help="Organization, for a key that may act in several (RUNYARD_ORG).",
        metavar="NAME",
        rich_help_panel="Service",
    ),
]
ConfigFile = Annotated[
    str,
    typer.Option("--config", "-c", help="Configuration file, relative to the directory.", metavar="FILE"),
]
Yes = Annotated[bool, typer.Option("--yes", "-y", "--force", help="Answer every confirmation with yes.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]

SERVER_PACKAGE = "gunicorn"  # only the extra `server` installs it


def _type_in_help(param: TyperOption | TyperArgument, ctx: Any) -> str | None:
    """Return the type to print on a help page; None for flags and for arguments with a metavar, which need none."""
    is_clear = param.is_flag if isinstance(param, TyperOption) else param.metavar is not None
    return None if is_clear else _type_column[type(param)](param, ctx)


# Typer's help with Rich prints `<bool>` beside a flag and `<str>` beside an argument. Its help without Rich does not.
_type_column: dict[type, Callable[[Any, Any], str | None]] = {
    kind: kind.display_type_rich for kind in (TyperOption, TyperArgument)
}
TyperOption.display_type_rich = TyperArgument.display_type_rich = _type_in_help  # type: ignore[method-assign]


def new_app(help: str = "", *, completion: bool = False) -> typer.Typer:
    """Return a group of commands.

    Without `help`, the docstring of the group's callback is its help text. `completion` adds the options that install
    shell completion.
    """
    return typer.Typer(
        help=help or Default(None),
        no_args_is_help=True,
        add_completion=completion,
        pretty_exceptions_enable=False,
        rich_markup_mode="markdown",  # paragraphs flow to the width of the terminal
        context_settings={"help_option_names": ["--help", "-h"]},
    )


class ServerCommand(TyperCommand):
    """A command that needs the extra `server`. Without it, the command fails and prints what to install."""

    def invoke(self, ctx: Any) -> Any:
        """Run the command. Raises typer.Exit when only the command line is installed."""
        with sentences():
            require_server(ctx.command_path)
        return super().invoke(ctx)


def has_server() -> bool:
    """Return whether the packages of the extra `server` are installed."""
    return find_spec(SERVER_PACKAGE) is not None


def require_server(command: str) -> None:
    """Raise CommandFailed if only the command line is installed."""
    if not has_server():
        raise CommandFailed(
            f"`{command}` needs the packages of the service, and only the command line is installed. Install the wheel"
            ' with its extra `server`: pip install "runyard[server] @ ADDRESS#sha256=DIGEST". In a clone: make install.'
        )


@contextmanager
def sentences(*, as_json: bool = False) -> Iterator[None]:
    """Print an error as one sentence and exit with its code; with `as_json`, print an `error` line on stdout."""
    try:
        yield
    except (CommandFailed, CannotStart, BadSetting) as error:
        if as_json:
            typer.echo(json.dumps({"event": "error", "message": str(error)}, ensure_ascii=False))
        else:
            typer.echo(f"Error: {error}", err=True)
        raise typer.Exit(getattr(error, "exit_code", 1)) from error
    except KeyboardInterrupt:
        raise typer.Exit(INTERRUPTED) from None
    except BrokenPipeError:
        # The reader of stdout has exited (`| head`). Without a valid stdout, the interpreter's last flush would fail.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise typer.Exit(0) from None


def confirm_deletion(label: str, belongings: str, *, as_json: bool) -> None:
    """Ask for confirmation of a deletion. Raises CommandFailed without a terminal, or unless the answer is yes."""
    if as_json or not sys.stdin.isatty():
        raise CommandFailed(f"Nobody can be asked here: --yes deletes {label} without a question.")
    if not typer.confirm(f"Delete {label} with all its {belongings}?"):
        raise CommandFailed("Nothing was deleted.")


def settings() -> Settings:
    """Read the settings from the environment. Raises BadSetting."""
    return Settings.from_env(os.environ)


def open_client(
    url: str | None, key: str | None, org: str | None = None, *, local: Mapping[str, str] | None = None
) -> Client:
    """Open a client of the control plane that the options and the environment select. Raises CommandFailed."""
    own = settings()
    address = find_url(url, own)
    return Client(address, find_key(key, own, local, url=address), tenant=find_tenant(org, local))
