"""Checks of `runyard doctor` for this machine: programs, folders, files, ports, limits and the isolation of user code."""

from __future__ import annotations

import json
import os
import platform
import resource
import shutil
import stat
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from cli import KEPT_KEY, PROJECT
from cli.doctor.findings import Finding, fails, ok, warning
from cli.machine import embedded, up
from shared import __version__
from shared.setting_values import BadSetting
from shared.settings import MIB, PASSED_ON, Settings, check_public, unknown_variables

GIB = 1024 * MIB
LITTLE_DISK, TOO_LITTLE_DISK = 2 * GIB, GIB // 4
FEW_INODES, TOO_FEW_INODES = 100_000, 5_000
SPARE_FILES = 1000  # open files that a web process needs besides its streams
FEWEST_FILES = 1024
OLDEST_GIT = (2, 30)
PROBE_SECONDS = 60.0  # timeout of the probe that tries bubblewrap and runs each Python interpreter
ANSWER_SECONDS = 2.0
SECRET_FILES = (KEPT_KEY, embedded.SECRET_KEYS, "valkey/password", "valkey/valkey.conf")


def variables(environment: Mapping[str, str]) -> Iterator[Finding]:
    """Report variables that nothing reads, and those that only `runyard dev` may set."""
    for text in unknown_variables(environment):
        yield warning("variables", text, "Correct or remove it: docs/reference/settings.md has them all.")
    try:
        check_public(environment)
    except BadSetting as error:
        text, _, advice = str(error).rpartition(". ")
        yield fails("variables", text, advice)


def python() -> Finding:
    """Report the interpreter, the release and the operating system."""
    version = ".".join(map(str, sys.version_info[:3]))
    where = f"runyard {__version__} in {PROJECT}"
    if sys.platform == "linux":
        return ok("Python", f"{version}, {where}")
    system = "macOS" if sys.platform == "darwin" else platform.system()
    return warning(
        "Python",
        f"{version} on {system}, {where}",
        f"{system} is for trying and developing, and untested: serve others from Linux.",
    )


# Folders and files


def data_directory(settings: Settings) -> Iterator[Finding]:
    """Check that the data directory is writable, closed to other users, and has free space."""
    name, folder = "data directory", settings.data_dir
    try:
        existing = nearest(folder)
    except OSError as error:
        yield fails(
            name,
            f"{folder} cannot be reached by this user: {error.strerror}",
            "Run as the user of the service, open the folders above it, or choose another one with RUNYARD_DATA_DIR.",
        )
        return
    if not existing.is_dir():
        yield fails(name, f"{existing} is no directory", "Choose another one with RUNYARD_DATA_DIR.")
        return
    if not os.access(existing, os.W_OK | os.X_OK):
        yield fails(
            name,
            f"{folder} cannot be written by this user",
            "Change its owner, or choose another one with RUNYARD_DATA_DIR.",
        )
    elif existing != folder:
        yield ok(name, f"{folder}, made by the first start")
    elif (mode := stat.S_IMODE(folder.stat().st_mode)) & 0o066:
        yield warning(name, f"{folder} is open to others ({mode:04o})", f"chmod 700 {folder}")
    else:
        yield ok(name, f"{folder} ({mode:04o})")
    yield disk(existing)
    yield key_files(folder)


def nearest(folder: Path) -> Path:
    """Return the folder, or its nearest existing parent. Raises OSError if a folder may not be entered."""
    return next(path for path in (folder, *folder.parents) if path.exists())


def disk(folder: Path) -> Finding:
    """Check the free bytes and inodes of the file system."""
    free = os.statvfs(folder)
    space, inodes = free.f_bavail * free.f_frsize, free.f_favail
    text = f"{space / GIB:.1f} GiB free"
    if free.f_files:
        text += f", {inodes} inodes"  # some file systems have no fixed number of inodes
    advice = "Free some, lower RUNYARD_KEPT_ENVIRONMENTS, or move RUNYARD_DATA_DIR to another disk."
    few = inodes if free.f_files else FEW_INODES
    if space < TOO_LITTLE_DISK or few < TOO_FEW_INODES:
        return fails("disk", text, advice)
    if space < LITTLE_DISK or few < FEW_INODES:
        return warning("disk", text, advice)
    return ok("disk", text)


def key_files(folder: Path) -> Finding:
    """Check that the key files are readable by this user and closed to others."""
    existing = [path for name in SECRET_FILES if (path := folder / name).exists()]
    unreadable = [path.name for path in existing if not os.access(path, os.R_OK)]
    if unreadable:
        return fails(
            "key files",
            f"this user cannot read {', '.join(unreadable)}",
            "Run as the user who started the service, or give the files to this one.",
        )
    opened = [path for path in existing if path.stat().st_mode & 0o077]
    if opened:
        names = ", ".join(path.name for path in opened)
        return warning(
            "key files", f"others may open {names}", f"chmod 600 {' '.join(str(path) for path in opened)}"
        )
    return ok("key files", f"{len(existing)}, their owner's alone" if existing else "none yet")


# The port


