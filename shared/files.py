"""Files that are their owner's alone."""

from __future__ import annotations

import os


def owners_alone(path: str, flags: int) -> int:
    """An opener for `open`: others can neither read the file nor lock it, also when it has been there before."""
    number = os.open(path, flags, 0o600)
    os.fchmod(number, 0o600)
    return number
