"""The file of a backup: a tar of PostgreSQL's dump and, after it, the manifest.

The dump is written as it comes, and its header when its length is known: nothing lies on the disk twice. The manifest
comes last, so that a file that is cut short has none.
"""

from __future__ import annotations

import fcntl
import hashlib
import io
import json
import os
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from cli.errors import CommandFailed
from shared.infra.hardening import owners_alone

FORMAT = 1
KIND = "runyard backup"
DUMP, MANIFEST = "database.dump", "manifest.json"
MANIFEST_BYTES = 1_000_000  # a longer one is none of ours
READ_BYTES = 1024 * 1024
BLOCK = tarfile.BLOCKSIZE  # where a dump begins: after its header


@dataclass(frozen=True)
class Backup:
    """A file that has been read as far as its manifest."""

    path: Path
    manifest: dict[str, Any]
    offset: int
    size: int

    @contextmanager
    def dump(self) -> Iterator[BinaryIO]:
        """The file, at the dump's first byte; also as a child's stdin."""
        with self.path.open("rb", buffering=0) as file:
            file.seek(self.offset)
            yield file


class BackupWriter:
    """An open file that becomes a backup."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file

    def add_dump(self, source: BinaryIO) -> dict[str, Any]:
        """Write all that the source has; its size and digest for the manifest."""
        self._file.write(bytes(BLOCK))
        digest, size = hashlib.sha256(), 0
        for data in iter(lambda: source.read(READ_BYTES), b""):
            self._file.write(data)
            digest.update(data)
            size += len(data)
        self._fill_up(size)
        self._file.seek(0)
        self._file.write(_header(DUMP, size))
        self._file.seek(0, os.SEEK_END)
        return {"bytes": size, "sha256": digest.hexdigest()}

    def add_manifest(self, manifest: dict[str, Any]) -> None:
        """The last thing there is."""
        data = json.dumps(manifest, indent=2).encode()
        self._file.write(_header(MANIFEST, len(data)))
        self._file.write(data)
        self._fill_up(len(data))
        self._file.write(bytes(2 * BLOCK))

    def flush(self) -> None:
        """Let the file be read as far as it is written."""
        self._file.flush()

    def _fill_up(self, size: int) -> None:
        self._file.write(bytes(-size % BLOCK))


def _header(name: str, size: int) -> bytes:
    made = tarfile.TarInfo(name)
    made.size, made.mode = size, 0o600
    return made.tobuf(tarfile.GNU_FORMAT)


@contextmanager
def writing(path: Path, part: Path, *, replace: bool) -> Iterator[BackupWriter]:
    """A file beside `path` that takes its place when the block ends; when the block raises, nothing is left.

    Raises CommandFailed where there is a file already, or somebody writes one.
    """
    try:
        number = owners_alone(str(part), os.O_RDWR | os.O_CREAT)
    except OSError as error:
        raise CommandFailed(f"{path} cannot be written: {error.strerror}.") from error
    with os.fdopen(number, "r+b") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise CommandFailed(f"Another backup is being written there ({part}).") from None
        file.truncate(0)  # of one that was killed
        try:
            yield BackupWriter(file)
            file.flush()
            os.fsync(file.fileno())
            _name(part, path, replace=replace)
        except OSError as error:
            raise CommandFailed(f"{path} cannot be written: {error.strerror or error}.") from error
        finally:
            part.unlink(missing_ok=True)


def _name(part: Path, path: Path, *, replace: bool) -> None:
    """Give the file its name; on disk when this returns."""
    if replace:
        part.rename(path)
    else:
        os.link(part, path)  # unlike a rename, it takes no other's place
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def read(path: Path) -> Backup:
    """Raises CommandFailed for what is no backup, not a whole one, or of a later format."""
    try:
        with path.open("rb") as file:
            return _read(path, file)
    except IsADirectoryError:
        raise CommandFailed(f"{path} is a directory: name a backup in it.") from None
    except OSError as error:
        raise CommandFailed(f"{path} cannot be read: {error.strerror}.") from error


def _read(path: Path, file: BinaryIO) -> Backup:
    first = _member(path, file, 0)
    if first is None or first.name != DUMP:
        raise CommandFailed(f"{path} is no backup of runyard.")
    second = _member(path, file, first.offset_data + first.size + -first.size % BLOCK)
    if second is None or second.name != MANIFEST or second.size > MANIFEST_BYTES:
        raise CommandFailed(f"{path} is not whole: its end is missing.")
    file.seek(second.offset_data)
    data = file.read(second.size)
    if len(data) < second.size:
        raise CommandFailed(f"{path} is not whole: its end is missing.")
    return Backup(path, _manifest(path, data), first.offset_data, first.size)


def _member(path: Path, file: BinaryIO, offset: int) -> tarfile.TarInfo | None:
    """The member whose header is there; None when there is no header."""
    file.seek(offset)
    header = file.read(BLOCK)
    try:
        found = tarfile.TarInfo.frombuf(header, "utf-8", "strict")
    except (tarfile.HeaderError, UnicodeDecodeError):
        return None
    found.offset_data = offset + BLOCK
    return found


def _manifest(path: Path, data: bytes) -> dict[str, Any]:
    try:
        manifest = json.load(io.BytesIO(data))
    except ValueError as error:
        raise CommandFailed(f"{path} is damaged: its manifest cannot be read.") from error
    if not isinstance(manifest, dict) or manifest.get("kind") != KIND:
        raise CommandFailed(f"{path} is no backup of runyard.")
    if manifest["format"] > FORMAT:
        raise CommandFailed(
            f"{path} was made by runyard {manifest['version']}, whose backups this version cannot read: upgrade first."
        )
    return manifest


def verify(backup: Backup) -> None:
    """Read the whole dump; raises CommandFailed unless it is what was written."""
    digest, left = hashlib.sha256(), backup.size
    with backup.dump() as file:
        while left and (data := file.read(min(left, READ_BYTES))):
            digest.update(data)
            left -= len(data)
    if left or digest.hexdigest() != backup.manifest["dump"]["sha256"]:
        raise CommandFailed(f"{backup.path} is damaged: its digest is not the one that was written.")
