"""Unpacks a source archive that nobody trusts.

Why not the standard library's `data` filter: on some Python 3.11 versions a chain of long symbolic links
overwrites files outside the target in spite of it, and others have no filter at all. So: regular files and
directories only, every name checked, every parent opened without following links, and all limits counted
while reading, never taken from headers.
"""

from __future__ import annotations

import os
import stat
import tarfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from shared.errors import BuildFailed

MIB = 1024 * 1024
MAX_BYTES = 1024 * MIB
MAX_ENTRIES = 50_000
MAX_RATIO = 200
FREE_BYTES = 10 * MIB  # small archives may compress better than MAX_RATIO
MAX_NAME_BYTES, MAX_PART_BYTES = 1024, 255
READ_BYTES = 256 * 1024
STEP = "unpack"


class Counted:
    """A file that counts what has been read from it."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self.bytes = 0

    def read(self, size: int = -1) -> bytes:
        data = self._file.read(size)
        self.bytes += len(data)
        return data


def unpack(archive: Path, target: Path) -> int:
    """Unpack a gzip tar into the new directory `target`; the number of files. Raises BuildFailed."""
    target.mkdir(mode=0o755)
    root = os.open(target, os.O_RDONLY | os.O_DIRECTORY)
    try:
        with archive.open("rb") as file:
            return _Unpacker(Counted(file), root).run()
    except (tarfile.TarError, zlib.error, EOFError) as error:
        raise _refused(f"this is not a whole gzip tar archive: {error}") from error
    except OSError as error:
        raise _refused(error.strerror or str(error)) from error
    finally:
        os.close(root)


def _refused(reason: str) -> BuildFailed:
    return BuildFailed(STEP, f"the source archive is refused: {reason}")


class _Unpacker:
    def __init__(self, source: Counted, root: int) -> None:
        self._source = source
        self._root = root
        self._bytes = 0
        self._files: set[tuple[str, ...]] = set()
        self._directories: set[tuple[str, ...]] = {()}

    def run(self) -> int:
        entries = 0
        with tarfile.open(fileobj=self._source, mode="r|gz") as tar:  # type: ignore[call-overload]
            for member in tar:
                entries += 1
                if entries > MAX_ENTRIES:
                    raise _refused(f"it has more than {MAX_ENTRIES} entries")
                self._take(tar, member)
        return len(self._files)

    def _take(self, tar: tarfile.TarFile, member: tarfile.TarInfo) -> None:
        parts = parts_of(member.name)
        if member.isdir():
            self._make_directories(parts)
        elif member.isreg() and not member.issparse():
            self._make_directories(parts[:-1])
            self._write(tar, member, parts)
        else:
            raise _refused(f"{member.name!r} is neither a regular file nor a directory")

    def _make_directories(self, parts: tuple[str, ...]) -> None:
        for end in range(1, len(parts) + 1):
            path = parts[:end]
            if path in self._directories:
                continue
            if path in self._files:
                raise _refused(f"{'/'.join(path)!r} is a file and a directory")
            with self._parent(path) as parent:
                os.mkdir(path[-1], 0o755, dir_fd=parent)
            self._directories.add(path)

    def _write(self, tar: tarfile.TarFile, member: tarfile.TarInfo, parts: tuple[str, ...]) -> None:
        if not parts or parts in self._directories:
            raise _refused(f"{member.name!r} is a file and a directory")
        data = tar.extractfile(member)
        mode = 0o755 if member.mode & stat.S_IXUSR else 0o644
        with self._parent(parts) as parent:
            with suppress(FileNotFoundError):  # of doubles the last wins
                os.unlink(parts[-1], dir_fd=parent)
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
            with open(os.open(parts[-1], flags, mode, dir_fd=parent), "wb") as out:
                while data is not None and (piece := data.read(READ_BYTES)):
                    self._count(len(piece))
                    out.write(piece)
        self._files.add(parts)

    def _count(self, size: int) -> None:
        self._bytes += size
        if self._bytes > MAX_BYTES:
            raise _refused(f"it unpacks to more than {MAX_BYTES // MIB} MiB")
        if self._bytes > FREE_BYTES and self._bytes > self._source.bytes * MAX_RATIO:
            raise _refused(f"it unpacks to more than {MAX_RATIO} times its size")

    @contextmanager
    def _parent(self, parts: tuple[str, ...]) -> Iterator[int]:
        """The directory that holds the last part, reached without following any link."""
        here = os.dup(self._root)
        try:
            for part in parts[:-1]:
                below = os.open(part, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=here)
                os.close(here)
                here = below
            yield here
        finally:
            os.close(here)


def parts_of(name: str) -> tuple[str, ...]:
    """A member's path, part by part; raises BuildFailed when it is not a plain relative one."""
    try:
        size = len(name.encode("utf-8"))
    except UnicodeEncodeError as error:
        raise _refused(f"{name!r} is not valid UTF-8") from error
    if size > MAX_NAME_BYTES:
        raise _refused("a name is too long")
    if name.startswith("/") or "\\" in name or "\0" in name or (len(name) > 1 and name[1] == ":"):
        raise _refused(f"{name!r} is not a relative path")
    parts = tuple(part for part in name.split("/") if part not in ("", "."))
    if ".." in parts:
        raise _refused(f"{name!r} leaves the archive")
    if any(len(part.encode()) > MAX_PART_BYTES for part in parts):
        raise _refused("a part of a name is too long")
    return parts
