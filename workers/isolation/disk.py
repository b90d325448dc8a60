"""Measuring and removing the files of user code, including removed files that a process still has open.

An unprivileged service cannot have the kernel limit a folder of an ordinary file system. The service therefore measures
folders: those of graph hosts every second, those of build steps every two seconds. The kernel applies the same limit to
each single file (RLIMIT_FSIZE), so that one large write fails at once. Removed files that a process still has open or
mapped are counted, too: they take space although no folder contains them.
"""

from __future__ import annotations

import ctypes
import errno
import logging
import os
import platform
import stat
from collections.abc import Iterable, Iterator
from contextlib import suppress
from itertools import chain
from pathlib import Path

import gevent.subprocess

from shared.infra import system
from shared.settings import MIB

log = logging.getLogger(__name__)

ENTRY_BYTES = 4096  # smallest counted size of a file or folder, since empty ones use up the disk's inodes
MOST_OPEN_FILES = 50_000  # of all processes of a program; inspecting more would take too long
DELETED = b"(deleted)"
KCMP_FILES = 2
DIFFERENT = (1, 2)  # results of kcmp for two different tables (first smaller, second smaller)
KCMP = {"x86_64": 312, "aarch64": 272}.get(platform.machine())  # system call number

Inode = tuple[int, int]  # device and number


class Uncountable(Exception):
    """The disk usage cannot be measured and counts as excessive. The message gives the reason."""


def excess(folders: Iterable[Path], pids: Iterable[int], most_bytes: int) -> str | None:
    """Return why folders and the processes that fill them exceed a disk limit; None if they do not."""
    try:
        if held(folders, pids, most_bytes=most_bytes) > most_bytes:
            return f"more than {most_bytes // MIB} MiB of disk"
    except Uncountable as error:
        return str(error)
    except OSError as error:
        return f"something that cannot be counted: {error.strerror}"
    return None


def held(folders: Iterable[Path], pids: Iterable[int] = (), *, most_bytes: float = float("inf")) -> int:
    """Return the bytes of folders, and of removed files on the same disks that processes still use.

    Stops counting beyond `most_bytes`. Raises Uncountable.
    """
    places = {path for path in folders if path.is_dir()}
    places = {path for path in places if places.isdisjoint(path.parents)}
    devices: set[int] = set()
    for path in places:
        with suppress(FileNotFoundError):  # removed meanwhile, as installers do with temporary folders
            devices.add(path.stat().st_dev)
    seen: set[Inode] = set()
    total = 0
    for size in chain(*(_in_folder(path, seen) for path in places), _removed(pids, devices, seen)):
        total += size
        if total > most_bytes:
            break
    return total


def _in_folder(folder: Path, seen: set[Inode]) -> Iterator[int]:
    """Yield the size of each entry. Further hard links to a file count as empty files, since names take space, too."""
    pending = [str(folder)]
    while pending:
        path = pending.pop()
        try:
            with os.scandir(path) as entries:
                for entry in entries:
                    with suppress(FileNotFoundError):
                        status = entry.stat(follow_symlinks=False)
                        is_repeated = status.st_nlink > 1 and not _is_new(status, seen)
                        yield ENTRY_BYTES if is_repeated else max(status.st_blocks * 512, ENTRY_BYTES)
                        if stat.S_ISDIR(status.st_mode):
                            pending.append(entry.path)
        except PermissionError as error:
            raise Uncountable(f"a folder that is closed to its owner: {Path(path).name}") from error
        except (FileNotFoundError, NotADirectoryError):
            continue  # removed or replaced meanwhile
        except OSError as error:
            if error.errno != errno.ENAMETOOLONG:
                raise
            raise Uncountable("folders in folders, too deep to be counted") from error


def _is_new(status: os.stat_result, seen: set[Inode]) -> bool:
    inode = status.st_dev, status.st_ino
    is_new = inode not in seen
    seen.add(inode)
    return is_new


def _removed(pids: Iterable[int], devices: set[int], seen: set[Inode]) -> Iterator[int]:
    """Yield the sizes of removed files on these disks that processes still have open or mapped."""
    files = 0
    for pid in pids:
        for folder in _tables(pid):
            for number in _names(folder):
                files += 1
                if files > MOST_OPEN_FILES:
                    raise Uncountable(f"more than {MOST_OPEN_FILES} open files")
                with suppress(OSError):
                    status = os.stat(f"{folder}/{number}")
                    is_removed = stat.S_ISREG(status.st_mode) and status.st_nlink == 0
                    if is_removed and status.st_dev in devices and _is_new(status, seen):
                        yield status.st_blocks * 512
        yield from _mapped(pid, devices, seen)


