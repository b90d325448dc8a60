"""`runyard dev`: serve one project at the root of a port and redeploy it whenever a file changes."""

from __future__ import annotations

import logging
import os
import re
import shlex
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import typer
from typer import Option

from cli import KEPT_KEY
from cli.client.client import Client
from cli.commands import ConfigFile, Directory, command
from cli.deployments.deploy import ArchiveUpload, DeployRequest, read_variables, start
from cli.deployments.following import LAST_LINES, follow
from cli.deployments.logs import Log
from cli.deployments.project import CONFIG, Project, deployment_name, keep_root, original_paths
from cli.deployments.report import FAILED_STEP, Report
from cli.errors import FAILED, BadUsage, CommandFailed
from cli.machine.supervisor import Lines
from cli.machine.up import run_service
from cli.output import printable
from shared.deployments import project_rules
from shared.settings import Settings, names_of

HOST, PORT = "127.0.0.1", 2024
DATA_DIR = ".runyard"
UPLOADED = f"Add {DATA_DIR}/ to .gitignore: `langgraph deploy` would upload it with its keys. `runyard deploy` leaves it out."
NO_KEY = "No key is needed from this machine."
CONSOLE = "/o/"  # this address works even if the project's own app serves the root
STUDIO = "https://smith.langchain.com"
PEER = "Accepted for compatibility with `langgraph dev`"
BLOCKING = "No effect: blocking calls are always allowed."
DEBUGGING = "No effect for graphs in Python, to whose processes no debugger can attach."
DEBUG_PORT = 9229  # of Node
# Between a change of a file and a deploy, and between two comparisons of all files.
DEBOUNCE_MS, LOOK_MS = 300, 2000
BUILD_STEP = re.compile(r"(?:fetching|resolving|creating an|installing|loading) ")  # the builder's lines
# Variables of the shell that are ignored: they describe another service, and `runyard dev` starts its own.
FOREIGN = {
    *names_of("listen_host"),
    *"DATABASE_URL DATABASE_READ_URL DATABASE_DIRECT_URL REDIS_URL REDIS_BROKER_URL REDIS_EVENTS_URL".split(),
    *"RUNYARD_DATABASE_POOLER RUNYARD_PORT RUNYARD_URL RUNYARD_INTERNAL_URL RUNYARD_DATA_DIR RUNYARD_API_KEY".split(),
    *"RUNYARD_ENCRYPTION_KEYS RUNYARD_APP_DOMAIN RUNYARD_DEV_DEPLOYMENT RUNYARD_DEV_ORIGIN".split(),
    *"RUNYARD_DEV_DEBUG_PORT RUNYARD_DEV_DEBUG_WAITS".split(),
}

State = dict[str, tuple[int, int]]  # time and size of each file


