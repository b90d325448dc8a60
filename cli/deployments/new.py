"""`runyard new`: create a starter project from one of the examples."""

from __future__ import annotations

import json
import shlex
import shutil
from pathlib import Path

import typer
from typer import Argument, Option

from cli import PROJECT
from cli.commands import command, has_server
from cli.deployments.project import CONFIG, deployment_name
from cli.errors import BadUsage, CommandFailed
from cli.output import console

TEMPLATES = PROJECT / "examples"
DEFAULT = "chat"
IGNORED = shutil.ignore_patterns("__pycache__", ".env*", ".runyard", "*.egg-info", ".venv")
# An example is deployed from the folder of the service, a new project from its own.
ELSEWHERE = (
    "To deploy it to a running service, keep a key of the service once with `runyard login`. In the folder of `runyard up`,"
    "\n`runyard keys create --role deploy` prints one. Then:"
)
GITIGNORE = ".env*\n.runyard/\n.venv/\n__pycache__/\n"


@command
def new(
    directory: Path | None = Argument(
        None,
        help="Directory to create. It may exist if it is empty.",
        metavar="DIRECTORY",
        show_default=False,
    ),
    template: str = Option(
        DEFAULT, "--template", "-t", help="Template to copy; --list prints them.", metavar="NAME"
    ),
    list_only: bool = Option(False, "--list", help="List the templates."),
) -> None:
    """Create a starter project. It needs no key of a model provider."""
    if list_only:
        for name, text in templates().items():
            console().print(f"{name:<10} {text}")
        return
    if directory is None:
        raise BadUsage("Name the directory: `runyard new my-agent`.")
    create_project(directory, template)
    typer.echo(f"Made {directory} from the template {template}. What to do with it:\n")
    path = shlex.quote(str(directory))
    if has_server():
        typer.echo(f"  runyard dev {path}      serve it here, and again whenever a file changes")
    typer.echo(f"  runyard deploy {path}   deploy it to a running service")


def templates() -> dict[str, str]:
    """Return the names of the templates with the descriptions of their graphs."""
    return {path.parent.name: _description(path) for path in sorted(TEMPLATES.glob(f"*/{CONFIG}"))}


def _description(path: Path) -> str:
    graphs = json.loads(path.read_text(encoding="utf-8"))["graphs"].values()
    return " ".join(graph["description"] for graph in graphs if isinstance(graph, dict))


def create_project(directory: Path, template: str) -> None:
    """Copy a template to a new or empty directory. Raises CommandFailed."""
    known = templates()
    if template not in known:
        raise BadUsage(f"There is no template {template!r}. There are: {', '.join(known)}.")
    try:
        if directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
            raise CommandFailed(f"{directory} is not empty. Name a directory that is, or a new one.")
        shutil.copytree(TEMPLATES / template, directory, ignore=IGNORED, dirs_exist_ok=True)
        (directory / ".gitignore").write_text(GITIGNORE)
        readme = directory / "README.md"
        readme.write_text(_renamed(readme.read_text(encoding="utf-8"), directory, template), encoding="utf-8")
    except OSError as error:
        raise CommandFailed(f"{directory} cannot be made: {error}") from error


def _renamed(text: str, directory: Path, template: str) -> str:
    """Replace the example's name and path in its README by those of the project."""
    name = directory.resolve().name
    text = text.replace(f"# {template}\n", f"# {name}\n", 1)
    for verb in ("deploy", "dev"):
        text = text.replace(f"runyard {verb} examples/{template}", f"runyard {verb}")
    text = text.replace("To deploy it to a running service:", ELSEWHERE)
    deployed = deployment_name(name)
    return text.replace(f"/d/{template}", f"/d/{deployed}").replace(
        f"runyard run {template}", f"runyard run {deployed}"
    )
