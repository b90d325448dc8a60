"""A platform on several simulated machines, each with its own data directory and connections to the servers.

All machines use one PostgreSQL and one Redis, over TLS with a password. They share the kernel and nothing else: a
machine's network is its wires and its clock is an offset. When root starts them, each machine has its own user.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from http import HTTPStatus
from pathlib import Path
from typing import Any, LiteralString
from urllib.parse import quote, urlsplit

import psutil
import psycopg

from cli.machine import embedded, procfile
from cli.machine.procfile import PROJECT
from shared.infra import encryption
from tests.support.machines import certificates
from tests.support.machines.network import HOST, Balancer, Network, PostgresTlsEnd, TlsEnd, Wire
from tests.support.servers import running
from tests.support.stack import MARKS, Stack, free_port
from tests.support.waiting import wait_until

PASSWORD = "known to machines/alone"  # special characters must survive in URLs
CLOCKS = PROJECT / "tests" / "clocks"
OPERATOR_KEY = "the-operators-key-of-a-fleet"
START_SECONDS = 120
HEALTHY = "/ok?ready=1"
ANSWERING_LOG_LINES = 60
FIRST_USER = 64_001  # user ids of the machines, unused otherwise


@dataclass(frozen=True)
class Place:
    """Description of a machine: its processes, as `web` or `runner:POOL`, and its clock offset in seconds."""

    name: str
    processes: Sequence[str]
    clock: int = 0


@dataclass
class Process:
    """A running process of one Procfile line."""

    kind: str
    pool: str
    popen: subprocess.Popen[bytes]
    port: int | None = None

    def is_alive(self) -> bool:
        return self.popen.poll() is None


@dataclass
class Machine:
    """A machine's processes, and its wires to the servers."""

    place: Place
    folder: Path
    environment: Mapping[str, str]
    database: Wire
    redis: Wire
    user: int | None  # None: the current user
    processes: list[Process] = field(default_factory=list)
    count: int = 0

    @property
    def name(self) -> str:
        return self.place.name

    def start(self, what: str, port: int | None = None) -> Process:
        """Start a process that writes to the machine's log."""
        kind, _, pool = what.partition(":")
        (line,) = (line for line in procfile.read() if line.name == kind)
        self.count += 1
        env = {
            **line.environment(self.environment),
            "RUNYARD_POOL": pool or "default",
            "RUNYARD_PORT": str(port or free_port()),
        }
        argv = [part.replace("@%h", f"@{self.name}-{self.count}") for part in line.argv]
        with self.log.open("ab") as log:
            popen = subprocess.Popen(
                argv,
                cwd=PROJECT,
                env=env,
                stdout=log,
                stderr=log,
                start_new_session=True,
                user=self.user,
                group=self.user,
                extra_groups=None if self.user is None else [],
            )
        made = Process(kind, pool or "default", popen, port)
        self.processes.append(made)
        return made

    @property
    def log(self) -> Path:
        return self.folder.with_suffix(".log")

    def family(self) -> list[psutil.Process]:
        """Return the machine's processes and all their descendants."""
        found = []
        for process in self.processes:
            with suppress(psutil.NoSuchProcess):
                own = psutil.Process(process.popen.pid)
                found += [own, *own.children(recursive=True)]
        return found

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the whole family at once."""
        family = self.family()
        if number == signal.SIGKILL:  # otherwise a process could start a successor for another
            for process in family:
                with suppress(psutil.NoSuchProcess):
                    process.suspend()
            family = self.family()
        for process in family:
            with suppress(psutil.NoSuchProcess):
                process.send_signal(number)

    def kill(self) -> None:
        """Kill all processes, like a power failure. `start_again` starts the same processes."""
        family = self.family()
        self.signal(signal.SIGKILL)
        for process in self.processes:
            process.popen.wait()
        _, left = psutil.wait_procs(family, timeout=20)
        assert not left, f"outlived `kill -9`: {left}"

    def start_again(self) -> None:
        dead = [process for process in self.processes if not process.is_alive()]
        self.processes = [process for process in self.processes if process.is_alive()]
        for process in dead:
            self.start(f"{process.kind}:{process.pool}", process.port)

    def pids(self, kind: str) -> list[int]:
        return [
            process.popen.pid for process in self.processes if process.kind == kind and process.is_alive()
        ]

    @contextmanager
    def frozen(self) -> Iterator[None]:
        self.signal(signal.SIGSTOP)
        try:
            yield
        finally:
            self.signal(signal.SIGCONT)

    @contextmanager
    def cut_off(self, *wires: str, silently: bool = False) -> Iterator[None]:
        """Break the wires to these servers while the block runs: reset connections, or silence them."""
        ways = [getattr(self, name) for name in wires]
        try:
            for wire in ways:
                wire.silence() if silently else wire.cut()
            yield
        finally:
            for wire in ways:
                wire.mend()


class Fleet(Stack):
    """The whole platform behind a balancer at `url`: `with Fleet([Place(…), …]) as fleet`."""

    def __init__(self, places: Sequence[Place], env: Mapping[str, str] | None = None) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="fleet-")
        super().__init__(Path(self._folder.name), {"RUNYARD_API_KEY": OPERATOR_KEY, **(env or {})})
        self._places = places
        self._left = ExitStack()
        self.machines: dict[str, Machine] = {}

    def __enter__(self) -> Fleet:
        self.start()
        return self

    def __getitem__(self, name: str) -> Machine:
        return self.machines[name]

    # Start and stop

    def start(self) -> None:
        self._left.callback(self._folder.cleanup)
        self._has_users = may_run_as(FIRST_USER)
        if self._has_users:
            self.data_dir.chmod(0o711)
        try:
            self._start_servers()
            self._migrate()
            ports = [free_port() for place in self._places for what in place.processes if what == "web"]
            self.balancer = Balancer(self.network, ports, HEALTHY)
            self.url = f"http://{HOST}:{self.balancer.port}"
            free = iter(ports)
            for place in self._places:
                self._start_machine(place, free)
            wait_until(lambda: self.balancer.well == set(ports), START_SECONDS, what="every web to answer")
            wait_until(self.is_complete, START_SECONDS, what="every worker to be there")
        except BaseException:
            print(self.tail())
            self.stop()
            raise

    def _start_servers(self) -> None:
        self.network = Network()
        self._left.callback(self.network.close)
        trusted, context = certificates.make(self.data_dir, HOST)
        self._trusted = trusted
        postgres = embedded.postgres(self.data_dir / "servers")
        quick = [*postgres.command, "-c", "fsync=off", "-c", "max_connections=300"]
        self._left.enter_context(running(replace(postgres, command=quick, stop_signal=signal.SIGQUIT)))
        self.owner_url = postgres.url
        valkey = embedded.valkey(self.data_dir / "servers")
        self._left.enter_context(running(valkey))
        self.valkey = urlsplit(valkey.url)
        self._env["REDIS_URL"] = valkey.url
        self._database_end = PostgresTlsEnd(self.network, self._postgres_socket(), context)
        self._redis_end = TlsEnd(self.network, Path(self.valkey.path), context)

    def _postgres_socket(self) -> Path:
        with psycopg.connect(self.owner_url, autocommit=True) as owner:
            owner.execute(f"CREATE ROLE platform LOGIN PASSWORD '{PASSWORD}'")
            owner.execute("CREATE DATABASE platform OWNER platform")
            (folder,) = owner.execute("SHOW unix_socket_directories").fetchone() or ("",)
            (hba,) = owner.execute("SHOW hba_file").fetchone() or ("",)
            Path(hba).write_text("local all runyard trust\nlocal all all scram-sha-256\n")
            owner.execute("SELECT pg_reload_conf()")
        self._env["DATABASE_URL"] = (
            f"postgresql://platform:{quote(PASSWORD, safe='')}@/platform?host={quote(folder)}"
        )
        return Path(folder) / ".s.PGSQL.5432"

    def _migrate(self) -> None:
        (line,) = (line for line in procfile.read() if line.name == procfile.RELEASE)
        env = self._common() | {"DATABASE_URL": self._database_address(self._database_end.port)}
        done = subprocess.run(line.argv, cwd=PROJECT, env=env, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr

    def _common(self) -> dict[str, str]:
        """Return the environment variables that are equal on all machines."""
        return {
            **self.environment,
            "PATH": os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"])),
            "PYTHONPATH": str(PROJECT),
            "PYTHONSAFEPATH": "1",
            "PYTHONUNBUFFERED": "1",
            "RUNYARD_LISTEN_HOST": HOST,
            "RUNYARD_ENCRYPTION_KEYS": self._secret_key,
        }

    _secret_key = encryption.new_key()

    def _database_address(self, port: int) -> str:
        return (
            f"postgresql://platform:{quote(PASSWORD, safe='')}@{HOST}:{port}/platform"
            f"?sslmode=verify-full&sslrootcert={quote(str(self._trusted))}"
        )

    def _redis_address(self, port: int) -> str:
        return (
            f"rediss://:{self.valkey.password}@{HOST}:{port}/0"
            f"?ssl_cert_reqs=required&ssl_ca_certs={quote(str(self._trusted))}"
        )

    def _start_machine(self, place: Place, ports: Iterator[int]) -> None:
        folder = self.data_dir / place.name
        folder.mkdir(mode=0o700)
        user = FIRST_USER + len(self.machines) if self._has_users else None
        database, redis = (Wire(self.network, end.port) for end in (self._database_end, self._redis_end))
        env = self._common() | {
            "DATABASE_URL": self._database_address(database.port),
            "REDIS_URL": self._redis_address(redis.port),
            "RUNYARD_DATA_DIR": str(folder),
            "RUNYARD_URL": self.url,
        }
        if place.clock:
            env |= {
                "PYTHONPATH": os.pathsep.join((str(CLOCKS), str(PROJECT))),
                "TEST_CLOCKS": " ".join(f"{kind}={place.clock}" for kind in ("web", "runner", "builder")),
            }
        if user is not None:
            os.chown(folder, user, user)
            env |= {
                "HOME": str(folder),
                "RUNYARD_CACHE_DIR": str(folder / "cache"),
                "RUNYARD_RUNTIME_DIR": str(folder / "run"),
            }
        machine = Machine(place, folder, env, database, redis, user)
        self.machines[place.name] = machine
        for what in place.processes:
            machine.start(what, next(ports) if what == "web" else None)

    def stop(self) -> int:
        """Stop all processes. Fails if one is left behind."""
        families = [process for machine in self.machines.values() for process in machine.family()]
        try:
            for machine in self.machines.values():
                machine.database.mend()
                machine.redis.mend()
                for process in machine.processes:
                    with suppress(ProcessLookupError):
                        os.kill(process.popen.pid, signal.SIGTERM)
            _, left = psutil.wait_procs(families, timeout=45)
            for process in left:
                process.kill()
            for process in self.processes():
                process.popen.wait()
            assert not left, f"left behind: {left}\n{self.tail()}"
        finally:
            self._left.close()
        return 0

    # Inspection

    def processes(self, *kinds: str) -> list[Process]:
        return [
            process
            for machine in self.machines.values()
            for process in machine.processes
            if not kinds or process.kind in kinds
        ]

    def workers(self) -> list[dict[str, Any]]:
        return self.client.get("/v2/workers").raise_for_status().json()["workers"]

    def is_complete(self) -> bool:
        """Return whether every runner and builder reports itself as working.

        A web that was cut off answers 503 for a moment after its network is back.
        """
        answer = self.client.get("/v2/workers")
        if answer.status_code == HTTPStatus.SERVICE_UNAVAILABLE:
            return False
        workers = answer.raise_for_status().json()["workers"]
        fresh = {row["pid"] for row in workers if row["silent_seconds"] < 5 and row["state"] != "draining"}
        alive = {process.popen.pid for process in self.processes("runner", "builder") if process.is_alive()}
        return alive == fresh

    def pids(self, name: str) -> list[int]:
        """Return the ids of processes of this kind on all machines, including descendants such as graph hosts."""
        return [
            process.pid
            for machine in self.machines.values()
            for process in machine.family()
            if MARKS[name] in command_of(process)
        ]

    def rows(self, query: LiteralString, **values: Any) -> list[tuple[Any, ...]]:
        with psycopg.connect(self.owner_url.replace("/postgres?", "/platform?"), autocommit=True) as conn:
            return conn.execute(query, values or None).fetchall()

    def tail(self, lines: int = ANSWERING_LOG_LINES) -> str:
        """Return the last lines of every machine's log."""
        return "\n".join(
            line
            for machine in self.machines.values()
            for line in [
                f"--- {machine.name}",
                *machine.log.read_text(errors="replace").splitlines()[-lines:],
            ]
        )


def may_run_as(user: int) -> bool:
    """Return whether this process may switch to other users, and whether they can read this code."""
    if os.geteuid() != 0:
        return False
    command = [sys.executable, "-c", "import celery, shared.settings"]
    env = {"PYTHONPATH": str(PROJECT), "PYTHONDONTWRITEBYTECODE": "1"}
    try:
        done = subprocess.run(
            command,
            cwd="/",
            env=env,
            user=user,
            group=user,
            extra_groups=[],
            capture_output=True,
            check=False,
        )
    except OSError:
        return False  # other users cannot execute the interpreter
    return done.returncode == 0


def command_of(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())
    except psutil.Error:
        return ""
