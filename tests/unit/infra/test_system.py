"""`up`, `dev`, `deploy` and `run` use no Linux-only functions on macOS. Their absence is simulated on Linux."""

from __future__ import annotations

import ast
import os
import re
import resource
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from cli.machine import embedded, up
from shared.infra import system
from shared.setting_values import BadSetting
from shared.settings import Settings
from workers.isolation import bubblewrap, cgroups, confinement, levels, sandbox, usage
from workers.isolation.confinement import Identity

PROJECT = Path(__file__).parents[3]
# Modules about Linux. Their callers check `system.is_linux()` first or get an empty result without /proc.
OF_LINUX = {
    "shared/infra/system.py",
    "workers/isolation/confinement.py",
    "workers/isolation/cgroups.py",
    "workers/isolation/limited.py",
    "workers/isolation/usage.py",
}
LINUX_ONLY = {
    "os": (
        "pipe2 memfd_create eventfd setresuid setresgid getresuid getresgid getxattr setxattr listxattr splice unshare setns"
        " sched_getaffinity sched_setaffinity sched_setscheduler posix_fadvise posix_fallocate copy_file_range pidfd_open"
        " getrandom O_PATH O_TMPFILE O_DIRECT O_NOATIME fdatasync accept4 timerfd_create"
    ),
    "select": "epoll POLLRDHUP EPOLLIN",
    "socket": (
        "SO_PEERCRED SOCK_CLOEXEC SOCK_NONBLOCK AF_NETLINK AF_VSOCK AF_PACKET TCP_USER_TIMEOUT TCP_KEEPIDLE TCP_QUICKACK"
        " MSG_NOSIGNAL SO_BINDTODEVICE SCM_CREDENTIALS TCP_DEFER_ACCEPT"
    ),
    "signal": "pidfd_send_signal sigtimedwait sigwaitinfo SIGPOLL SIGRTMIN SIGPWR SIGSTKFLT",
    "resource": "prlimit RLIMIT_AS RLIMIT_RTPRIO RLIMIT_RTTIME RLIMIT_MSGQUEUE RLIMIT_SIGPENDING RLIMIT_NICE RUSAGE_THREAD",
    "ctypes": "CDLL",
}
NAMES = {f"{module}.{name}" for module, names in LINUX_ONLY.items() for name in names.split()}
FOLDERS = ("/proc/", "/sys/", "/dev/shm", "/run/")
WORDS = re.compile(
    "|".join([*FOLDERS, *(name.partition(".")[2] for name in NAMES)])
)  # found before a module is parsed
GUARDS = ("sys.platform == 'linux'", "system.is_linux()")


def modules() -> list[Path]:
    found = [
        path for package in ("cli", "shared", "web", "workers") for path in (PROJECT / package).rglob("*.py")
    ]
    return [
        path
        for path in found
        if "templates" not in path.parts and str(path.relative_to(PROJECT)) not in OF_LINUX
    ]


def unguarded(node: ast.AST) -> Iterator[str]:
    """Yield the Linux-only names and paths in the node that are used outside of a platform check."""
    if isinstance(node, ast.If) and ast.unparse(node.test) in GUARDS:
        for part in node.orelse:
            yield from unguarded(part)
        return
    if isinstance(node, ast.ClassDef) and node.name == "_Mapped":
        return  # used on Linux only: test_postgres_is_never_mapped_elsewhere
    if isinstance(node, ast.Attribute) and ast.unparse(node) in NAMES:
        yield f"{ast.unparse(node)}:{node.lineno}"
    if isinstance(node, ast.ImportFrom):
        yield from (alias.name for alias in node.names if f"{node.module}.{alias.name}" in NAMES)
    if isinstance(node, ast.Call):
        opened = [each.value for each in node.args if isinstance(each, ast.Constant)]
        if ast.unparse(node.func) in ("open", "Path", "os.open", "os.listdir"):
            yield from (f"{path}:{node.lineno}" for path in opened if str(path).startswith(FOLDERS))
    for child in ast.iter_child_nodes(node):
        yield from unguarded(child)


def test_what_only_linux_has_is_used_where_that_is_known() -> None:
    found = {
        str(path.relative_to(PROJECT)): names
        for path in modules()
        if WORDS.search(source := path.read_text())
        if (names := sorted(unguarded(ast.parse(source))))
    }
    # web/gunicorn.py checks that /dev/shm exists before using it.
    found.pop("web/gunicorn.py", None)
    assert found == {}

    source = "import os\nos.pipe2(0)\nif sys.platform == 'linux':\n    os.pipe2(0)\nopen('/proc/self/stat')\nfrom os import memfd_create"

    assert sorted(unguarded(ast.parse(source))) == ["/proc/self/stat:5", "memfd_create", "os.pipe2:2"]


@pytest.fixture
def macos(monkeypatch: pytest.MonkeyPatch) -> None:
    """Simulate macOS by removing the functions that Python lacks there, so that using one raises."""
    monkeypatch.setattr(sys, "platform", "darwin")
    for name in NAMES - {"ctypes.CDLL", "resource.RLIMIT_AS"}:
        module, _, attribute = name.partition(".")
        monkeypatch.delattr(sys.modules[module], attribute, raising=False)
    monkeypatch.setattr("ctypes.CDLL", None)
    monkeypatch.setattr(confinement, "_libc", None)


