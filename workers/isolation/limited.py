"""Launcher that bounds a program's processes and threads and forbids preallocation.

Usage: `python limited.py MOST PROGRAM …`.

A service that does not run as root uses it inside the sandbox. Outside of the sandbox the kernel would count all
processes that the service's user runs on the machine. The module imports nothing of ours, because it runs in an
interpreter without packages.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import resource
import struct
import sys

PR_SET_SECCOMP, MODE_FILTER = 22, 2
ALLOW, REFUSE = 0x7FFF0000, 0x00050000
LOAD, AND, IF_EQUAL, IF_AT_LEAST, IF_ANY_BIT, RETURN = 0x20, 0x54, 0x15, 0x35, 0x45, 0x06
# Offsets of a system call's number, architecture and second argument in the data of the filter.
NUMBER, ARCHITECTURE, SECOND = 0, 4, 24
OTHER_NUMBERS = 0x40000000  # x32, on x86_64: other numbers for the same calls
IO_URING_SETUP = 425  # on all architectures; operations of a ring bypass the filter
SHRINKS = 0x02 | 0x08  # modes of fallocate that only free space: punch a hole, collapse a range
RESERVES = (0x5824, 0x5828, 0x582A, 0x5839, 0x580A)  # requests of ioctl that reserve blocks, as fallocate
# By machine, for each architecture of the programs that it runs: audit id, numbers of fallocate and ioctl.
CALLS = {
    "x86_64": ((0xC000003E, 285, 16), (0x40000003, 324, 54)),
    "aarch64": ((0xC00000B7, 47, 29), (0x40000028, 352, 54)),
}


def forbid_preallocation() -> None:
    """Refuse system calls that reserve disk blocks without writing them, in this process and its children.

    One such call can take a whole disk, even beyond RLIMIT_FSIZE, before the disk usage is measured. Programs fall back
    to writing. Requires PR_SET_NO_NEW_PRIVS or root. Does nothing on an unknown machine or a kernel without filters.
    """
    code = _filter(platform.machine())
    if not code:
        return
    buffer = ctypes.create_string_buffer(code, len(code))
    program = ctypes.create_string_buffer(struct.pack("HxxxxxxP", len(code) // 8, ctypes.addressof(buffer)))
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_SECCOMP, MODE_FILTER, program, 0, 0)


def _filter(machine: str) -> bytes:
    """Return the seccomp filter as a BPF program; empty for an unknown machine."""
    program = [(LOAD, 0, 0, ARCHITECTURE)]
    for architecture, fallocate, ioctl in CALLS.get(machine, ()):
        rules = [
            (LOAD, 0, 0, NUMBER),
            (IF_AT_LEAST, 0, 1, OTHER_NUMBERS),
            (RETURN, 0, 0, REFUSE | errno.ENOSYS),
            (IF_EQUAL, 0, 1, IO_URING_SETUP),
            (RETURN, 0, 0, REFUSE | errno.ENOSYS),
            (IF_EQUAL, 0, 4, fallocate),
            (LOAD, 0, 0, SECOND),
            (IF_ANY_BIT, 1, 0, SHRINKS),
            (RETURN, 0, 0, REFUSE | errno.EOPNOTSUPP),
            (RETURN, 0, 0, ALLOW),
            (IF_EQUAL, 1, 0, ioctl),
            (RETURN, 0, 0, ALLOW),
            (LOAD, 0, 0, SECOND),
            (AND, 0, 0, 0xFFFF),
        ]
        for number in RESERVES:
            rules += [(IF_EQUAL, 0, 1, number), (RETURN, 0, 0, REFUSE | errno.ENOTTY)]
        rules.append((RETURN, 0, 0, ALLOW))
        program += [(IF_EQUAL, 0, len(rules), architecture), *rules]
    program.append((RETURN, 0, 0, ALLOW))
    return b"".join(struct.pack("HBBI", *step) for step in program) if len(program) > 2 else b""


def main() -> None:
    most = int(sys.argv[1])
    resource.setrlimit(resource.RLIMIT_NPROC, (most, most))
    forbid_preallocation()  # bubblewrap has already set PR_SET_NO_NEW_PRIVS
    os.execvp(sys.argv[2], sys.argv[2:])


if __name__ == "__main__":
    main()
