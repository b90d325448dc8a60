"""The files of a project as they were unpacked: data of its author, read with care."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from workers.builder import untrusted_files
from workers.builder.config.checks import refused

MAX_BYTES = 1024 * 1024  # of a file that is read
TOP = PurePosixPath()


@dataclass(frozen=True)
class SourceTree:
    """An unpacked archive. Its paths begin at its root, those of a configuration at the configuration's directory."""

    root: Path
    directory: PurePosixPath = TOP  # of the configuration file

    def inside(self, path: str, what: str) -> PurePosixPath:
        """A path of the configuration from the archive's root on; raises BuildFailed when it leads outside."""
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
        """The content of a small file, which errors call by its path or this name; raises BuildFailed."""
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
