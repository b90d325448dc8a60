"""The decorator of all commands: options for the service and for JSON, the client, and the report of errors.

`@command` fills the parameters of a command by their types:

- `Client`: a client of the control plane; adds `--url`, `--api-key` and `--org`.
- `OperatorClient`: the same without `--org`, for commands about all organizations.
- `Output`: the output; adds `--json`.
- An `OptionGroup`, such as `Service` for a command that opens the client itself: adds an option for each field.

Options of one command are declared as defaults in its signature, options of several commands as `Annotated` types.
"""

from __future__ import annotations

import inspect
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial, wraps
from pathlib import Path
from typing import Annotated, Any, NewType, get_args, get_type_hints

import typer
from typer.core import TyperArgument, TyperGroup, TyperOption
from typer.models import ArgumentInfo, Default

from cli import has_server
from cli.client.access import find_address, find_key, find_tenant
from cli.client.client import Client
from cli.errors import FAILED, INTERRUPTED, CommandFailed
from cli.output import Output, json_text
from shared.setting_values import BadSetting
from shared.settings import Settings

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
Directory = Annotated[
    Path,
    typer.Argument(
        help="Directory of the project. Default: this one.", metavar="DIRECTORY", show_default=False
    ),
]
ConfigFile = Annotated[
    str, typer.Option("--config", "-c", help="Configuration file, relative to the directory.", metavar="FILE")
]
Yes = Annotated[bool, typer.Option("--yes", "-y", "--force", help="Answer every confirmation with yes.")]

JSON_HELP = "Print JSON instead of text."
JSON_EVENTS_HELP = "Print one JSON object for each event, as `deploy` does."

OperatorClient = NewType("OperatorClient", Client)


class OptionGroup:
    """Options that a command takes as one parameter: a dataclass whose fields are the options."""


@dataclass(frozen=True)
class Service(OptionGroup):
    """The service that the options select. The environment, files and contexts are read when a client is opened."""

    url: Url = None
    api_key: Key = None
    org: Org = None

    def open(self, local: Mapping[str, str] | None = None) -> Client:
        """Open a client of the control plane; print which service it is unless the user chose it. Raises CommandFailed.

        `local` holds the variables of the project; None reads `.env` of the working directory.
        """
        environment = settings()
        address = find_address(self.url, environment)
        key = find_key(self.api_key, environment, local, url=address.url)
        address.announce()
        return Client(address.url, key, tenant=find_tenant(self.org, local))


def command(
    function: Callable[..., None] | None = None, *, needs_server: bool = False, json_help: str = JSON_HELP
) -> Any:
    """Make a function a command: fill its parameters of the module's types, and report its errors.

    `needs_server`: the command fails, and says what to install, if only the command line is installed.
    """
    if function is None:
        return partial(command, needs_server=needs_server, json_help=json_help)
    body = function
    parameters = inspect.signature(body, eval_str=True).parameters
    filled = {
        name: parameter.annotation for name, parameter in parameters.items() if _options(parameter.annotation)
    }
    options = {name: kind for filler in filled.values() for name, kind in _options(filler).items()}
    if "as_json" in options:
        options["as_json"] = Annotated[bool, typer.Option("--json", help=json_help)]

    @wraps(body)
    def run(**values: Any) -> None:
        with report_errors(as_json=values.get("as_json", False)), ExitStack() as stack:
            if needs_server:
                require_server(values.pop("context").command_path)
            selected = {name: values.pop(name) for name in options}
            body(**values, **{name: _fill(kind, selected, stack) for name, kind in filled.items()})

    declared = [
        *(_parameter(name, kind) for name, kind in options.items() if _is_argument(kind)),
        *(parameter for name, parameter in parameters.items() if name not in filled),
        *(_parameter(name, kind) for name, kind in options.items() if not _is_argument(kind)),
        *([_parameter("context", typer.Context)] if needs_server else []),
    ]
    # Typer reads the signature and the annotations.
    run.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY) for parameter in declared]
    )
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in declared}
    del run.__wrapped__  # type: ignore[attr-defined]
    return run


def _options(kind: Any) -> Mapping[str, Any]:
    """Return the options that a parameter of this type needs; none for an ordinary parameter."""
    if kind is Output:
        return {"as_json": Any}
    if kind is Client:
        return get_type_hints(Service, include_extras=True)
    if kind is OperatorClient:
        return {"url": Url, "api_key": Key}
    is_group = isinstance(kind, type) and issubclass(kind, OptionGroup)
    return get_type_hints(kind, include_extras=True) if is_group else {}


