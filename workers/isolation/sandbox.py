"""The sandbox that separates user code from the rest of the machine, at the level that this process has settled on."""

from __future__ import annotations

import dataclasses
import logging
import os
import resource
import sys
from collections.abc import Sequence
from pathlib import Path

from shared.settings import MIB, Settings
from workers.isolation import bubblewrap, cgroups, confinement, levels, limited, usage
from workers.isolation.cgroups import ControlGroup
from workers.isolation.confinement import Identity
from workers.isolation.levels import Isolation

log = logging.getLogger(__name__)

LIMITED = Path(limited.__file__)

settled: Isolation | None = None  # the isolation of this process
_cuts_network: bool | None = None  # None: not tested yet


def settle(settings: Settings) -> Isolation:
    """Choose the best available isolation for this process and log it. Raises BadSetting if `require` fails."""
    global settled
    best, reasons = levels.find(settings)
    groups = cgroups.find() if settings.isolation != "none" else None
    settled = dataclasses.replace(best, groups=groups)
    level = settled.level
    usage.end_abandoned()
    if level == 1:
        settings.data_dir.chmod(0o711)  # the user can pass through to its own folders, but not list others
    log.log(
        logging.WARNING if reasons or level == 0 else logging.INFO,
        "isolation level %d: %s%s%s",
        level,
        levels.MEANINGS[level],
        f" ({'; '.join(reasons)})" if reasons else "",
        f". {levels.advice(settings)}" if level < 2 else "",
    )
    log.info(
        "processes of user code: %s",
        "bounded by the kernel" if settled.bounds_tasks else "counted, and ended when there are too many",
    )
    return settled


def level(settings: Settings) -> int:
    """Return the isolation level of this process, or before it has settled the one of these settings."""
    return levels.level_of(settings) if settled is None else settled.level


def give(folder: Path) -> None:
    """Make the user of user code the owner of a folder and its content. Does nothing unless the service is root."""
    identity = None if settled is None else settled.identity
    owner = identity or Identity(os.geteuid(), os.getegid())
    if os.geteuid() != 0 or folder.lstat().st_uid == owner.uid:
        return
    for parent, folders, files in os.walk(folder):
        for name in (*folders, *files):
            os.chown(os.path.join(parent, name), owner.uid, owner.gid, follow_symlinks=False)
    os.chown(folder, owner.uid, owner.gid, follow_symlinks=False)  # last: marks the content as done


def wrap(
    argv: Sequence[str],
    settings: Settings,
    *,
    readonly: Sequence[Path],
    writable: Sequence[Path],
    cwd: Path,
    memory_bytes: int,
    runs_as_service: bool = False,
) -> list[str]:
    """Return the command that runs `argv` inside the sandbox; without a sandbox, `argv` itself.

    Each of its temporary folders may hold half of `memory_bytes`, since they are in memory. `runs_as_service`: the
    command runs no code of a deployment, and keeps the service's user.
    """
    isolation = settled or Isolation(levels.level_of(settings), levels.most_tasks(settings))
    if runs_as_service:
        isolation = dataclasses.replace(isolation, identity=None, has_namespace=False)
    elif isolation.level == 2 and os.geteuid() != 0:  # LIMITED sets the bound in bubblewrap's namespace
        interpreter = str(Path(sys.executable).resolve())
        argv = [interpreter, "-I", "-S", str(LIMITED), str(isolation.most_tasks), *argv]
        readonly = [*readonly, LIMITED]
    if isolation.level < 2:
        return list(argv)
    return bubblewrap.wrapped(
        argv,
        settings,
        has_namespace=isolation.has_namespace,
        readonly=readonly,
        writable=writable,
        cwd=cwd,
        memory_bytes=memory_bytes,
    )


def can_cut_network(settings: Settings) -> bool:
    """Whether a program can be started without the network. Tests it once, and logs if not."""
    global _cuts_network
    if _cuts_network is None:
        _cuts_network = _tests_network(settings)
    return _cuts_network


def _tests_network(settings: Settings) -> bool:
    isolation = settled or Isolation(levels.level_of(settings), levels.most_tasks(settings))
    reason: str | None = "isolation level 0"
    if isolation.level == 2:
        argv = bubblewrap.wrapped(["true"], settings, has_namespace=isolation.has_namespace, readonly=[])
        reason = bubblewrap.failure_of(
            without_network(argv, settings), before=lambda: levels.enter(isolation)
        )
    elif isolation.level == 1:
        reason = bubblewrap.failure_of(["true"], before=confinement.leave_network)
    if reason is not None:
        log.warning("replays that need no network have it nevertheless: %s", reason)
    return reason is None


def without_network(argv: Sequence[str], settings: Settings) -> list[str]:
    """Return the command of a sandbox (`wrap`) with no network but its own loopback interface.

    At level 1 the command is no sandbox: `confine` leaves the network.
    """
    is_sandbox = argv[0] == bubblewrap.find(settings.bwrap).program
    return [argv[0], "--unshare-net", *argv[1:]] if is_sandbox else list(argv)


def host_group(settings: Settings) -> ControlGroup | None:
    """Create a control group for one graph host. Returns None if control groups are not available."""
    if settled is None or settled.groups is None:
        return None
    return settled.groups.make(tasks=settled.most_tasks, memory_bytes=settings.host_memory_mb * MIB)


def ends_descendants(group: ControlGroup | None) -> bool:
    """Return whether the kernel ends all descendants of a program with it: those in its control group or its namespace."""
    return group is not None or (settled is not None and settled.level == 2)


def confine(
    group: ControlGroup | None = None,
    *,
    file_bytes: int | None = None,
    runs_as_service: bool = False,
    has_network: bool = True,
) -> None:
    """Confine the calling process: limits, few rights, and death with its parent. Called between fork and exec.

    `file_bytes` is the largest size of a file that it may write. `runs_as_service`: the process runs no code of a
    deployment, and keeps the service's user and rights. `has_network` False requires `can_cut_network`.
    """
    if group is not None:
        group.enter()
    if not has_network and settled is not None and settled.level == 1:
        confinement.leave_network()
    confinement.limit_files()
    if file_bytes is not None:
        confinement.limit(resource.RLIMIT_FSIZE, file_bytes)
    if settled is not None and not runs_as_service:
        levels.enter(settled)
    confinement.die_with_parent()
