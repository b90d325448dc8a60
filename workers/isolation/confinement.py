"""Confinement of a child process by itself, between fork and exec: rights, user namespace and resource limits.

The kernel counts a user's processes and threads separately in each user namespace, and never those of the machine's
root. A program that needs its own bound therefore starts as another user in its own namespace.
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
CLONE_NEWUSER, CLONE_NEWNET = 0x10000000, 0x40000000
CAPABILITIES = range(64)  # more than exist: the kernel refuses to drop an unknown one, which is harmless
CAPABILITY_VERSION = 0x20080522
OPEN_FILES = 4096

_libc = ctypes.CDLL(None, use_errno=True)


@dataclass(frozen=True)
class Identity:
    """The user and group that user code runs as, if not those of the service."""

    uid: int
    gid: int


def limit(kind: int, most: int) -> None:
    """Lower the soft and the hard value of a resource limit. A hard limit that is already lower remains."""
    _, hard = resource.getrlimit(kind)
    most = most if hard == resource.RLIM_INFINITY else min(most, hard)
    resource.setrlimit(kind, (most, most))


def limit_files() -> None:
    """Forbid core dumps, and limit open files to OPEN_FILES."""
    limit(resource.RLIMIT_CORE, 0)
    limit(resource.RLIMIT_NOFILE, OPEN_FILES)


def die_with_parent() -> None:
    """Have the kernel kill this process when its parent ends. Must be called last: a change of user would undo it."""
    system.prctl(system.PR_SET_PDEATHSIG, signal.SIGKILL)


def adopt_orphans() -> None:
    """Make this process the parent of its orphaned descendants, including those that leave its process group."""
    system.prctl(system.PR_SET_CHILD_SUBREAPER, 1)


def exchange_with_root(identity: Identity) -> None:
    """Enter a new user namespace in which the identity and root are exchanged, and become its root. Requires root.

    Bubblewrap creates its mounts with the rights of that namespace's root, and can therefore pass through folders that
    only root may enter. The program that it starts has none of these rights.
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


def leave_network() -> None:
    """Enter a new network namespace, which has no interface that works. Requires root. Raises OSError."""
    _check(_libc.unshare(CLONE_NEWNET), "unshare")


def isolate(identity: Identity) -> None:
    """Enter a new user namespace that contains only this user. Requires root."""
    _enter_namespace(
        {
            "uid_map": f"{identity.uid} {identity.uid} 1\n",
            "gid_map": f"{identity.gid} {identity.gid} 1\n",
        }
    )


def _enter_namespace(maps: Mapping[str, str]) -> None:
    """Enter a new user namespace with these id maps. Raises OSError.

    A child that stays outside writes the maps, because only root of the outer namespace may write them.

    Calls `posix` instead of gevent's functions. gevent's `fork` would start an event loop, and its `close` leaves the file
    open until a loop runs, so the child would wait forever for the end of the pipe.
    """
    pid = os.getpid()
    is_entered, enter = os.pipe()
    writer = posix.fork()
    if writer == 0:
        _write_maps(pid, is_entered, enter, maps)
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
    """Give up all capabilities permanently, and become this user if one is given.

    The bounding set is emptied, too, because root would otherwise regain its capabilities at exec.
    """
    if not system.is_linux():
        return  # no capabilities; user code stays the service's user, and `sandbox.settle` logs a warning
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
    """Clear the effective, permitted and inheritable capability sets."""
    header = (ctypes.c_uint32 * 2)(CAPABILITY_VERSION, 0)
    _check(_libc.capset(header, (ctypes.c_uint32 * 6)()), "capset")


def _check(result: int, what: str) -> None:
    if result != 0:
        raise OSError(ctypes.get_errno(), what)