def port(settings: Settings) -> Finding:
    """Check that web can listen on its port or already answers there. Names the program that holds the port."""
    name, address = "port", settings.bind
    try:
        up.require_free_port(settings)
    except embedded.CannotStart as error:
        if (version := _version_there(settings)) is not None:
            return ok(name, f"{address}: runyard {version} answers")
        holder = _holder(settings.port)
        text = f"{address} is held by {holder}" if holder else str(error).partition(". ")[0]
        return fails(name, text, "Stop what listens there, or choose another with RUNYARD_PORT.")
    except (OSError, OverflowError) as error:
        return fails(name, f"{address}: {error}", "Set RUNYARD_LISTEN_HOST to an address of this machine.")
    return ok(name, f"{address} is free")


def _version_there(settings: Settings) -> str | None:
    """Return the version of the service that answers at this address. None if another program or nothing answers."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(f"{settings.local_url}/info", timeout=ANSWER_SECONDS) as answer:
            info = json.load(answer)
    except (OSError, ValueError):
        return None
    return str(info["version"]) if isinstance(info, dict) and "flags" in info else None


def _holder(number: int) -> str:
    """Return the program that listens on a port; empty if this user may not see it."""
    import psutil  # imported here: no other check needs it

    try:
        for connection in psutil.net_connections("tcp"):
            _, listens_at = connection.laddr or ("", 0)
            if connection.status == psutil.CONN_LISTEN and listens_at == number and connection.pid:
                return f"{psutil.Process(connection.pid).name()} (process {connection.pid})"
    except (psutil.Error, OSError):
        pass
    return ""


# Limits and programs


def open_files(settings: Settings) -> Finding:
    """Check the hard limit of open files (`ulimit -Hn`). Each process raises its soft limit to the hard limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = sys.maxsize if hard == resource.RLIM_INFINITY else hard
    need = settings.max_streams + SPARE_FILES
    text = "no limit" if most == sys.maxsize else f"{soft}, may be raised to {most}"
    if most < FEWEST_FILES:
        return fails("open files", text, f"Raise it to {need} (ulimit -Hn, or LimitNOFILE= of a unit).")
    if most < need:
        advice = f"Raise it to {need} (ulimit -Hn, LimitNOFILE=), or lower RUNYARD_MAX_STREAMS."
        return warning("open files", text, advice)
    return ok("open files", text)


def git() -> Finding:
    """Check the version of git, which fetches deployments from repositories."""
    advice = "Install git 2.30 or newer: deployments from repositories cannot be built here."
    program = shutil.which("git")
    answer = _output([program, "--version"]) if program else None
    if answer is None:
        return warning("git", "not there", advice)
    version = answer.removeprefix("git version ").split()[0]
    numbers = tuple(int(part) for part in version.split(".")[:2] if part.isdecimal())
    return ok("git", version) if numbers >= OLDEST_GIT else warning("git", version, advice)


def _output(argv: list[str]) -> str | None:
    try:
        done = subprocess.run(argv, capture_output=True, text=True, timeout=ANSWER_SECONDS * 5, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 and done.stdout.strip() else None


def proxies(environment: Mapping[str, str]) -> Finding:
    """Report the proxy and certificate variables passed on to builds and agents, without passwords."""
    variables = [
        f"{name}={_without_password(environment[name])}"
        for name in PASSED_ON
        if environment.get(name) and name not in ("PATH", "LANG", "LC_ALL", "TZ")
    ]
    return ok("way out", ", ".join(variables) or "no proxies set")


def _without_password(address: str) -> str:
    try:
        parts = urlsplit(address)
        return parts._replace(netloc=parts.netloc.rpartition("@")[2], query="").geturl()
    except ValueError:
        return "…"


# User code


def user_code(settings: Settings, environment: Mapping[str, str]) -> Iterator[Finding]:
    """Check sandbox and interpreters with the code that runners and builders use."""
    try:
        report = probe_user_code(settings, environment)
    except ValueError as error:
        yield fails("isolation", str(error), "The line above tells what is missing.")
        return
    yield isolation(report)
    yield ok("interpreters", f"Python {', '.join(report['pythons'])}; uv {report['uv']}")


def probe_user_code(settings: Settings, environment: Mapping[str, str]) -> dict[str, Any]:
    """Run the probe `workers.machine` in a subprocess and return its JSON. Raises ValueError.

    A subprocess is needed because the command line never imports `workers`.
    """
    try:
        done = subprocess.run(
            [sys.executable, "-m", "workers.machine", str(nearest(settings.data_dir))],
            env={**environment, "PYTHONPATH": str(PROJECT), "PYTHONSAFEPATH": "1"},
            cwd=PROJECT,
            capture_output=True,
            text=True,
            timeout=PROBE_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ValueError(f"it could not be found out: {error}") from error
    if done.returncode != 0:
        raise ValueError((done.stderr.strip() or f"exit code {done.returncode}").rpartition("\n")[2])
    return json.loads(done.stdout)


def isolation(report: Mapping[str, Any]) -> Finding:
    """Report the isolation level, and how to raise it."""
    name = "isolation"
    if report["refusal"]:
        return fails(name, report["refusal"], "Install bubblewrap, allow user namespaces, or take `auto`.")
    text = f"level {report['level']}: {report['meaning']}"
    if reasons := "; ".join(report["reasons"]):
        text += f" ({reasons})"
    return ok(name, text) if report["level"] == 2 else warning(name, text, report["advice"])
