"""The socket at which a process without a port of its own answers whether it is well: runner, builder and beat.

The process answers from its own loop, so one that is frozen, or whose loop hangs, answers nothing, and the socket
of one that was killed takes no connection. The answer is READY, or the reason why it should get no new work.
`runyard health` asks. There is no round-trip to a server in an answer.
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

from shared.infra import socket_paths

log = logging.getLogger(__name__)

READY = "ready"
END = ".socket"
LONGEST = f".builder-{2**22}{END}"
ANSWER_BYTES = 1000
SEND_SECONDS = 1.0
RETRY_SECONDS = 0.1


class NoHealthAnswer(Exception):
    """The process at a socket is gone, frozen, or its loop hangs."""


@dataclass(frozen=True)
class HealthAddress:
    """Where one process answers; its name tells kind and process id."""

    path: Path
    kind: str
    pid: int


class HealthSocket:
    """Answers for this process from the moment it is opened."""

    def __init__(self, folder: Path, kind: str, why_not_ready: Callable[[], str | None]) -> None:
        self.address = HealthAddress(place(folder) / f"{kind}-{os.getpid()}{END}", kind, os.getpid())
        self._why_not_ready = why_not_ready
        self._listener: socket.socket | None = None

    def open(self) -> None:
        """Without a folder to answer in the process works all the same, with a line in the log."""
        try:
            prepare(self.address.path.parent)
            remove_dead(self.address.path.parent, self.address.kind)
            self._listener = _listen(self.address.path)
        except OSError as error:
            log.warning("`runyard health %s` gets no answer here: %s", self.address.kind, error)
            return
        # Where gevent has patched threads, this is a greenlet of the process's one loop.
        threading.Thread(target=self._serve, args=(self._listener,), name="health", daemon=True).start()

    def close(self) -> None:
        """The process ends in good order."""
        if self._listener is not None:
            self.address.path.unlink(missing_ok=True)

    def _serve(self, listener: socket.socket) -> None:
        while True:
            try:
                asking, _ = listener.accept()
            except OSError as error:  # no descriptor is left: those who ask wait meanwhile
                log.warning("no answer about this process's health: %s", error)
                threading.Event().wait(RETRY_SECONDS)
                continue
            with asking, suppress(OSError):
                asking.settimeout(SEND_SECONDS)
                asking.sendall((self._why_not_ready() or READY).encode()[:ANSWER_BYTES])


def place(folder: Path) -> Path:
    """Where the sockets of this folder lie: in it, where its path is not too long for that."""
    return socket_paths.folder_for(folder, LONGEST)


def prepare(folder: Path) -> None:
    """Make the folder, for this user alone; raises OSError when it is somebody else's or open to others."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o022:
        raise PermissionError(f"{folder} must be a folder of this user that nobody else can write to")


def addresses(folder: Path, kind: str) -> Iterator[HealthAddress]:
    """Of the processes of a kind that answer on this machine, or died without a word."""
    for path in sorted(place(folder).glob(f"{kind}-*{END}")):
        pid = path.name.removeprefix(f"{kind}-").removesuffix(END)
        if pid.isdecimal():
            yield HealthAddress(path, kind, int(pid))


def ask(address: HealthAddress, seconds: float) -> str:
    """What the process there answers; raises NoHealthAnswer."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as asking:
        asking.settimeout(seconds)
        try:
            asking.connect(str(address.path))
            answer = asking.recv(ANSWER_BYTES).decode()
        except TimeoutError:
            raise NoHealthAnswer(
                f"does not answer within {seconds:g} s: it is frozen, or its loop hangs"
            ) from None
        except OSError as error:
            raise NoHealthAnswer(f"is gone ({error.strerror})") from error
    if not answer:
        raise NoHealthAnswer("ended while it was asked")
    return answer


def remove_dead(folder: Path, kind: str) -> None:
    """Forget the processes of a kind that are gone: who starts takes the place of one."""
    for address in addresses(folder, kind):
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as asking:
            asking.setblocking(False)
            try:
                asking.connect(str(address.path))
            except ConnectionRefusedError:
                address.path.unlink(missing_ok=True)
            except OSError:
                pass  # it is there, and has much to answer


def _listen(path: Path) -> socket.socket:
    """Listens before its name is there: whoever finds the name gets an answer."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.settimeout(None)  # Celery gives every socket of beat one
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