def _tables(pid: int) -> Iterator[str]:
    """Yield the /proc folders with the open files of a process: one for each distinct table of its threads.

    The main thread may have ended before the others. Its folder is then empty.
    """
    known: list[int] = []
    for thread in map(int, _names(f"/proc/{pid}/task")):
        if not any(_share_files(thread, other) for other in known):
            known.append(thread)
            yield f"/proc/{pid}/task/{thread}/fd"


def _share_files(thread: int, other: int) -> bool:
    """Return whether two threads share a table. Assumes yes if the kernel refuses `kcmp`, as in many containers."""
    if system.is_linux():
        return (
            KCMP is None or ctypes.CDLL(None).syscall(KCMP, thread, other, KCMP_FILES, 0, 0) not in DIFFERENT
        )
    return True


def _names(folder: str) -> list[str]:
    try:
        return os.listdir(folder)
    except OSError:
        return []  # the process has ended


def _mapped(pid: int, devices: set[int], seen: set[Inode]) -> Iterator[int]:
    """Yield the sizes of removed files that are mapped but closed. Without root only the mapped part is known.

    A line of /proc/*/maps: `7f00-7f10 rw-s 00000000 08:01 4711 /path (deleted)`.
    """
    known = set(seen)
    for line in _lines_of_maps(pid):
        if not line.rstrip().endswith(DELETED):
            continue
        span, _, _, device, number, _ = line.split(maxsplit=5)
        major, minor = (int(part, 16) for part in device.split(b":"))
        inode = os.makedev(major, minor), int(number)
        if inode[0] in devices and inode not in known:
            begin, end = (int(address, 16) for address in span.split(b"-"))
            try:
                size = os.stat(f"/proc/{pid}/map_files/{begin:x}-{end:x}").st_blocks * 512
            except OSError:
                size = end - begin
            else:
                known.add(inode)
            seen.add(inode)
            yield size


def _lines_of_maps(pid: int) -> list[bytes]:
    """Return the lines of /proc/*/maps of a process.

    Reads them from the first living thread, because a thread that has ended has no memory.
    """
    for thread in _names(f"/proc/{pid}/task"):
        with suppress(OSError), open(f"/proc/{pid}/task/{thread}/maps", "rb") as file:
            if lines := file.readlines():
                return lines
    return []


def changed_since(folder: Path, at: float) -> list[Path]:
    """List entries that were added to a large shared folder or its subfolders since a time, to measure only these."""
    entries: list[Path] = []
    for path in folder.glob("*"):
        with suppress(OSError):
            if path.name.startswith(".") and path.lstat().st_ctime >= at:
                entries.append(path)
            elif path.is_dir() and not path.is_symlink():
                entries += [below for below in path.glob("*") if below.lstat().st_ctime >= at]
    return entries


def remove(folder: Path) -> None:
    """Remove a folder of user code. Logs a warning if files cannot be removed.

    Another process removes it, because the removal of thousands of files would block all greenlets.
    """
    _clear(["rm", "-rf", "--", str(folder)], folder)


def empty(folder: Path) -> None:
    """Remove the content of a folder of user code. Logs a warning if files cannot be removed."""
    _clear(["find", str(folder), "-mindepth", "1", "-delete"], folder)


def size_kib(folder: Path) -> int:
    """Return the size of a folder of the service, in KiB. Another process measures it: it may have millions of files."""
    done = gevent.subprocess.run(
        ["du", "-sk", str(folder)],
        stdout=gevent.subprocess.PIPE,
        stderr=gevent.subprocess.DEVNULL,  # files that are removed meanwhile
        check=False,
    )
    return int(done.stdout.split()[0]) if done.stdout else 0


def _clear(command: list[str], folder: Path) -> None:
    """Remove files with a system command, since Python's own functions fail at folders nested a thousand deep.

    User code that runs as the service's user may have removed that user's rights to a folder. Rights are then restored,
    which root does not need.
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
        env={"PATH": os.defpath},  # nothing else: user code of the same user can read the environment
    )
    return process.wait() == 0
