"""What a child process does to itself between fork and exec: rights, user namespace and resource limits.

The kernel counts a user's processes and threads in each user namespace apart, and never those of the machine's
root. So a program that is to have a bound of its own starts as another user in a namespace of its own.
"""

from __future__ import annotations

import ctypes
import os
import posix
import resource
import signal
from collections.abc import Mapping
from dataclasses import dataclass

from shared.infra import system

PR_CAPBSET_DROP = 24
PR_SET_NO_NEW_PRIVS = 38
PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL = 47, 4
CLONE_NEWUSER = 0x10000000
CAPABILITIES = range(64)  # more than there are: dropping what does not exist is refused and harmless
CAPABILITY_VERSION = 0x20080522
OPEN_FILES = 4096

_libc = ctypes.CDLL(None, use_errno=True)


@dataclass(frozen=True)
class Identity:
    """Whom user code runs as when it is not us."""

    uid: int
    gid: int


def limit(kind: int, most: int) -> None:
    """Lower a resource limit for good; one that is lower already stays."""
    _, hard = resource.getrlimit(kind)
    most = most if hard == resource.RLIM_INFINITY else min(most, hard)
    resource.setrlimit(kind, (most, most))


def limit_files() -> None:
    """No core dumps, and so many open files."""
    limit(resource.RLIMIT_CORE, 0)
    limit(resource.RLIMIT_NOFILE, OPEN_FILES)


def die_with_parent() -> None:
    """Last of all: a change of user would undo it."""
    system.prctl(system.PR_SET_PDEATHSIG, signal.SIGKILL)


def adopt_orphans() -> None:
    """What the program starts stays among its descendants, also what leaves its group."""
    system.prctl(system.PR_SET_CHILD_SUBREAPER, 1)


def exchange_with_root(identity: Identity) -> None:
    """As root: become this user, in a namespace of our own where it is root, and root's files are another's.

    Bubblewrap makes its mounts there with the rights of that namespace's root, and so reaches what only root
    may pass through; the program it starts has none of them.
    """
    os.setgroups([])
    _enter_namespace(
        {
            "uid_map": f"0 {identity.uid} 1\n{identity.uid} 0 1\n",
            "gid_map": f"0 {identity.gid} 1\n{identity.gid} 0 1\n",
        }
    )
    os.setresgid(0, 0, 0)
    os.setresuid(0, 0, 0)


def isolate(identity: Identity) -> None:
    """As root: go where there is nobody but this user."""
    _enter_namespace(
        {
            "uid_map": f"{identity.uid} {identity.uid} 1\n",
            "gid_map": f"{identity.gid} {identity.gid} 1\n",
        }
    )


def _enter_namespace(maps: Mapping[str, str]) -> None:
    """A new user namespace; whom it knows is written by a child that stays outside, as only root there may.

    Not by gevent's functions: its `fork` would start an event loop, and its `close` leaves the file open until a loop
    runs, so that the child waited for the end of the pipe forever.
    """
    ours = os.getpid()
    is_entered, enter = os.pipe()
    writer = posix.fork()
    if writer == 0:
        _write_maps(ours, is_entered, enter, maps)
    _check(_libc.unshare(CLONE_NEWUSER), "unshare")
    os.write(enter, b"x")
    posix.close(enter)
    posix.close(is_entered)
    _, status = posix.waitpid(writer, 0)
    if status != 0:
        raise OSError(os.waitstatus_to_exitcode(status), "the user namespace could not be set up")


def _write_maps(pid: int, is_entered: int, enter: int, maps: Mapping[str, str]) -> None:
    code = 0
    try:
        posix.close(enter)
        if os.read(is_entered, 1):
            for name, content in maps.items():
                with open(f"/proc/{pid}/{name}", "w") as file:
                    file.write(content)
    except OSError as error:
        code = error.errno or 1
    finally:
        os._exit(code)


def become(identity: Identity | None) -> None:
    """Give up every capability for good, and be somebody else if there is somebody.

    Root gets back at exec what its bounding set still holds, so that is emptied too.
    """
    if not system.is_linux():
        return  # there are no capabilities; what root starts stays root's, and a warning says so
    for capability in CAPABILITIES:
        _libc.prctl(PR_CAPBSET_DROP, capability, 0, 0, 0)
    _libc.prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0)
    if identity is not None:
        os.setgroups([])
        os.setresgid(identity.gid, identity.gid, identity.gid)
        os.setresuid(identity.uid, identity.uid, identity.uid)
    _drop_capabilities()
    _check(_libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "PR_SET_NO_NEW_PRIVS")


def _drop_capabilities() -> None:
    """The effective, permitted and inheritable sets, all empty."""
    header = (ctypes.c_uint32 * 2)(CAPABILITY_VERSION, 0)
    _check(_libc.capset(header, (ctypes.c_uint32 * 6)()), "capset")


def _check(result: int, what: str) -> None:
    if result != 0:
        raise OSError(ctypes.get_errno(), what)
