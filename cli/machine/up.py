"""`runyard up`: start and supervise the whole service on one machine.

Servers without an address in the settings start from their wheels. Then every process of the Procfile starts, and waits
until pending migrations have been applied; `beat` runs within the builder. Processes that die are restarted. On a stop
signal the processes stop first, then the servers; nothing keeps running.

The supervisor keeps each module that it imports as long as it lives. `cli/__main__.py` therefore calls `quick` without
loading the other commands, and this module imports neither an HTTP client nor OpenSSL.
"""

from __future__ import annotations

import base64
import contextlib
import fcntl
import os
import socket
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from cli import KEPT_KEY, KEPT_URL, PROJECT, has_server
from cli.errors import FAILED, INTERRUPTED, CannotStart, CommandFailed
from cli.machine import embedded, health, procfile
from cli.machine.fork_server.client import ForkServer
from cli.machine.supervisor import Child, Died, Lines, Show, SupervisedProgram, Supervisor, describe_exit
from shared.infra import database_version, system
from shared.infra.system import close_memory, open_private
from shared.setting_values import BadSetting
from shared.settings import VARIABLES, Settings, check_public, unknown_variables

GRACE_SECONDS = 30.0
SERVER_SECONDS = 30.0  # covers a crash recovery, which replays the write-ahead log from the last checkpoint
READY_SECONDS = 60.0
LOCK_SECONDS = 15.0
ANSWER_SECONDS = 1.0  # timeout of a check whether web answers
DEBUGGED_SECONDS = 7 * 24 * 3600  # for which a debugger may stop a graph host
# Started while the database is prepared, because a run needs them. The others follow, and do not slow down this start.
FIRST = ("web", "runner")

OF_MACHINE = "workers.isolation."  # log lines of these modules concern the machine, not the process

OnReady = Callable[[Settings], int | None]


class OncePerMachine:
    """Shows the output of processes. A log line about the machine, which each process repeats, is shown once.

    Valkey's advice on kernel settings is hidden: it concerns servers whose data fill the machine's memory. So is its
    report of an ordinary end.
    """

    def __init__(self, show: Show) -> None:
        self._show = show
        self._shown: set[str] = set()

    def __call__(self, name: str, line: str) -> None:
        if name == embedded.VALKEY and embedded.UNIMPORTANT.search(line):
            return
        _, is_of_machine, text = line.partition(OF_MACHINE)
        if is_of_machine:
            if text in self._shown:
                return
            self._shown.add(text)
        self._show(name, line)


def quick(arguments: Sequence[str]) -> int | None:
    """Run `runyard up ARGUMENTS` and return the exit code. None if typer has to parse the arguments."""
    port, host, rest = None, None, list(arguments)
    while rest:
        match rest:
            case ["--port" | "-p", number, *rest] if number.isdecimal() and 0 < int(number) < 2**16:
                port = int(number)
            case ["--host", host, *rest] if not host.startswith("-"):
                pass
            case _:
                return None
    if not has_server():
        return None
    try:
        return serve(settings_for(port, host))
    except (CommandFailed, BadSetting) as error:
        print(f"Error: {error}", file=sys.stderr)
        return getattr(error, "exit_code", FAILED)
    except KeyboardInterrupt:
        return INTERRUPTED


def settings_for(port: int | None, host: str | None) -> Settings:
    """Return the settings from the environment, overridden by the options. Raises BadSetting."""
    check_public(os.environ)
    options = {"RUNYARD_PORT": str(port or ""), "RUNYARD_LISTEN_HOST": host or ""}
    return Settings.from_env({**os.environ, **{name: value for name, value in options.items() if value}})


def serve(settings: Settings) -> int:
    """Run the service and print its addresses. Returns the exit code."""
    lines = Lines()

    def on_ready(settings: Settings) -> None:
        for row in addresses(settings, []):
            lines.say(row)

    return run_service(settings, lines, on_ready)


def run_service(settings: Settings, lines: Lines, on_ready: OnReady, opening: str | None = None) -> int:
    """Run the service until a stop request and return the exit code.

    `opening` is printed once the data directory and the port are known to be available.
    `on_ready` runs in its own thread once the service answers. If it returns an exit code instead of None, the service
    stops with that code.
    """
    close_memory()
    for text in unknown_variables(os.environ):
        lines.say(text)
    settings = replace(settings, processes=procfile.formation_of(settings, system.processors()))
    settings.data_dir.mkdir(parents=True, exist_ok=True)
    settings.data_dir.chmod(0o700)
    with locked(settings.data_dir) as lock:
        require_free_port(settings)
        if opening:
            lines.say(opening)
        supervisor = Supervisor(OncePerMachine(lines.show))
        with supervisor.handling_signals():
            return _serve(_with_keys(settings), lines, on_ready, supervisor, lock)


