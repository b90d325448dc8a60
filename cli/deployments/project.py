"""A project directory on this machine: its configuration, name, secrets and source archive; and `runyard new`.

The archive contains regular files only, and omits those that the ignore files of its top directories exclude. It
never contains a file whose name begins with `.env`, nor the env file that the configuration names: secrets are sent
separately.
"""

from __future__ import annotations

import gzip
import json
import os
import re
import shlex
import shutil
import tarfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import typer
from pathspec import GitIgnoreSpec
from typer import Argument, Option

from cli import PROJECT, has_server
from cli.client.access import TENANT_NAMES, read_env
from cli.commands import command
from cli.errors import BadUsage, CommandFailed
from cli.output import console
from shared.deployments import project_rules
from shared.errors import misspelt

CONFIG = "langgraph.json"
NAME = "LANGSMITH_DEPLOYMENT_NAME"  # variable of `langgraph deploy`, in the environment or in .env
# Variables that configure the command line itself.
CLIENT_VARIABLES = frozenset({NAME, "RUNYARD_API_KEY", *TENANT_NAMES})
ALWAYS_IGNORED = (
    "__pycache__/ .git/ .venv/ venv/ .env/ node_modules/ .tox/ .mypy_cache/ .ruff_cache/ .pytest_cache/ .runyard/"
    " .langgraph_api/"
).split()
SECRET_FILES = re.compile(r"\.env.*")
IGNORE_FILES = (".dockerignore", ".gitignore")
KEPT_ROOT = "project.json"  # in the data directory of `runyard dev`: its deployment and the edited folder
MAX_ARCHIVE_BYTES = 200 * 1024 * 1024

# Of `runyard new`
TEMPLATES = PROJECT / "examples"
TEMPLATE = "chat"
NOT_COPIED = shutil.ignore_patterns(
    "__pycache__", ".env*", ".runyard", "*.egg-info", ".venv", "node_modules", "dist"
)
# An example is deployed from the folder of the service, a new project from its own.
ELSEWHERE = (
    "\n\nTo deploy it to a running service, keep a key of the service once with `runyard login`. In the folder of"
    "\n`runyard up`, `runyard keys create --role deploy` prints one. Then:"
)
GITIGNORE = ".env*\n.runyard/\n.venv/\n__pycache__/\nnode_modules/\n"


