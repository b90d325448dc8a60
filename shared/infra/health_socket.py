"""Health sockets of processes without a port: runner, builder and beat.

The process answers from its own loop, so a frozen process or one whose loop hangs does not answer, and the socket of a
killed process accepts no connection. The answer is READY, or the reason why the process should get no new work.
`runyard health` reads it. Answering needs no round-trip to a server.
"""

from __future__ import annotations

import logging
import os
import socket
import stat
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from shared.infra import system

log = logging.getLogger(__name__)

READY = "ready"
SUFFIX = ".socket"
LONGEST_NAME = f".builder-{2**22}{SUFFIX}"
ANSWER_BYTES = 1000
SEND_SECONDS = 1.0
ACCEPT_PAUSE_SECONDS = 0.1


class NoHealthAnswer(Exception):
    """The process of a health socket has ended, is frozen, or its loop hangs."""


@dataclass(frozen=True)
class HealthAddress:
    """The socket of a process. The file name contains kind and process id."""

    path: Path
    kind: str
    pid: int


class HealthSocket:
    """The health socket of this process. It answers from `open()` until `close()`."""

    def __init__(self, folder: Path, kind: str, why_not_ready: Callable[[], str | None]) -> None:
        self.address = HealthAddress(place(folder) / f"{kind}-{os.getpid()}{SUFFIX}", kind, os.getpid())
        self._why_not_ready = why_not_ready
        self._listener: socket.socket | None = None

    def open(self) -> None:
        """Start to answer. If the folder is unusable, the process works without a health socket and logs a warning."""
        try:
            prepare(self.address.path.parent)
            _remove_dead(self.address.path.parent, self.address.kind)
            self._listener = _listen(self.address.path)
        except OSError as error:
            log.warning(
                "`runyard health %s` cannot reach this process, its health socket was not opened: %s",
                self.address.kind,
                error,
            )
            return
        # Under gevent, this is a greenlet of the process's one loop.
        threading.Thread(target=self._serve, args=(self._listener,), name="health", daemon=True).start()

    def close(self) -> None:
        """Remove the socket, because the process ends in good order."""
        if self._listener is not None:
            self.address.path.unlink(missing_ok=True)

    def _serve(self, listener: socket.socket) -> None:
        while True:
            try:
                peer, _ = listener.accept()
            except OSError as error:  # no descriptor is free: clients wait meanwhile
                log.warning("the health socket cannot accept a connection: %s", error)
                threading.Event().wait(ACCEPT_PAUSE_SECONDS)
                continue
            with peer, suppress(OSError):
                peer.settimeout(SEND_SECONDS)
                peer.sendall((self._why_not_ready() or READY).encode()[:ANSWER_BYTES])


def place(folder: Path) -> Path:
    """Return the folder of the sockets: this one, or a substitute if its path is too long for a socket."""
    return system.socket_folder(folder, LONGEST_NAME)


def prepare(folder: Path) -> None:
    """Create the folder for this user only. Raises OSError if another user owns it or can write to it."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    status = folder.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid() or status.st_mode & 0o022:
        raise PermissionError(f"{folder} must be a folder of this user that nobody else can write to")


def addresses(folder: Path, kind: str) -> Iterator[HealthAddress]:
    """Yield the sockets of all processes of a kind on this machine, including those of killed processes."""
    for path in sorted(place(folder).glob(f"{kind}-*{SUFFIX}")):
        pid = path.name.removeprefix(f"{kind}-").removesuffix(SUFFIX)
        if pid.isdecimal():
            yield HealthAddress(path, kind, int(pid))


def ask(address: HealthAddress, seconds: float) -> str:
    """Return the answer of a process. Raises NoHealthAnswer."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
        client.settimeout(seconds)
        try:
            client.connect(str(address.path))
            answer = client.recv(ANSWER_BYTES).decode()
        except TimeoutError:
            raise NoHealthAnswer(
                f"does not answer within {seconds:g} s: it is frozen, or its loop hangs"
            ) from None
        except OSError as error:
            raise NoHealthAnswer(f"is gone ({error.strerror})") from error
    if not answer:
        raise NoHealthAnswer("ended before it answered")
    return answer


def _remove_dead(folder: Path, kind: str) -> None:
    """Remove the sockets of dead processes of a kind. A starting process calls this, because it may replace one."""
    for address in addresses(folder, kind):
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
            client.setblocking(False)
            try:
                client.connect(str(address.path))
            except ConnectionRefusedError:
                address.path.unlink(missing_ok=True)
            except OSError:
                pass  # the process lives and its queue of connections is full


def _listen(path: Path) -> socket.socket:
    """Listen before the socket gets its name, so that a client that finds the name always gets an answer."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.settimeout(None)  # Celery sets a default timeout for every socket of beat
    hidden = path.with_name(f".{path.name}")
    hidden.unlink(missing_ok=True)
    try:
        listener.bind(str(hidden))
        listener.listen(16)
        hidden.rename(path)
    except OSError:
        listener.close()
        raise
    return listener