def _serve(settings: Settings, lines: Lines, on_ready: OnReady, supervisor: Supervisor, lock: int) -> int:
    servers: list[Child] = []
    processes: list[Child] = []
    address_file = settings.data_dir / KEPT_URL
    try:
        is_new = settings.database_url is None and not embedded.has_cluster(settings.data_dir)
        forks = start_fork_server(settings, supervisor)
        settings = _start_servers(settings, supervisor, servers, lock)
        environment = environment_of(settings)
        if supervisor.is_stop_requested:
            return 0
        is_prepared = not is_new and _is_prepared(settings)  # while the fork server loads its modules
        if forks is not None:
            supervisor.wait_until(forks.has_settled, seconds=READY_SECONDS)
        _start_processes(settings, supervisor, environment, processes, is_first=True)
        if not is_prepared and not supervisor.is_stop_requested:
            _migrate(supervisor, environment, lines)
        _await_answer(settings, supervisor)
        _start_processes(settings, supervisor, environment, processes, is_first=False)
        if forks is not None:
            forks.close()
        if supervisor.is_stop_requested:
            return 0
        address_file.write_text(settings.url + "\n")
        ready_thread = _ReadyThread(on_ready, settings, supervisor)
        ready_thread.start()
        while not supervisor.is_stop_requested:
            supervisor.serve()
        return ready_thread.exit_code or 0
    finally:
        lines.say("Stopping.")
        address_file.unlink(missing_ok=True)
        supervisor.stop(processes, grace_seconds=GRACE_SECONDS)
        supervisor.stop(list(reversed(servers)), grace_seconds=GRACE_SECONDS)


# The folder and its keys


@contextlib.contextmanager
def locked(data_dir: Path) -> Iterator[int]:
    """Hold the exclusive lock of the data directory. Yields its file descriptor. Raises CannotStart if it is taken.

    The servers inherit the descriptor, so the lock lasts until the last of them has ended.
    """
    path = data_dir / "lock"
    with open(path, "a+", opener=open_private) as file:
        waited = 0.0
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                owner = path.read_text().strip()
                if (owner.isdecimal() and _is_alive(int(owner))) or waited > LOCK_SECONDS:
                    raise CannotStart(
                        f"{data_dir} is in use: runyard already runs there (process {owner or 'unknown'})."
                        " Stop it, or choose another folder with RUNYARD_DATA_DIR."
                    ) from None
            waited += 0.1
            threading.Event().wait(0.1)  # the owner was killed and its servers are shutting down
        file.truncate(0)
        file.write(str(os.getpid()))
        file.flush()
        yield file.fileno()
        file.truncate(0)


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True


def _with_keys(settings: Settings) -> Settings:
    """Return the settings with an API key and encryption keys. Missing ones are created in the data directory."""
    if not settings.api_key:
        key = embedded.secret_file(settings.data_dir / KEPT_KEY, lambda: f"ryd_admin_{embedded.new_secret()}")
        settings = replace(settings, api_key=key)
    if not settings.encryption_keys:
        path = embedded.key_file(settings.data_dir)
        embedded.secret_file(path, lambda: base64.urlsafe_b64encode(os.urandom(32)).decode())
        settings = replace(settings, encryption_keys=embedded.read_keys(path))
    return settings


def require_free_port(settings: Settings) -> None:
    """Raise CannotStart if web cannot listen on its address and port."""
    family = socket.AF_INET6 if ":" in settings.listen_host else socket.AF_INET
    with socket.socket(family) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((settings.listen_host, settings.port))
        except OSError as error:
            chosen_with = "--port or RUNYARD_PORT" if settings.dev_deployment is None else "--port"
            raise CannotStart(
                f"Port {settings.port} on {settings.listen_host} cannot be used ({error.strerror})."
                f" Stop what listens there, or choose another with {chosen_with}."
            ) from error


# The servers


