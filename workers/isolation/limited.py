"""Starts a program with a bound of processes and threads: `python limited.py MOST PROGRAM [ARGUMENT …]`.

A step of its own inside the sandbox, for an ordinary user: outside of it the kernel would count all that the user
runs on the machine. It imports nothing of ours, and whatever starts it gives it an interpreter without packages.
"""

from __future__ import annotations

import os
import resource
import sys


def main() -> None:
    most = int(sys.argv[1])
    resource.setrlimit(resource.RLIMIT_NPROC, (most, most))
    os.execvp(sys.argv[2], sys.argv[2:])


if __name__ == "__main__":
    main()
