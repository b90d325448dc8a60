"""File format of a backup: rows of tables, and a manifest that authenticates them.

    "runyard backup 2\\n"
    for each table: its rows in the text format of PostgreSQL's COPY, compressed with gzip
    the manifest, as JSON
    the manifest's length (8 bytes, big-endian), HMAC-SHA256 of the manifest (32 bytes)

The manifest lists the tables in file order with size and SHA-256, and the parts fill the file exactly. So every byte is
compared, digested or authenticated: no byte can be changed, added, removed or moved without the key. The file holds no
statement, no definition of a table and no path.
"""

from __future__ import annotations

import fcntl
import hashlib
import hmac
import json
import os
import stat
import struct
import zlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, BinaryIO

from cli.backups import keys
from cli.backups.manifest import Table, parse
from cli.errors import CommandFailed
from shared.infra.system import open_private

FORMAT = 2
MAGIC = b"runyard backup %d\n" % FORMAT
MAGIC_OF_ANY_FORMAT = b"runyard backup "
START_OF_FORMAT_1 = b"database.dump\0"  # a tar whose first member is a dump of pg_dump
TRAILER = struct.Struct(">Q32s")
MAX_MANIFEST_BYTES = 1_000_000
READ_BYTES = 1024 * 1024
GZIP = 16 + zlib.MAX_WBITS  # zlib's parameter for a gzip header and checksum


@dataclass(frozen=True)
class Backup:
    """A backup whose manifest is authenticated."""

    path: Path
    manifest: dict[str, Any]

    @property
    def tables(self) -> tuple[Table, ...]:
        return self.manifest["tables"]

    def blocks(self, table: Table) -> Iterator[bytes]:
        """Yield the rows of a table in blocks of at most READ_BYTES.

        Raises CommandFailed if the part differs from the manifest, at the latest after the last block. A part never
        yields more bytes than the manifest says.
        """
        inflate, text_bytes = zlib.decompressobj(wbits=GZIP), 0
        try:
            for data in self._part(table):
                while data:
                    block = inflate.decompress(data, READ_BYTES)
                    data = inflate.unconsumed_tail
                    text_bytes += len(block)
                    if text_bytes > table.text_bytes:
                        raise self._damaged(table)
                    yield block
        except zlib.error as error:
            raise self._damaged(table) from error
        if not inflate.eof or inflate.unused_data or text_bytes != table.text_bytes:
            raise self._damaged(table)

    def verify(self) -> None:
        """Compare each part with its digest, so that only authentic bytes are decompressed. Raises CommandFailed."""
        for table in self.tables:
            for _ in self._part(table):
                pass

    def _part(self, table: Table) -> Iterator[bytes]:
        digest, remaining = hashlib.sha256(), table.size
        with _open(self.path) as file:
            file.seek(len(MAGIC) + sum(each.size for each in self.tables[: self.tables.index(table)]))
            while data := file.read(min(remaining, READ_BYTES)):
                remaining -= len(data)
                digest.update(data)
                yield data
        if digest.hexdigest() != table.sha256:
            raise self._damaged(table)

    def _damaged(self, table: Table) -> CommandFailed:
        return CommandFailed(
            f"{self.path} is damaged: the rows of {table.name} are not those of its manifest."
        )


@dataclass(frozen=True)
class UnverifiedBackup:
    """A file that looks like a backup. Provides only the fields that are needed to find its key."""

    path: Path
    manifest: dict[str, Any]
    _text: bytes
    _signature: bytes

    @property
    def sealed_keys(self) -> dict[str, Any] | None:
        """Encryption keys, encrypted with a passphrase. Unsealing authenticates them."""
        return self.manifest["sealed_keys"]

    def authenticate(self, encryption_keys: Sequence[str]) -> Backup:
        """Return the backup if the key that its manifest names has signed it. Raises CommandFailed."""
        signer = self.manifest["keys"][0]
        fingerprints = {keys.fingerprint(key): key for key in encryption_keys}
        if signer not in fingerprints:
            raise CommandFailed(
                f"{self.path} cannot be authenticated: it is signed with the encryption key {signer}, and the keys here"
                f" are {', '.join(fingerprints)} (fingerprints; `runyard encryption list` shows them). Set"
                " RUNYARD_ENCRYPTION_KEYS to the keys that the service had"
                + (", or leave it unset and use --passphrase-file." if self.sealed_keys else ".")
            )
        if not hmac.compare_digest(keys.signature(self._text, fingerprints[signer]), self._signature):
            raise CommandFailed(
                f"{self.path} is not authentic: it was changed after the backup, or somebody without the key {signer}"
                " made it."
            )
        return Backup(self.path, self.manifest)