def _start_servers(settings: Settings, supervisor: Supervisor, started: list[Child], lock: int) -> Settings:
    """Start, in parallel, the servers without an address in the settings. Returns the settings with their addresses."""
    waiting: list[tuple[embedded.Server, Child]] = []
    if settings.redis_url is None:
        server = embedded.valkey(settings.data_dir)
        waiting.append((server, supervisor.start(_program(server, settings.data_dir, lock))))
        settings = replace(settings, redis_url=server.url)
        started.append(waiting[-1][1])
    if settings.database_url is None:
        server = embedded.postgres(settings.data_dir)
        waiting.append((server, supervisor.start(_program(server, settings.data_dir, lock))))
        settings = replace(settings, database_url=server.url, database_direct_url=None)
        started.append(waiting[-1][1])
    for server, child in waiting:
        _await_server(supervisor, server, child)
    return settings


def _program(server: embedded.Server, data_dir: Path, lock: int) -> SupervisedProgram:
    return SupervisedProgram(
        name=server.name,
        argv=server.command,
        environment={**without_secrets(os.environ), **server.environment},
        folder=data_dir,
        stop_signal=server.stop_signal,
        death_signal=server.stop_signal,  # a server shuts down cleanly when the supervisor dies
        before_exec=server.before_exec,
        pass_fds=(lock,),
    )


