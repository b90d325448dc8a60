"""A disk that is full, as a process sees it."""

from __future__ import annotations

import os
import resource
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from unittest.mock import patch


@contextmanager
def largest_file(size: int) -> Iterator[None]:
    """No file of this process, and of those it starts, may become larger.

    None of them keeps bytecode meanwhile: Python before 3.14 puts a module's in its place though it was cut short, and
    no process can import the module any more.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    with patch.object(sys, "dont_write_bytecode", True), patch.dict(os.environ, PYTHONDONTWRITEBYTECODE="1"):
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
        try:
            yield
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