def read(path: Path) -> UnverifiedBackup:
    """Read a file as far as its manifest. Raises CommandFailed if it is no backup, incomplete or of another format."""
    with _open(path) as file:
        _require_format(path, file.read(len(MAGIC)))
        end = file.seek(0, os.SEEK_END) - TRAILER.size
        file.seek(max(end, 0))
        trailer = file.read()
        if end < len(MAGIC) or len(trailer) != TRAILER.size:
            raise CommandFailed(f"{path} is not whole: its end is missing.")
        length, signature = TRAILER.unpack(trailer)
        if length > min(MAX_MANIFEST_BYTES, end - len(MAGIC)):
            raise CommandFailed(f"{path} is not whole: it does not end with a manifest.")
        file.seek(end - length)
        text = file.read(length)
    try:
        manifest = parse(text)
    except ValueError as error:
        raise CommandFailed(f"{path} is damaged: its manifest is not valid ({error}).") from error
    if len(MAGIC) + sum(table.size for table in manifest["tables"]) + length != end:
        raise CommandFailed(f"{path} is damaged: it is not as long as its manifest says.")
    return UnverifiedBackup(path, manifest, text, signature)


@contextmanager
def _open(path: Path) -> Iterator[BinaryIO]:
    """Open a regular file. Raises CommandFailed, also if reading fails."""
    try:
        with open(path, "rb", opener=_without_waiting) as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise CommandFailed(f"{path} is no regular file.")
            yield file
    except IsADirectoryError:
        raise CommandFailed(f"{path} is a directory: name a backup in it.") from None
    except OSError as error:
        raise CommandFailed(f"{path} cannot be read: {error.strerror}.") from error


def _without_waiting(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK)  # opening a FIFO would wait for a writer


def _require_format(path: Path, start: bytes) -> None:
    if start == MAGIC:
        return
    if start.startswith(MAGIC_OF_ANY_FORMAT):
        raise CommandFailed(f"{path} has another backup format than {FORMAT}: upgrade runyard first.")
    if start.startswith(START_OF_FORMAT_1):
        raise CommandFailed(
            f"{path} has backup format 1, which development versions before the first release wrote. This version"
            f" reads format {FORMAT} only, because a file of format 1 can execute commands when it is restored. Make"
            " a new backup of the service."
        )
    raise CommandFailed(f"{path} is no backup of runyard.")


class BackupWriter:
    """An open file that becomes a backup."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        file.write(MAGIC)

    def add_table(self, rows: Iterable[bytes]) -> dict[str, Any]:
        """Write the rows of a table. Returns their sizes and digest for the manifest."""
        deflate = zlib.compressobj(wbits=GZIP)
        digest, size, text_bytes = hashlib.sha256(), 0, 0

        def write(data: bytes) -> None:
            nonlocal size
            self._file.write(data)
            digest.update(data)
            size += len(data)

        for row in rows:
            text_bytes += len(row)
            write(deflate.compress(row))
        write(deflate.flush())
        return {"text_bytes": text_bytes, "size": size, "sha256": digest.hexdigest()}

    def add_manifest(self, manifest: dict[str, Any], key: str) -> None:
        """Write the manifest and sign it with an encryption key. Nothing is written after it."""
        tables = [asdict(table) for table in manifest["tables"]]
        text = json.dumps({**manifest, "tables": tables}).encode()
        self._file.write(text)
        self._file.write(TRAILER.pack(len(text), keys.signature(text, key)))

    def flush(self) -> None:
        """Make the written bytes readable through the file's path."""
        self._file.flush()


@contextmanager
def writing(path: Path, part: Path, *, replace: bool) -> Iterator[BackupWriter]:
    """Write the file `part` and rename it to `path` when the block ends. If the block raises, `part` is deleted.

    Raises CommandFailed if another process writes `part`, or if `path` exists and `replace` is False.
    """
    try:
        with open(part, "r+b", opener=_create_part) as file:
            _lock(file, part)
            file.truncate(0)  # a killed process may have left a partial file
            try:
                yield BackupWriter(file)
                file.flush()
                os.fsync(file.fileno())
                _publish(part, path, replace=replace)
            finally:
                part.unlink(missing_ok=True)
    except OSError as error:
        raise CommandFailed(f"{path} cannot be written: {error.strerror or error}.") from error


def _create_part(path: str, flags: int) -> int:
    # In a directory that other users can write to, a symbolic link of this name would redirect the backup.
    return open_private(path, flags | os.O_CREAT | os.O_NOFOLLOW)


def _lock(file: BinaryIO, part: Path) -> None:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise CommandFailed(f"Another backup is being written there ({part}).") from None


def _publish(part: Path, path: Path, *, replace: bool) -> None:
    """Give the file its final name and sync the directory, so that the name survives a crash."""
    if replace:
        part.rename(path)
    else:
        os.link(part, path)  # unlike a rename, it fails if `path` exists
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