@dataclass(frozen=True)
class Project:
    """A directory with a configuration file."""

    folder: Path
    config_name: str
    config: dict[str, Any]

    @classmethod
    def read(cls, folder: Path, config_name: str = CONFIG) -> Project:
        """Read the project in a directory. Raises CommandFailed if its configuration is missing or not usable."""
        path = folder / config_name
        try:
            config = json.loads(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            raise CommandFailed(
                f"{path} does not exist. Name the directory of a project, or make one with `runyard new`."
            ) from None
        except (OSError, UnicodeDecodeError) as error:
            raise CommandFailed(f"{path} cannot be read: {error}") from error
        except ValueError as error:
            raise CommandFailed(f"{path} is not JSON: {error}") from error
        if not isinstance(config, dict):
            raise CommandFailed(f"{path} must hold a JSON object")
        return cls(folder.resolve(), config_name, config)

    @property
    def env_file(self) -> Path:
        """The project's env file, which need not exist."""
        named = self.config.get("env")
        return self.folder / named if isinstance(named, str) and named else self.folder / ".env"

    def variables(self) -> dict[str, str]:
        """Return the variables that the configuration or the env file sets for the deployment, without empty ones."""
        named = self.config.get("env")
        if isinstance(named, dict) and named:
            return {str(name): str(value) for name, value in named.items() if value not in (None, "")}
        return read_env(self.env_file)

    @property
    def missing_env_file(self) -> str | None:
        """The env file that the configuration names, if that file does not exist."""
        named = self.config.get("env")
        return named if isinstance(named, str) and named and not self.env_file.is_file() else None

    def folders(self) -> list[Path]:
        """Return the project's directory and the directories outside it that it depends on. Raises CommandFailed."""
        folders = [self.folder]
        for entry in self._dependencies():
            folder = (self.folder / entry).resolve()
            if not folder.is_dir():
                raise CommandFailed(f"{self.config_name}: the dependency {entry!r} is not a directory")
            if not any(folder.is_relative_to(known) for known in folders):
                folders.append(folder)
        workspace = self._workspace()
        return folders if workspace is None else [*folders, workspace]

    def _workspace(self) -> Path | None:
        """Return the folder of the npm, yarn or pnpm workspace that a JavaScript project is installed with, if any.

        It is the nearest one above with a lock file. The search ends at the folder of a git repository.
        """
        if not project_rules.is_javascript(self.config):
            return None
        for folder in (self.folder, *self.folder.parents):
            if any((folder / name).is_file() for name in project_rules.LOCK_FILES):
                return folder if folder != self.folder and _is_workspace(folder) else None
            if (folder / ".git").exists():
                return None
        return None

    def _dependencies(self) -> list[str]:
        """Return the directories that the configuration depends on. Omits packages, which the build installs."""
        entries = self.config.get("dependencies") or []
        if not isinstance(entries, list):
            raise CommandFailed(f"{self.config_name}: dependencies must be a list")
        roots = [entry for entry in entries if isinstance(entry, str) and entry.startswith(".")]
        source = self.config.get("source")
        if isinstance(source, dict) and isinstance(source.get("root"), str):
            roots.append(source["root"])
        return roots

    def root(self) -> Path:
        """Return the directory that names in the archive are relative to."""
        return Path(os.path.commonpath(self.folders()))

    @property
    def config_path(self) -> str:
        """The configuration file's name within the archive."""
        return (self.folder / self.config_name).relative_to(self.root()).as_posix()

    def files(self) -> Iterator[tuple[str, Path]]:
        """Yield the project's regular files with their names in the archive. Raises CommandFailed."""
        root = self.root()
        for here, names in self.walk():
            for path in (here / name for name in names):
                is_secret = SECRET_FILES.fullmatch(path.name) or path == self.env_file
                if not is_secret and not path.is_symlink() and path.is_file():
                    yield path.relative_to(root).as_posix(), path

    def walk(self) -> Iterator[tuple[Path, list[str]]]:
        """Yield the project's directories with the names of their files, without ignored ones. Raises CommandFailed."""
        folders = self.folders()
        for folder in folders:
            # Each directory has its own ignore files. A directory inside another one is therefore walked separately.
            yield from _walk(folder, apart=[other for other in folders if other != folder])

    def write_archive(self, file: BinaryIO) -> int:
        """Write the source as a gzip-compressed tar. Returns its size in bytes. Raises CommandFailed."""
        self._check_graphs()
        names: set[str] = set()
        with (
            gzip.GzipFile("source.tar", "wb", 6, file, 0) as packed,
            tarfile.open(fileobj=packed, mode="w") as tar,
        ):
            for name, path in self.files():
                names.add(name)
                _add(tar, path, name)
        if self.config_path not in names:
            raise CommandFailed(
                f"{self.config_name} is excluded by an ignore file: it must be in the archive"
            )
        size = file.tell()
        if size > MAX_ARCHIVE_BYTES:
            raise CommandFailed(
                f"The project packs to {size // 2**20} MiB; at most {MAX_ARCHIVE_BYTES // 2**20} MiB are accepted."
                " Exclude what the graphs do not need with a .gitignore."
            )
        return size

    def _check_graphs(self) -> None:
        """Raise CommandFailed for a configuration that the build would refuse: without graphs, or in two languages."""
        for key in ("graphs", "dependencies"):
            if key not in self.config and (similar := misspelt(key, self.config)):
                raise CommandFailed(f"{self.config_name}: {similar}: unknown key. Did you mean {key}?")
        if "graphs" not in self.config:
            raise CommandFailed(f"{self.config_name}: graphs: this key is missing")
        if reason := project_rules.language_refusal(self.config):
            raise CommandFailed(f"{self.config_name}: {reason}")


def _is_workspace(folder: Path) -> bool:
    """Whether a folder names packages below it that are installed together."""
    if (folder / "pnpm-workspace.yaml").is_file():
        return True
    try:
        return "workspaces" in json.loads((folder / "package.json").read_text(encoding="utf-8"))
    except (OSError, ValueError, TypeError):
        return False


def _add(tar: tarfile.TarFile, path: Path, name: str) -> None:
    try:
        with path.open("rb") as source:
            info = tar.gettarinfo(arcname=name, fileobj=source)
            info.type = tarfile.REGTYPE  # tarfile would write a second hard link to a file as a link
            info.size = os.fstat(source.fileno()).st_size
            info.uid = info.gid = 0
            info.uname = info.gname = ""
            tar.addfile(info, source)
    except OSError as error:
        raise CommandFailed(f"{path} cannot be read: {error.strerror or error}") from error


def _walk(folder: Path, *, apart: list[Path]) -> Iterator[tuple[Path, list[str]]]:
    """Yield each directory that is not ignored, with the names of its files that are not ignored."""
    spec = ignored(folder)
    for parent, subfolders, names in os.walk(folder):
        here = Path(parent)
        relative = here.relative_to(folder)
        subfolders[:] = sorted(
            name for name in subfolders
            if not spec.match_file(f"{(relative / name).as_posix()}/")
            and not (here / name).is_symlink() and here / name not in apart
        )  # fmt: skip
        yield here, [name for name in sorted(names) if not spec.match_file((relative / name).as_posix())]


def ignored(folder: Path) -> GitIgnoreSpec:
    """Return the patterns of omitted files: the built-in ones, then those of the directory's ignore files."""
    patterns = [*ALWAYS_IGNORED]
    for name in IGNORE_FILES:
        path = folder / name
        if path.is_file():
            patterns += path.read_text(errors="replace").splitlines()
    return GitIgnoreSpec.from_lines(patterns)


def deployment_name(text: str) -> str:
    """Convert any text to a deployment's name: lower case letters, digits and dashes."""
    return re.sub(r"[^a-z0-9-]+", "-", text.lower()).strip("-") or "app"


def is_deployment_name(text: str) -> bool:
    """Whether a text may be the name of a deployment or of a preview."""
    return re.fullmatch(r"[a-z0-9]([a-z0-9-]*[a-z0-9])?", text) is not None


def name_here() -> str:
    """Return the name that `deploy` would give the project in the current directory."""
    folder = Path.cwd()
    variables = Project.read(folder).variables() if (folder / CONFIG).is_file() else read_env()
    return name_of(folder.name, variables)


def name_of(folder: str, variables: Mapping[str, str]) -> str:
    """Return a project's default name: from the variable LANGSMITH_DEPLOYMENT_NAME, else from its directory."""
    return deployment_name(os.environ.get(NAME) or variables.get(NAME) or folder)


def sendable(variables: Mapping[str, str]) -> tuple[list[dict[str, str]], list[str]]:
    """Return the variables in the form of the control plane, and the sorted names of variables that it would refuse.

    Variables for the command line itself are in neither.
    """
    refused = project_rules.refused_variables(variables)
    sent = [{"name": name, "value": value} for name, value in variables.items() if name not in refused]
    return sent, sorted(set(refused) - CLIENT_VARIABLES)


def original_paths(data_dir: Path, root: Callable[[], Path], text: str) -> str:
    """Replace paths into a revision's copy of the project by the paths of the edited originals."""
    places = "|".join(re.escape(str(place)) for place in {data_dir.absolute(), data_dir.resolve()})
    return re.sub(rf"(?:{places})/revisions/[0-9a-f-]+/project(?![\w.-])", lambda _: str(root()), text)


def keep_root(data_dir: Path, name: str, root: Path) -> None:
    """Keep the folder from which `runyard dev` deploys, for `kept_paths`."""
    (data_dir / KEPT_ROOT).write_text(json.dumps({"deployment": name, "root": str(root.absolute())}))


def kept_paths(data_dir: Path, name: str) -> Callable[[str], str]:
    """Return a function that replaces paths as `original_paths` does.

    The function changes nothing unless `runyard dev` deployed this deployment with the data directory.
    """
    try:
        kept = json.loads((data_dir / KEPT_ROOT).read_text())
        root = Path(kept["root"]) if kept["deployment"] == name else None
    except (OSError, ValueError, KeyError, TypeError):
        root = None
    return str if root is None else lambda text: original_paths(data_dir, lambda: root, text)


# `runyard new`


@command
def new(
    directory: Path | None = Argument(
        None, help="Directory to create. It may exist if it is empty.", metavar="DIRECTORY"
    ),
    template: str = Option(
        TEMPLATE, "--template", "-t", help="Template to copy; --list prints them.", metavar="NAME"
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
        shutil.copytree(TEMPLATES / template, directory, ignore=NOT_COPIED, dirs_exist_ok=True)
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
    text = text.replace(" To deploy it to a running service:", ELSEWHERE)
    deployed = deployment_name(name)
    return text.replace(f"/d/{template}", f"/d/{deployed}").replace(
        f"runyard run {template}", f"runyard run {deployed}"
    )