def without_secrets(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the environment without the service's settings.

    Servers need neither our addresses nor our keys, and other processes may be able to read their environment.
    """
    names = tuple(VARIABLES.values())
    return {name: value for name, value in environment.items() if not name.startswith(names)}


def _await_server(supervisor: Supervisor, server: embedded.Server, child: Child) -> None:
    try:
        ready = supervisor.wait_until(
            lambda: child.pid is not None and server.is_ready(child.pid), seconds=SERVER_SECONDS, needs=child
        )
    except Died as died:
        raise CannotStart(f"{died}. Its last lines are above.") from died
    if not ready and not supervisor.is_stop_requested:
        raise CannotStart(f"{server.name} did not become ready within {SERVER_SECONDS:g} s.")


def _is_prepared(settings: Settings) -> bool:
    """Whether the database has the tables of this release. Raises CannotStart if it cannot be used."""
    assert settings.database_url is not None
    try:
        # A child process checks: the supervisor would otherwise keep a database driver loaded as long as it lives.
        version = database_version.applied_by_child(settings.database_url)
        database_version.refuse_development(version)
    except (database_version.NotUtf8, database_version.DevelopmentDatabase) as error:
        raise CannotStart(str(error)) from error
    except database_version.NoDatabase as error:
        raise CannotStart(f"The database of DATABASE_URL does not answer: {error}") from error
    return database_version.is_enough(version)


def _migrate(supervisor: Supervisor, environment: Mapping[str, str], lines: Lines) -> None:
    """Apply pending migrations. Raises CannotStart."""
    lines.say("Preparing the database.")
    release = next(line for line in procfile.read() if line.name == procfile.RELEASE)
    variables = release.environment(environment)
    code = supervisor.run(
        SupervisedProgram(release.name, release.argv, variables, PROJECT, command=release.command)
    )
    if code != 0 and not supervisor.is_stop_requested:
        raise CannotStart(f"The database could not be prepared: {release.command!r} {describe_exit(code)}.")


# The processes


def environment_of(settings: Settings) -> dict[str, str]:
    """Return the environment of the processes: this process's own, with all resolved addresses and keys."""
    resolved = {
        "DATABASE_URL": settings.database_url or "",
        "DATABASE_DIRECT_URL": settings.database_direct_url or "",
        "REDIS_URL": settings.redis_url or "",
        "RUNYARD_DATA_DIR": str(settings.data_dir),
        "RUNYARD_CACHE_DIR": str(settings.cache_dir),
        "RUNYARD_LISTEN_HOST": settings.listen_host,
        "RUNYARD_PORT": str(settings.port),
        "RUNYARD_PROCESSES": procfile.formation_text(settings.processes),
        "RUNYARD_URL": settings.url,
        "RUNYARD_APP_DOMAIN": settings.app_domain or "",
        "RUNYARD_DEV_DEPLOYMENT": settings.dev_deployment or "",
        "RUNYARD_DEV_ORIGIN": settings.dev_origin or "",
        **_debugging(settings),
        "RUNYARD_HOST_IDLE_SECONDS": f"{settings.host_idle_seconds:g}",
        "RUNYARD_API_KEY": settings.api_key or "",
        "RUNYARD_ENCRYPTION_KEYS": ",".join(settings.encryption_keys),
        "RUNYARD_LOG_LEVEL": settings.log_level,
        "RUNYARD_LOG_FORMAT": settings.log_format,
    }
    return {**system.fork_environment(), **os.environ, **procfile.base_environment(os.environ), **resolved}


def _debugging(settings: Settings) -> dict[str, str]:
    """Return variables for a debugger of JavaScript graphs. It attaches to one host, and may stop it for long."""
    if not settings.dev_debug_port:
        return {"RUNYARD_DEV_DEBUG_PORT": ""}
    return {
        "RUNYARD_DEV_DEBUG_PORT": str(settings.dev_debug_port),
        "RUNYARD_DEV_DEBUG_WAITS": "true" if settings.dev_debug_waits else "false",
        "RUNYARD_HOSTS_PER_REVISION": "1",
        "RUNYARD_HOST_STALL_SECONDS": str(DEBUGGED_SECONDS),
        "RUNYARD_HOST_START_SECONDS": str(DEBUGGED_SECONDS),
    }


def start_fork_server(settings: Settings, supervisor: Supervisor) -> ForkServer | None:
    """Start the fork server, which loads the processes' modules while the servers start.

    Returns None except on Linux. On macOS, for example, forking after these imports is not safe.
    """
    if not system.is_linux():
        return None
    forks = ForkServer(supervisor, without_secrets(environment_of(settings)))
    supervisor.fork = forks.fork
    return forks


def _start_processes(
    settings: Settings,
    supervisor: Supervisor,
    environment: Mapping[str, str],
    started: list[Child],
    *,
    is_first: bool,
) -> None:
    """Start the processes in FIRST, or the others, unless a stop is requested."""
    for line in procfile.supervised(settings.processes):
        if line.name.startswith(FIRST) is is_first and not supervisor.is_stop_requested:
            variables = line.environment(environment)
            program = SupervisedProgram(line.name, line.argv, variables, PROJECT, command=line.command)
            started.append(supervisor.start(program))


def _await_answer(settings: Settings, supervisor: Supervisor) -> None:
    """Wait until web answers. Raises CannotStart if it does not in time."""
    ready = supervisor.wait_until(lambda: _answers(settings), seconds=READY_SECONDS)
    if not ready and not supervisor.is_stop_requested:
        raise CannotStart(f"The service did not answer at {settings.url}/ok within {READY_SECONDS:g} s.")


def _answers(settings: Settings) -> bool:
    """Return whether web answers now."""
    try:
        health.check_web(settings, "/ok", timeout_seconds=ANSWER_SECONDS)
    except health.Unhealthy:
        return False
    return True


class _ReadyThread(threading.Thread):
    """A thread that runs `on_ready` once the service answers, and stops the service with its exit code."""

    def __init__(self, on_ready: OnReady, settings: Settings, supervisor: Supervisor) -> None:
        super().__init__(name="on-ready", daemon=True)
        self._on_ready, self._settings, self._supervisor = on_ready, settings, supervisor
        self.exit_code: int | None = None

    def run(self) -> None:
        code: int | None = 1  # an escaping exception is a bug; it ends the service with a traceback
        try:
            code = self._on_ready(self._settings)
        finally:
            self.exit_code = code
            if code is not None:
                self._supervisor.ask_to_stop()


# The addresses


def addresses(settings: Settings, deployments: list[str]) -> list[str]:
    """Return the lines that the demo prints once the service runs: addresses, keys, the next command."""
    rows = [
        f"Console         {settings.url}/",
        f"Control plane   {settings.url}/v2/deployments",
        *(f"Deployment      {settings.url}/d/{name}" for name in deployments),
        f"API docs        {settings.url}/docs",
        *_other_machines(settings),
        f"API key         in {_relative(settings.data_dir / 'admin.key')}"
        if (settings.data_dir / "admin.key").exists()
        else "API key         the one in RUNYARD_API_KEY",
        "Another key     runyard keys create --name NAME --role ROLE",
        "Deploy yours    runyard deploy DIRECTORY",
    ]
    return ["", *rows, ""]


def _other_machines(settings: Settings) -> list[str]:
    """Return a line for users of other machines, if web listens on every address and no public URL is set."""
    if not settings.listens_everywhere or settings.url != settings.local_url:
        return []
    url = f"http://ADDRESS:{settings.port}"
    return [f"Other machines  {url}/, unencrypted; ADDRESS is this machine's. There: runyard login {url}"]


def _relative(path: Path) -> str:
    """Return the path relative to the working directory if it lies below it."""
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else str(path)
