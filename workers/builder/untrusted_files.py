"""Reading and writing of files in folders that build steps can write to, without following links."""

from __future__ import annotations

import os
from pathlib import Path


def read(path: Path, max_bytes: int) -> bytes:
    """Read at most `max_bytes` from the beginning of a file. Raises OSError for a link."""
    with open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), "rb") as file:
        return file.read(max_bytes)


def write(path: Path, content: str) -> None:
    """Replace a file, including a link that a build step has put in its place."""
    path.unlink(missing_ok=True)
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o644), "w") as file:
        file.write(content)
