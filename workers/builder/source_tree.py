"""Files in folders that user code may have changed: the unpacked project as untrusted data, and files beside it.

No function follows a link that a build step has put in a file's place.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from workers.builder.config.fields import refused

MAX_BYTES = 1024 * 1024  # maximum size of a file of the project that is read
TOP = PurePosixPath()


@dataclass(frozen=True)
class SourceTree:
    """An unpacked archive. Methods take paths relative to its root, except `inside`."""

    root: Path
    directory: PurePosixPath = TOP  # directory of the configuration file

    def inside(self, path: str, what: str) -> PurePosixPath:
        """Convert a path relative to the configuration's directory into one relative to the archive's root.

        Raises BuildFailed if it leads outside the archive. `what` names the path in the error.
        """
        if not path or path.startswith("/") or "\\" in path or "\0" in path:
            raise refused(f"{what} {path!r} must be a relative path")
        inside = plain_path(self.directory / path)
        if inside is None:
            raise refused(f"{what} {path!r} leads outside the archive")
        return inside

    def is_file(self, path: PurePosixPath) -> bool:
        return (self.root / path).is_file()

    def is_dir(self, path: PurePosixPath) -> bool:
        return (self.root / path).is_dir()

    def content(self, path: PurePosixPath, name: str = "") -> bytes:
        """Return the content of a file of at most MAX_BYTES. Raises BuildFailed, which calls the file by `name`."""
        name = name or str(path)
        try:
            raw = read_untrusted(self.root / path, MAX_BYTES + 1)
        except (FileNotFoundError, IsADirectoryError, NotADirectoryError) as error:
            raise refused(f"{name} is not in the archive") from error
        except OSError as error:
            raise refused(f"{name} cannot be read: {error.strerror}") from error
        if len(raw) > MAX_BYTES:
            raise refused(f"{name} is larger than {MAX_BYTES // 1024} KiB")
        return raw


def plain_path(path: PurePosixPath) -> PurePosixPath | None:
    """Return a relative path without `..`; None if it leads outside its base."""
    parts: list[str] = []
    for part in path.parts:
        if part != "..":
            parts.append(part)
        elif not parts:
            return None
        else:
            parts.pop()
    return PurePosixPath(*parts)


def read_untrusted(path: Path, max_bytes: int) -> bytes:
    """Read at most `max_bytes` from the beginning of a file. Raises OSError for a link."""
    with open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), "rb") as file:
        return file.read(max_bytes)


def write_untrusted(path: Path, content: str) -> None:
    """Replace a file, including a link that a build step has put in its place."""
    path.unlink(missing_ok=True)
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o644), "w") as file:
        file.write(content)
