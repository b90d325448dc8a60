"""Starts a program with a bound of processes and threads, and without preallocation: `python limited.py MOST PROGRAM …`.

A step of its own inside the sandbox, for an ordinary user: outside of it the kernel would count all that the user
runs on the machine. It imports nothing of ours, and whatever starts it gives it an interpreter without packages.
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
# Where the kernel puts a call's number, its architecture and its second argument.
NUMBER, ARCHITECTURE, SECOND = 0, 4, 24
OTHER_NUMBERS = 0x40000000  # x32, on x86_64: other numbers for the same calls
IO_URING_SETUP = 425  # everywhere: what goes through a ring passes no filter
SHRINKS = 0x02 | 0x08  # punching a hole, taking out a range
RESERVES = (0x5824, 0x5828, 0x582A, 0x5839, 0x580A)  # the same as calls of ioctl, older than fallocate
# By machine, for each architecture of programs it runs: its name, and the numbers of fallocate and ioctl.
CALLS = {
    "x86_64": ((0xC000003E, 285, 16), (0x40000003, 324, 54)),
    "aarch64": ((0xC00000B7, 47, 29), (0x40000028, 352, 54)),
}


def forbid_preallocation() -> None:
    """Refuse to reserve blocks without writing them, for this process and all it starts, where the machine is known.

    One call can take a whole disk at once, beyond RLIMIT_FSIZE too, before anybody has counted. Programs write instead.
    Needs PR_SET_NO_NEW_PRIVS or root; a kernel without filters leaves it as it is.
    """
    code = _filter(platform.machine())
    if not code:
        return
    buffer = ctypes.create_string_buffer(code, len(code))
    program = ctypes.create_string_buffer(struct.pack("HxxxxxxP", len(code) // 8, ctypes.addressof(buffer)))
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_SECCOMP, MODE_FILTER, program, 0, 0)


def _filter(machine: str) -> bytes:
    """A program of the kernel's packet filter; nothing for a machine that is not known."""
    found = [(LOAD, 0, 0, ARCHITECTURE)]
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
        found += [(IF_EQUAL, 0, len(rules), architecture), *rules]
    found.append((RETURN, 0, 0, ALLOW))
    return b"".join(struct.pack("HBBI", *step) for step in found) if len(found) > 2 else b""


def main() -> None:
    most = int(sys.argv[1])
    resource.setrlimit(resource.RLIMIT_NPROC, (most, most))
    forbid_preallocation()  # bubblewrap has seen to it that nothing gains rights
    os.execvp(sys.argv[2], sys.argv[2:])


if __name__ == "__main__":
    main()