def _fill(kind: Any, values: Mapping[str, Any], stack: ExitStack) -> Any:
    """Return the value of a parameter of this type. The stack closes it."""
    if kind is Output:
        return Output(as_json=values["as_json"])
    if kind in (Client, OperatorClient):
        return stack.enter_context(Service(**{name: values[name] for name in _options(kind)}).open())
    return kind(**{name: values[name] for name in _options(kind)})


def _parameter(name: str, kind: Any) -> inspect.Parameter:
    default = False if name == "as_json" else None
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=kind)


def _is_argument(kind: Any) -> bool:
    return any(isinstance(part, ArgumentInfo) for part in get_args(kind))


def _type_in_help(param: TyperOption | TyperArgument, ctx: Any) -> str | None:
    """Return the type to print on a help page; None for flags and for arguments with a metavar, which need none."""
    is_clear = param.is_flag if isinstance(param, TyperOption) else param.metavar is not None
    return None if is_clear else _type_column[type(param)](param, ctx)


# Typer's help with Rich prints `<bool>` beside a flag and `<str>` beside an argument. Its help without Rich does not.
_type_column: dict[type, Callable[[Any, Any], str | None]] = {
    kind: kind.display_type_rich for kind in (TyperOption, TyperArgument)
}
TyperOption.display_type_rich = TyperArgument.display_type_rich = _type_in_help  # type: ignore[method-assign]


class StartsByDefault(TyperGroup):
    """A group whose command `start` runs if the first word is no command: `replay NAME` is `replay start NAME`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if args and args[0] not in (*self.commands, *self.get_help_option_names(ctx)):
            args = ["start", *args]
        return super().parse_args(ctx, args)


def new_app(help: str = "", *, completion: bool = False, group: type[TyperGroup] = TyperGroup) -> typer.Typer:
    """Return a group of commands.

    Without `help`, the docstring of the group's callback is its help text. `completion` adds the options that install
    shell completion.
    """
    return typer.Typer(
        cls=group,
        help=help or Default(None),
        no_args_is_help=True,
        add_completion=completion,
        pretty_exceptions_enable=False,
        rich_markup_mode="markdown",  # paragraphs flow to the width of the terminal
        context_settings={"help_option_names": ["--help", "-h"]},
    )


def require_server(command: str) -> None:
    """Raise CommandFailed if only the command line is installed."""
    if not has_server():
        raise CommandFailed(
            f"`{command}` needs the packages of the service, and only the command line is installed. Install the wheel"
            ' with its extra `server`: pip install "runyard[server] @ ADDRESS#sha256=DIGEST". In a clone: make install.'
        )


@contextmanager
def report_errors(*, as_json: bool = False) -> Iterator[None]:
    """Print an error as one sentence and exit with its code; with `as_json`, print an `error` line on stdout."""
    try:
        yield
    except (CommandFailed, BadSetting) as error:
        if as_json:
            typer.echo(json_text({"event": "error", "message": str(error)}))
        else:
            typer.echo(f"Error: {error}", err=True)
        raise typer.Exit(getattr(error, "exit_code", FAILED)) from error
    except KeyboardInterrupt:
        raise typer.Exit(INTERRUPTED) from None
    except BrokenPipeError:
        # The reader of stdout has exited (`| head`). Without a valid stdout, the interpreter's last flush would fail.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise typer.Exit(0) from None


def delete_record(
    out: Output,
    label: str,
    belongings: str,
    delete: Callable[[], Any],
    *,
    yes: bool,
    result: Mapping[str, Any],
) -> None:
    """Delete an object after a confirmation, and report it. Raises CommandFailed without a terminal to ask on."""
    if not yes:
        if out.as_json or not sys.stdin.isatty():
            raise CommandFailed(f"Nobody can be asked here: --yes deletes {label} without a question.")
        if not typer.confirm(f"Delete {label} with all its {belongings}?"):
            raise CommandFailed("Nothing was deleted.")
    delete()
    out.done(f"Deleted {label}.", result)


def settings() -> Settings:
    """Read the settings from the environment. Raises BadSetting."""
    return Settings.from_env(os.environ)