@command(needs_server=True)
def dev(
    directory: Directory = Path("."),
    port: int = Option(PORT, "--port", "-p", min=1, max=65535, help="Port to listen on.", metavar="PORT"),
    host: str = Option(
        HOST, help="Address to listen on. Requests from other machines need a key.", metavar="ADDRESS"
    ),
    config: ConfigFile = CONFIG,
    env_file: Path | None = Option(
        None,
        help="File with the project's variables. Default: `env` of the configuration, else .env.",
        metavar="FILE",
    ),
    no_reload: bool = Option(False, "--no-reload", help="Do not deploy again when a file changes."),
    n_jobs_per_worker: int | None = Option(None, min=1, help="Runs at the same time.", metavar="N"),
    studio: bool = Option(
        False, "--studio", help="Accept requests of Studio's pages on this machine without a key."
    ),
    studio_url: str = Option(STUDIO, help="Address of Studio.", metavar="URL"),
    data_dir: Path | None = Option(
        None, help="Directory for threads and environments. Default: .runyard in the project.", metavar="DIR"
    ),
    verbose: bool = Option(False, "--verbose", "-v", help="Print the logs of the service's processes."),
    no_browser: bool = Option(
        False, "--no-browser", help="No effect: no browser is opened anyway.", rich_help_panel=PEER
    ),
    allow_blocking: bool = Option(False, "--allow-blocking", help=BLOCKING, rich_help_panel=PEER),
    debug_port: int | None = Option(
        None,
        min=1,
        max=65535,
        help="Port for a debugger of Node. No effect for graphs in Python.",
        metavar="PORT",
    ),
    wait_for_client: bool = Option(
        False,
        "--wait-for-client",
        help=f"Wait for that debugger before the graphs are loaded. Default port: {DEBUG_PORT}.",
    ),
) -> None:
    """Serve one project at the root of a port, and deploy it again when a file changes.

    The whole service runs, with its own database in the project's .runyard, which keeps threads until the next start.
    Requests from this machine need no API key. When a change does not build, the last version continues to serve. With
    --no-reload, a project that does not build ends the command with exit code 1.
    """
    project = Project.read(directory, config)
    if not verbose:  # warnings of the service's processes do not concern the user
        os.environ.setdefault("PYTHONWARNINGS", "ignore")
    settings = settings_for(project, port, data_dir, verbose=verbose, host=host)
    settings = replace(settings, dev_origin=origin_of(studio_url) if studio else None)
    _keep_out_of_git(settings.data_dir)
    files = ProjectFiles(project.folder, config, env_file)
    lines = Lines(rewrite=partial(original_paths, settings.data_dir, files.root))
    limits = {"max_concurrent_runs": n_jobs_per_worker or 0}
    if data_dir is None and not _is_ignored(project.folder):
        lines.say(UPLOADED)
    is_debugged = bool(debug_port or wait_for_client)
    if is_debugged and project_rules.is_javascript(project.config):
        settings = replace(settings, dev_debug_port=debug_port or DEBUG_PORT, dev_debug_waits=wait_for_client)
        is_debugged = False
    for is_set, word in ((allow_blocking, BLOCKING), (is_debugged, DEBUGGING)):
        if is_set:
            lines.say(word)

    def on_ready(settings: Settings) -> int | None:
        logging.getLogger("httpx").setLevel(logging.WARNING)
        logging.getLogger("watchfiles").setLevel(logging.WARNING)
        with Client(settings.url, settings.api_key or "") as client:
            developing = Developing(client, settings, files, lines, limits=limits, studio_url=studio_url)
            return developing.develop(reload=not no_reload)

    opening = f"Starting. {settings.dev_deployment} will be at {settings.url}"
    raise typer.Exit(run_service(settings, lines, on_ready, opening))


def origin_of(url: str) -> str:
    """Return the origin of a URL in the form that browsers send. Raises BadUsage."""
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.netloc:
        raise BadUsage(f"{url!r} is no address of a page: give one like {STUDIO}.")
    return f"{parts.scheme}://{parts.netloc.lower()}"


def settings_for(
    project: Project, port: int, data_dir: Path | None, *, verbose: bool, host: str = HOST
) -> Settings:
    """Return the service's settings: folders, port and deployment of `runyard dev`, the rest from the environment."""
    environment = {
        name: value for name, value in os.environ.items() if name.removesuffix("_FILE") not in FOREIGN
    }
    overrides = {"RUNYARD_PORT": str(port), "RUNYARD_LISTEN_HOST": host}
    # An idle graph host never stops. The first run after a pause would otherwise wait for a process to start.
    base = Settings.from_env({"RUNYARD_HOST_IDLE_SECONDS": "0"} | environment | overrides)
    folder = (data_dir or project.folder / DATA_DIR).absolute()
    caches = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    is_cache_named = bool(os.environ.get("RUNYARD_CACHE_DIR"))
    return replace(
        base,
        data_dir=folder,
        cache_dir=base.cache_dir if is_cache_named else caches / "runyard",
        dev_deployment=deployment_name(project.folder.name),
        log_level=base.log_level if verbose or "RUNYARD_LOG_LEVEL" in os.environ else "WARNING",
    )


def _is_ignored(folder: Path) -> bool:
    """Whether `langgraph deploy` leaves the data directory out of an upload: it reads only these files."""
    names = (".gitignore", ".dockerignore")
    texts = [(folder / name).read_text(errors="replace") for name in names if (folder / name).is_file()]
    return any(line.strip().strip("/") == DATA_DIR for text in texts for line in text.splitlines())


