"""Reading the unpacked files of a project as untrusted data."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from workers.builder import untrusted_files
from workers.builder.config.checks import refused

MAX_BYTES = 1024 * 1024  # maximum size of a file that is read
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
        parts: list[str] = list(self.directory.parts)
        for part in PurePosixPath(path).parts:
            if part != "..":
                parts.append(part)
            elif parts:
                parts.pop()
            else:
                raise refused(f"{what} {path!r} leads outside the archive")
        return PurePosixPath(*parts)

    def is_file(self, path: PurePosixPath) -> bool:
        return (self.root / path).is_file()

    def is_dir(self, path: PurePosixPath) -> bool:
        return (self.root / path).is_dir()

    def content(self, path: PurePosixPath, name: str = "") -> bytes:
        """Return the content of a file of at most MAX_BYTES. Raises BuildFailed, which calls the file by `name`."""
        name = name or str(path)
        try:
            raw = untrusted_files.read(self.root / path, MAX_BYTES + 1)
        except (FileNotFoundError, IsADirectoryError, NotADirectoryError) as error:
            raise refused(f"{name} is not in the archive") from error
        except OSError as error:
            raise refused(f"{name} cannot be read: {error.strerror}") from error
        if len(raw) > MAX_BYTES:
            raise refused(f"{name} is larger than {MAX_BYTES // 1024} KiB")
        return raw
