"""Unpacking of an untrusted source archive: `python -m workers.builder.unpack ARCHIVE TARGET`.

The standard library's `data` filter is not sufficient. On some Python 3.11 versions a chain of long symbolic links
overwrites files outside the target in spite of it, and other versions have no filter. This module accepts only regular
files and directories, checks every name, and opens every parent without following links. It counts all limits while
reading and never trusts the sizes in headers.

Unpacking runs in a separate process, because a crafted header can make the standard library's reader loop or allocate
much memory. The builder runs the process in a sandbox with limits, and can end it.
"""

from __future__ import annotations

import gzip
import os
import resource
import stat
import sys
import tarfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Protocol, cast

from shared.errors import BuildFailed
from shared.infra import system

MIB = 1024 * 1024
MAX_BYTES = 1024 * MIB
MAX_ENTRIES = 50_000
MAX_RATIO = 200
FREE_BYTES = 10 * MIB  # MAX_RATIO applies above this size, since small archives may compress better
MAX_NAME_BYTES, MAX_PART_BYTES = 1024, 255
MAX_EXTRA_BYTES = 64 * 1024  # of a header that only describes the next header
MAX_MEMORY_BYTES = 1024 * MIB
MAX_CPU_SECONDS = 300
READ_BYTES = 256 * 1024
DATA_FOLDER = ".runyard"  # data and keys of `runyard dev`, if another tool packed the project's whole folder
STEP = "unpack"

PLAIN = (tarfile.REGTYPE, tarfile.AREGTYPE, tarfile.DIRTYPE)
EXTRA = (tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK)

# Errors that reading a crafted archive can raise, including those that tarfile does not intend.
UNREADABLE = (
    tarfile.TarError, gzip.BadGzipFile, zlib.error, EOFError, ValueError, LookupError, OverflowError,
    RecursionError, MemoryError,
)  # fmt: skip


class Readable(Protocol):
    def read(self, size: int = -1, /) -> bytes: ...


class Counted:
    """A file that counts what has been read from it."""

    def __init__(self, file: Readable) -> None:
        self._file = file
        self.bytes = 0

    def read(self, size: int = -1) -> bytes:
        data = self._file.read(size)
        self.bytes += len(data)
        return data


class Bounded:
    """The unpacked content of a gzip file. Reading raises an error if it exceeds the limits or ends early.

    gzip compares the checksum and length at the end of each member.
    """

    def __init__(self, packed: Counted) -> None:
        self._packed = packed
        self._file = gzip.GzipFile(fileobj=cast("IO[bytes]", packed), mode="rb")
        self._bytes = 0
        self.may_end = False

    def read(self, size: int = -1) -> bytes:
        data = self._file.read(size)
        if not data and not self.may_end:
            raise EOFError("it ends too early")
        self._bytes += len(data)
        if self._bytes > MAX_BYTES:
            raise _refused(f"it unpacks to more than {MAX_BYTES // MIB} MiB")
        if self._bytes > FREE_BYTES and self._bytes > self._packed.bytes * MAX_RATIO:
            raise _refused(f"it unpacks to more than {MAX_RATIO} times its size")
        return data


class Header(tarfile.TarInfo):
    """A tar header that is validated before the reader uses it."""

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> Header:
        try:
            header = super().frombuf(buf, encoding, errors)
        except tarfile.HeaderError as error:
            if not any(buf):
                raise  # the end marker
            # The reader would otherwise treat a damaged header as the end of the archive.
            raise tarfile.ReadError(f"a damaged header: {error}") from error
        if header.type not in PLAIN + EXTRA:
            raise _refused(f"{header.name!r} is neither a regular file nor a directory")
        if header.size < 0 or (header.type in EXTRA and header.size > MAX_EXTRA_BYTES):
            raise _refused("a header has an impossible size")
        return header


def unpack(archive: Path, target: Path) -> tuple[int, int]:
    """Unpack a gzip tar archive into the new directory `target`, without the files in a DATA_FOLDER.

    Returns `(files, skipped files)`. Raises BuildFailed.
    """
    target.mkdir(mode=0o755)
    root = os.open(target, os.O_RDONLY | os.O_DIRECTORY)
    try:
        with archive.open("rb") as file:
            return _Unpacker(Bounded(Counted(file)), root).run()
    except UNREADABLE as error:
        raise _refused(f"it is not a whole gzip tar archive: {error or type(error).__name__}") from error
    except OSError as error:
        raise BuildFailed(
            STEP, f"the source archive cannot be unpacked: {error.strerror or error}"
        ) from error
    finally:
        os.close(root)


def _refused(reason: str) -> BuildFailed:
    return BuildFailed(STEP, f"the source archive is refused: {reason}")


class _Unpacker:
    def __init__(self, source: Bounded, root: int) -> None:
        self._source = source
        self._root = root
        self._files: set[tuple[str, ...]] = set()
        self._directories: set[tuple[str, ...]] = {()}
        self._skipped = 0

    def run(self) -> tuple[int, int]:
        entries = 0
        file = cast("IO[bytes]", self._source)
        with tarfile.open(fileobj=file, mode="r|", tarinfo=Header, encoding="utf-8") as tar:
            for member in tar:
                entries += 1
                if entries > MAX_ENTRIES:
                    raise _refused(f"it has more than {MAX_ENTRIES} entries")
                self._take(tar, member)
            self._require_end(cast("Readable", tar.fileobj))
        return len(self._files), self._skipped

    def _require_end(self, rest: Readable) -> None:
        """Raise BuildFailed if anything but zeros follows the end marker.

        Reads to the end, because gzip compares the last checksum only there.
        """
        self._source.may_end = True
        try:
            while data := rest.read(READ_BYTES):
                if data.strip(b"\0"):
                    raise _refused("it goes on after its end, with a second archive or with other bytes")
        except gzip.BadGzipFile as error:
            raise _refused(f"it is damaged, or other bytes follow its end: {error}") from error

    def _take(self, tar: tarfile.TarFile, member: tarfile.TarInfo) -> None:
        parts = parts_of(member.name)
        if DATA_FOLDER in parts and (member.isdir() or member.isreg()):
            self._skipped += member.isreg()
        elif member.isdir():
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
            with suppress(FileNotFoundError):  # of entries with the same name the last one wins
                os.unlink(parts[-1], dir_fd=parent)
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
            with open(os.open(parts[-1], flags, mode, dir_fd=parent), "wb") as out:
                while data is not None and (piece := data.read(READ_BYTES)):
                    out.write(piece)
        self._files.add(parts)

    @contextmanager
    def _parent(self, parts: tuple[str, ...]) -> Iterator[int]:
        """Open the directory that contains the last part, without following links. Yields its file descriptor."""
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
    """Return the parts of a member's path. Raises BuildFailed unless it is a plain relative path."""
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


def main(archive: str, target: str) -> int:
    """Unpack with limits on memory and CPU time. Returns the exit code; prints the reason of a failure last."""
    system.limit_memory(MAX_MEMORY_BYTES)
    resource.setrlimit(resource.RLIMIT_CPU, (MAX_CPU_SECONDS, MAX_CPU_SECONDS))
    try:
        count, skipped = unpack(Path(archive), Path(target))
    except BuildFailed as error:
        print(error.message)
        return 1
    print(f"unpacked {count} {'file' if count == 1 else 'files'}")
    if skipped:
        print(
            f"WARNING: {skipped} of its files are in {DATA_FOLDER}, the data and keys of `runyard dev`, and were not unpacked."
            f" Add {DATA_FOLDER}/ to .gitignore or .dockerignore, so that the client does not upload them."
        )
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