def _keep_out_of_git(data_dir: Path) -> None:
    data_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
    ignore = data_dir / ".gitignore"
    if not ignore.exists():
        ignore.write_text("*\n")


@dataclass(frozen=True)
class ProjectFiles:
    """The location of the project, which is read anew on each access."""

    folder: Path
    config: str
    env_file: Path | None

    def read(self) -> Project:
        return Project.read(self.folder, self.config)

    def root(self) -> Path:
        """Return the folder that is copied into a revision: the project's, or a parent with its local dependencies."""
        try:
            return self.read().root()
        except CommandFailed:  # the configuration is being edited and cannot be read
            return self.folder


class Developing:
    """The deployment of a project, redeployed whenever its files change."""

    def __init__(
        self,
        client: Client,
        settings: Settings,
        files: ProjectFiles,
        lines: Lines,
        *,
        limits: Mapping[str, Any] | None = None,
        studio_url: str = STUDIO,
    ) -> None:
        self._client, self._settings, self._files, self._lines = client, settings, files, lines
        self._limits, self._studio_url = limits or {}, studio_url
        self._name = settings.dev_deployment or ""
        self._project = files.read()
        self._serves = False

    def develop(self, *, reload: bool) -> int | None:
        """Deploy now and, with `reload`, after every change until the process ends.

        Returns exit code 1 if the only deploy failed, else None, which keeps the service running.
        """
        seen = state_of(self._project)
        self._deploy(reload=reload)
        if not reload:
            return None if self._serves else FAILED
        for names in changes(self._read, seen):
            more = f" and {len(names) - 3} more" if len(names) > 3 else ""
            self._lines.say(f"Changed: {', '.join(names[:3])}{more}")
            self._deploy(reload=True)
        return None

    def _read(self) -> Project:
        """Return the project. While its configuration cannot be read, return the last one that could."""
        try:
            self._project = self._files.read()
        except CommandFailed:
            pass  # the next deploy reports the reason
        return self._project

    def _deploy(self, *, reload: bool) -> None:
        report = Reload(self._lines, show_steps=not self._serves)
        try:
            project = self._files.read()
            keep_root(self._settings.data_dir, self._name, project.root())
            variables = read_variables(project, self._files.env_file)
            request = DeployRequest(
                self._name, ArchiveUpload(project), variables, settings={"limits": self._limits}
            )
            record, revision_id = start(self._client, request, report)
            follow(self._client, record["id"], revision_id, report)
        except CommandFailed as error:
            report.show_log()
            self._lines.say(f"Error: {error}\n{self._advice(reload=reload)}")
            return
        if self._serves:
            self._lines.say(f"{self._name} serves the change.")
            return
        self._serves = True
        self._greet(project)
        threading.Thread(target=self._show_output, args=(record["id"],), name="output", daemon=True).start()

    def _advice(self, *, reload: bool) -> str:
        if self._serves:
            return "The last version goes on serving."
        return "Mend it: it is built again at once." if reload else "Mend it, and start dev again."

    def _greet(self, project: Project) -> None:
        url = self._settings.url + _mount_prefix(project)
        rows = (
            ("Console", f"{self._settings.url}{CONSOLE}"),
            ("API", url),
            ("Docs", f"{url}/docs"),
            ("Studio", f"{self._studio_url.rstrip('/')}/studio/?baseUrl={url}"),
            *([] if self._settings.dev_origin else [("", "Studio needs `runyard dev --studio`.")]),
            ("Graphs", ", ".join(project.config.get("graphs") or {})),
            ("Python", f'get_client(url="{url}")'),
            ("Terminal", first_run(project, self._name)),
            ("Chat UI", f"Enter {url} as its address. A page of another site also needs the key in"),
            ("", str(self._settings.data_dir / KEPT_KEY)),
        )
        self._lines.say()
        who = "Its own authorization decides who may call." if project.config.get("auth") else NO_KEY
        self._lines.say(f"{self._name} serves. {who} Ctrl-C stops it.")
        self._lines.say()
        for label, text in rows:
            self._lines.say(f"  {label:<9} {text}")
        self._lines.say()

    def _show_output(self, deployment_id: str) -> None:
        """Follow the deployment's log and print each line, until the service stops answering."""
        try:
            with Client(self._settings.url, self._settings.api_key or "") as client:
                log = Log(client, deployment_id, None, "deploy", {})
                log.newest(1)
                for line in log.following():
                    self._lines.show(self._name, printable(line["message"]))
        except CommandFailed:
            pass  # the service is stopping


