"""Where a unix socket lies whose own folder's path is too long for one."""

from __future__ import annotations

import hashlib
import tempfile
from pathlib import Path

MOST = 100  # the kernel's limit is 108 with the end mark; 104 on macOS


def folder_for(folder: Path, name: str) -> Path:
    """The folder itself, or one under the temporary folder that always stands for it."""
    if len(str(folder / name)) <= MOST:
        return folder
    mark = hashlib.sha256(str(folder).encode()).hexdigest()[:16]
    return Path(tempfile.gettempdir()) / f"runyard-{mark}"