@pytest.mark.usefixtures("macos")
def test_on_macos_a_process_does_without(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "setrlimit", None)

    system.close_memory()
    embedded.die_with_parent(signal.SIGTERM)
    system.limit_memory(1)
    confinement.die_with_parent()
    confinement.adopt_orphans()
    confinement.become(Identity(1, 1))
    assert system.child_pids() == []
    assert system.fork_environment() == {"OBJC_DISABLE_INITIALIZE_FORK_SAFETY": "YES"}
    assert up.environment_of(Settings())["OBJC_DISABLE_INITIALIZE_FORK_SAFETY"] == "YES"


@pytest.mark.usefixtures("macos")
def test_on_macos_user_code_has_level_0_and_the_reason_is_said(
    monkeypatch: pytest.MonkeyPatch, settings: Settings
) -> None:
    bubblewrap.find.cache_clear()
    monkeypatch.setattr(sandbox, "settled", None)
    try:
        for user in (0, 501):
            monkeypatch.setattr(os, "geteuid", lambda user=user: user)
            found, reasons = levels.find(settings)
            assert (found.level, found.identity, reasons) == (0, None, ["a sandbox needs Linux"])
        with pytest.raises(BadSetting, match="RUNYARD_ISOLATION=require"):
            levels.find(Settings(isolation="require"))
        assert sandbox.wrap(
            ["python"], settings, readonly=[], writable=[], cwd=Path("/"), memory_bytes=1
        ) == ["python"]
    finally:
        bubblewrap.find.cache_clear()


@pytest.mark.usefixtures("macos")
def test_on_macos_without_proc_nothing_is_measured_and_ending_is_harmless(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(usage, "_look", lambda pid: None)
    program = usage.Program(1)

    program.measure(["/tmp"])
    program.end()

    assert (program.processes, program.memory_bytes) == (frozenset(), 0)
    monkeypatch.setattr(Path, "read_text", _absent)
    assert cgroups.find() is None


def _absent(self: Path) -> str:
    raise FileNotFoundError(self)


@pytest.mark.parametrize("platform", ["linux", "darwin"])
def test_postgres_is_never_mapped_elsewhere(monkeypatch: pytest.MonkeyPatch, platform: str) -> None:
    monkeypatch.setattr(sys, "platform", platform)
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(embedded._Mapped, "works", staticmethod(lambda: True))
    monkeypatch.setattr(embedded, "_unprivileged_user", lambda: None)

    assert isinstance(embedded._Identity.choose(), embedded._Mapped) is (platform == "linux")


@pytest.mark.parametrize(
    ("platform", "limits", "raised"),
    [
        ("linux", (1024, 4096), (4096, 4096)),
        ("darwin", (256, resource.RLIM_INFINITY), (10_240, resource.RLIM_INFINITY)),
        ("darwin", (256, 4096), (4096, 4096)),
        ("darwin", (20_000, 30_000), None),
    ],
)
def test_as_many_open_files_as_the_system_grants(
    monkeypatch: pytest.MonkeyPatch, platform: str, limits: tuple[int, int], raised: tuple[int, int] | None
) -> None:
    asked: list[tuple[int, int]] = []
    monkeypatch.setattr(sys, "platform", platform)
    monkeypatch.setattr(resource, "getrlimit", lambda kind: limits)
    monkeypatch.setattr(resource, "setrlimit", lambda kind, pair: asked.append(pair))

    system.raise_open_files()

    assert asked == ([raised] if raised else [])


@pytest.mark.parametrize("platform", ["linux", "darwin"])
def test_a_cluster_is_made_with_the_locale_of_either_system(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, platform: str
) -> None:
    monkeypatch.setattr(sys, "platform", platform)
    options = system.locale_options()

    assert "--locale-provider=builtin" in options
    assert ("--locale=C.UTF-8" in options) is (platform == "linux")
    assert ("--builtin-locale=C.UTF-8" in options) is (platform == "darwin")


def test_on_linux_a_child_of_ours_is_known() -> None:
    pid = os.fork()
    if pid == 0:
        signal.pause()
    try:
        assert pid in system.child_pids()
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


@pytest.mark.parametrize("platform", ["linux", "darwin"])
def test_nobody_waits_on_a_pipe_and_no_child_gets_it(monkeypatch: pytest.MonkeyPatch, platform: str) -> None:
    monkeypatch.setattr(sys, "platform", platform)
    reads, writes = system.open_pipe()
    try:
        assert [os.get_blocking(end) for end in (reads, writes)] == [False, False]
        assert [os.get_inheritable(end) for end in (reads, writes)] == [False, False]
        os.write(writes, b"x")
        assert os.read(reads, 2) == b"x"
    finally:
        os.close(reads)
        os.close(writes)


@pytest.mark.parametrize("platform", ["linux", "darwin"])
def test_a_socket_has_a_path_that_either_system_takes(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, platform: str
) -> None:
    temporary = "/tmp" if platform == "linux" else "/var/folders/zz/zyxvpxvq6csfxvn_n0000000000000/T"
    monkeypatch.setattr("tempfile.gettempdir", lambda: temporary)
    folder = tmp_path / ("long" * 30)

    for name in (".s.PGSQL.5432", "valkey.sock"):
        assert len(str(embedded._socket_folder(folder, name, make=False) / name)) < 104