def _mount_prefix(project: Project) -> str:
    """Return the path prefix of all the project's routes, empty for the root."""
    http = project.config.get("http")
    return str(http.get("mount_prefix") or "").rstrip("/") if isinstance(http, dict) else ""


def first_run(project: Project, name: str) -> str:
    """Return a shell command that starts a first run, from any directory."""
    graphs = list(project.config.get("graphs") or {})
    choice = f" --assistant {shlex.quote(graphs[0])}" if len(graphs) > 1 else ""
    return f'cd {shlex.quote(str(project.folder))} && runyard run {name}{choice} "Hello!"'


class Reload(Report):
    """Report of one of many deploys. Prints statuses and warnings at once, the rest of the log only on failure.

    With `show_steps`, the steps of the build are printed at once, too.
    """

    def __init__(self, lines: Lines, *, show_steps: bool = False) -> None:
        self._lines = lines
        self._show_steps = show_steps
        self._log: list[str] = []

    def note(self, text: str) -> None:
        self._lines.say(text)

    def status(self, status: str, seconds: float) -> None:
        self._lines.say(f"{status} after {seconds:.1f} s")

    def log(self, line: dict[str, Any]) -> None:
        text = printable(line["message"])
        if line["level"] == "WARNING" or (self._show_steps and BUILD_STEP.match(text)):
            self._lines.say(f"  {text}")
        elif not FAILED_STEP.match(text):
            self._log.append(text)

    def show_log(self) -> None:
        for text in self._log[-LAST_LINES:]:
            self._lines.say(f"  {text}")


# Watching the project's files: those of its archive, its configuration and its env file. Each directory is watched on its
# own, not recursively, so an ignored one (`.venv`, the data directory) costs nothing. An event only triggers a comparison
# of all files' times and sizes. A missed event therefore loses no change.


def state_of(project: Project) -> State:
    """Return the modification times and sizes of the files that a deploy would read."""
    state: State = {}
    for path in (project.folder / project.config_name, project.env_file, *_files(project)):
        try:
            status = path.stat()
        except OSError:
            continue  # the file was deleted meanwhile
        state[str(path)] = (status.st_mtime_ns, status.st_size)
    return state


def _files(project: Project) -> list[Path]:
    try:
        return [path for _, path in project.files()]
    except CommandFailed:
        return []  # a dependency does not exist; the deploy reports it


def changes(read: Callable[[], Project], seen: State) -> Iterator[list[str]]:
    """Yield the names of files that differ from `seen`, then from the state at the last comparison, without end.

    Raises OSError if polling fails too.
    """
    from watchfiles import watch  # only the extra `server` installs it; other commands work without

    is_polling = False
    while True:
        project = read()
        folders = _folders(project)
        try:
            for _ in watch(
                *folders,
                watch_filter=None,
                recursive=False,
                debounce=DEBOUNCE_MS,
                rust_timeout=LOOK_MS,
                yield_on_timeout=True,
                force_polling=is_polling or None,
            ):
                project = read()
                state = state_of(project)
                changed = {name for name, _ in state.items() ^ seen.items()}
                seen = state
                if changed:
                    yield sorted(_short(project, name) for name in changed)
                if _folders(project) != folders:
                    break
        except OSError:
            if is_polling:
                raise
            is_polling = True  # the system has no inotify watches left


def _folders(project: Project) -> list[Path]:
    try:
        folders = {folder for folder, _ in project.walk()}
    except CommandFailed:
        folders = set()
    return sorted(
        folders | {project.folder, *([project.env_file.parent] if project.env_file.parent.is_dir() else [])}
    )


def _short(project: Project, name: str) -> str:
    path = Path(name)
    return str(path.relative_to(project.folder)) if path.is_relative_to(project.folder) else name
