"""Folders of unix sockets, with a substitute for folders whose path is too long for a socket."""

from __future__ import annotations

import hashlib
import tempfile
from pathlib import Path

MOST = 100  # the kernel allows 107 characters; macOS 103


def folder_for(folder: Path, name: str) -> Path:
    """Return the folder, or a folder in the temporary folder whose name derives from it."""
    if len(str(folder / name)) <= MOST:
        return folder
    mark = hashlib.sha256(str(folder).encode()).hexdigest()[:16]
    return Path(tempfile.gettempdir()) / f"runyard-{mark}"
