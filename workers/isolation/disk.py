"""What user code holds on a disk, also where it hides it, and how all of it is removed.

No kernel limits a folder of an ordinary file system for an unprivileged service, so folders are counted: every second
those of graph hosts, every two seconds those of build steps. The kernel holds each single file to the same limit
(RLIMIT_FSIZE), so that one large write fails at once. Counted are also files that were removed while a process still has
them open or mapped: they take space and are in no folder.
"""

from __future__ import annotations

import errno
import logging
import os
import stat
from collections.abc import Iterable, Iterator
from contextlib import suppress
from itertools import chain
from pathlib import Path

import gevent.subprocess

from shared.settings import MIB

log = logging.getLogger(__name__)

ENTRY_BYTES = 4096  # a file or folder counts for so much at least: empty ones use up the disk's inodes
MOST_OPEN_FILES = 50_000  # of all processes of a program: more would take long to look at
DELETED = b"(deleted)"

Inode = tuple[int, int]  # device and number


class Uncountable(Exception):
    """Nobody can tell what is held, so it is taken for too much; says why."""


def excess(folders: Iterable[Path], pids: Iterable[int], most_bytes: int) -> str | None:
    """Why folders and the processes that fill them take too much; None when they do not."""
    try:
        if held(folders, pids, most_bytes=most_bytes) > most_bytes:
            return f"more than {most_bytes // MIB} MiB of disk"
    except Uncountable as error:
        return str(error)
    return None


def held(folders: Iterable[Path], pids: Iterable[int] = (), *, most_bytes: float = float("inf")) -> int:
    """Bytes that folders, and files that processes have removed on their disks, take.

    Stops to count beyond `most_bytes`. Raises Uncountable.
    """
    places = {path for path in folders if path.is_dir()}
    places = {path for path in places if places.isdisjoint(path.parents)}
    devices = {path.stat().st_dev for path in places}
    seen: set[Inode] = set()
    total = 0
    for size in chain(*(_in_folder(path, seen) for path in places), _removed(pids, devices, seen)):
        total += size
        if total > most_bytes:
            break
    return total


def _in_folder(folder: Path, seen: set[Inode]) -> Iterator[int]:
    """The sizes of all entries; a file with several names counts once."""
    pending = [str(folder)]
    while pending:
        path = pending.pop()
        try:
            with os.scandir(path) as entries:
                for entry in entries:
                    with suppress(FileNotFoundError):
                        found = entry.stat(follow_symlinks=False)
                        if found.st_nlink == 1 or _is_new(found, seen):
                            yield max(found.st_blocks * 512, ENTRY_BYTES)
                        if stat.S_ISDIR(found.st_mode):
                            pending.append(entry.path)
        except PermissionError as error:
            raise Uncountable(f"a folder that is closed to its owner: {Path(path).name}") from error
        except (FileNotFoundError, NotADirectoryError):
            continue  # removed, or replaced, just now
        except OSError as error:
            if error.errno != errno.ENAMETOOLONG:
                raise
            raise Uncountable("folders in folders, too deep to be counted") from error


def _is_new(found: os.stat_result, seen: set[Inode]) -> bool:
    inode = found.st_dev, found.st_ino
    is_new = inode not in seen
    seen.add(inode)
    return is_new


def _removed(pids: Iterable[int], devices: set[int], seen: set[Inode]) -> Iterator[int]:
    """The sizes of files of these disks that have no name any more and that processes still use."""
    files = 0
    for pid in pids:
        for number in _names(f"/proc/{pid}/fd"):
            files += 1
            if files > MOST_OPEN_FILES:
                raise Uncountable(f"more than {MOST_OPEN_FILES} open files")
            with suppress(OSError):
                found = os.stat(f"/proc/{pid}/fd/{number}")
                is_removed = stat.S_ISREG(found.st_mode) and found.st_nlink == 0 and found.st_dev in devices
                if is_removed and _is_new(found, seen):
                    yield found.st_blocks * 512
        yield from _mapped(pid, devices, seen)


def _names(folder: str) -> list[str]:
    try:
        return os.listdir(folder)
    except OSError:
        return []  # the process has ended


def _mapped(pid: int, devices: set[int], seen: set[Inode]) -> Iterator[int]:
    """The same of files that are closed and mapped: as much as is mapped of them.

    A line of /proc/*/maps: `7f00-7f10 rw-s 00000000 08:01 4711 /path (deleted)`.
    """
    try:
        with open(f"/proc/{pid}/maps", "rb") as file:
            lines = [line.split(maxsplit=5) for line in file if line.rstrip().endswith(DELETED)]
    except OSError:
        return
    known = set(seen)
    for span, _, _, device, number, _ in lines:
        major, minor = (int(part, 16) for part in device.split(b":"))
        inode = os.makedev(major, minor), int(number)
        if inode[0] in devices and inode not in known:
            seen.add(inode)
            begin, end = (int(address, 16) for address in span.split(b"-"))
            yield end - begin


def changed_since(folder: Path, at: float) -> list[Path]:
    """What was put into a large shared folder, or just below its folders, since a time: so it need not be counted whole."""
    found: list[Path] = []
    for path in folder.glob("*"):
        with suppress(OSError):
            if path.name.startswith(".") and path.lstat().st_ctime >= at:
                found.append(path)
            elif path.is_dir() and not path.is_symlink():
                found += [below for below in path.glob("*") if below.lstat().st_ctime >= at]
    return found


def remove(folder: Path) -> None:
    """Remove a folder of user code. What cannot be removed stays."""
    _clear(["rm", "-rf", "--", str(folder)], folder)


def empty(folder: Path) -> None:
    """Remove all that is in a folder of user code."""
    _clear(["find", str(folder), "-mindepth", "1", "-delete"], folder)


def _clear(command: list[str], folder: Path) -> None:
    """Run a command of the system: Python's own ends at folders in folders a thousand deep.

    User code that runs as our user may have closed folders to us, which does not keep root out.
    """
    if not os.path.lexists(folder) or _succeeds(command):
        return
    if os.geteuid() != 0:
        _succeeds(["chmod", "-R", "u+rwX", "--", str(folder)])
    if not _succeeds(command):
        log.warning("something in %s cannot be removed", folder)


def _succeeds(command: list[str]) -> bool:
    process = gevent.subprocess.Popen(
        command,
        stdin=gevent.subprocess.DEVNULL,
        stdout=gevent.subprocess.DEVNULL,
        stderr=gevent.subprocess.DEVNULL,
        env={"PATH": os.defpath},  # user code of the same user may read it
    )
    return process.wait() == 0
