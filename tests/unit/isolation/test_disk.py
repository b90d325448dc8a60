"""Disk usage of user code: files are counted wherever they are hidden, and all of them can be removed."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.waiting import wait_until
from workers.isolation import disk

MIB = 2**20
HIDDEN = """
import ctypes, mmap, os, sys, threading
libc = ctypes.CDLL(None)
def write(name):
    file = open(name, "w+b", 0)
    file.write(bytes(3 << 20))
    os.unlink(name)
    return file
def end_with_input():
    print("ready", flush=True)
    sys.stdin.read()
    os._exit(0)
def hide_in_own_table():
    assert libc.unshare(0x400) == 0  # CLONE_FILES
    held = write("x")
    end_with_input()
if sys.argv[1] == "open":
    held = write("x")
elif sys.argv[1] == "mapped in part":
    libc.mmap.restype = ctypes.c_void_p
    with write("x") as file:
        libc.mmap(ctypes.c_void_p(0), mmap.PAGESIZE, mmap.PROT_READ, mmap.MAP_SHARED, file.fileno(), ctypes.c_long(0))
elif sys.argv[1] == "thread":
    threading.Thread(target=hide_in_own_table).start()
    threading.Event().wait()
elif sys.argv[1] == "without first thread":
    held = write("x")
    threading.Thread(target=end_with_input).start()
    libc.pthread_exit(None)
else:
    file = write("x")
    held = mmap.mmap(file.fileno(), 3 << 20)
    file.close()
print("ready", flush=True)
sys.stdin.read()
"""


def plain(folder: Path) -> None:
    (folder / "large").write_bytes(bytes(3 * MIB))


def in_a_folder(folder: Path) -> None:
    (folder / "a" / ".b").mkdir(parents=True)
    plain(folder / "a" / ".b")


def closed(folder: Path) -> None:
    in_a_folder(folder)
    (folder / "a").chmod(0)


def empty_files(folder: Path) -> None:
    for number in range(600):
        (folder / str(number)).touch()


def empty_folders(folder: Path) -> None:
    for number in range(600):
        (folder / str(number)).mkdir()


def links_to_nothing(folder: Path) -> None:
    for number in range(600):
        (folder / str(number)).symlink_to("nothing")


def sockets(folder: Path) -> None:
    for number in range(600):
        os.mkfifo(folder / str(number))


def many_names(folder: Path) -> None:
    (folder / "file").touch()
    for number in range(600):
        os.link(folder / "file", folder / str(number))


def deep(folder: Path) -> None:
    """Nest folders deeper than the longest path and than Python's own functions can handle."""
    before = os.open(".", os.O_RDONLY)
    os.chdir(folder)
    for _ in range(1200):
        os.mkdir("folder")
        os.chdir("folder")
    os.fchdir(before)
    os.close(before)


@pytest.mark.parametrize(
    "fill",
    [plain, in_a_folder, closed, empty_files, empty_folders, links_to_nothing, sockets, many_names, deep],
)
def test_too_much_is_noticed_and_can_be_removed(fill: Callable[[Path], None], tmp_path: Path) -> None:
    folder = tmp_path / "home"
    folder.mkdir()
    assert disk.excess([folder], (), 2 * MIB) is None

    fill(folder)
    assert disk.excess([folder], (), 2 * MIB) is not None

    disk.empty(folder)
    assert list(folder.iterdir()) == []
    fill(folder)
    disk.remove(folder)
    assert not folder.exists()


HIDDEN_FROM_OTHERS = ["mapped in part"]  # only root can read the size of such a file


@pytest.fixture(
    params=["open", "mapped", "thread", "without first thread"]
    + (HIDDEN_FROM_OTHERS if os.geteuid() == 0 else [])
)
def hider(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[int]:
    """A process that holds a removed file of 3 MiB."""
    process = subprocess.Popen(
        [sys.executable, "-c", HIDDEN, request.param],
        cwd=tmp_path,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == b"ready\n"
    yield process.pid
    process.communicate(b"")


def test_removed_files_that_a_process_keeps_count(hider: int, tmp_path: Path) -> None:
    assert list(tmp_path.iterdir()) == []
    assert 3 * MIB <= disk.held([tmp_path], [hider]) < 4 * MIB
    assert disk.excess([tmp_path], [hider], 2 * MIB) == "more than 2 MiB of disk"


RENAMES = """
import ctypes, itertools, os, sys
libc = ctypes.CDLL(None)
print("ready", flush=True)
for number in itertools.count():
    if sys.argv[1] == "one after another":
        os.rename(str(number), str(number + 1))
    else:
        libc.renameat2(-100, b"0", -100, b"other", 2)  # RENAME_EXCHANGE
"""


@pytest.mark.parametrize("other", ["one after another", "a loop", "a file"])
@pytest.mark.parametrize("is_folder", [True, False])
def test_what_is_renamed_all_the_time_is_noticed_soon(is_folder: bool, other: str, tmp_path: Path) -> None:
    if is_folder:
        in_a_folder(tmp_path / "0")
    else:
        plain(tmp_path)
        (tmp_path / "large").rename(tmp_path / "0")
    if other == "a loop":
        (tmp_path / "other").symlink_to("other")
    else:
        (tmp_path / "other").touch()
    argv = [sys.executable, "-c", RENAMES, other]
    with subprocess.Popen(argv, cwd=tmp_path, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        wait_until(lambda: disk.excess([tmp_path], (), 2 * MIB))
        process.kill()


def test_what_is_elsewhere_or_twice_is_not_counted(tmp_path: Path) -> None:
    home, elsewhere = tmp_path / "home", tmp_path / "elsewhere"
    for folder in (home, elsewhere):
        folder.mkdir()
    plain(elsewhere)
    (home / "link").symlink_to(elsewhere)
    with open(home / "sparse", "wb") as file:
        file.truncate(100 * MIB)
    assert disk.held([home], [os.getpid()]) < MIB

    plain(home)
    os.link(home / "large", home / "another name")
    assert 3 * MIB <= disk.held([home, home]) < 4 * MIB
    assert 6 * MIB <= disk.held([tmp_path, home]) < 7 * MIB


class RemovedMeanwhile(type(Path())):
    """A folder that is removed between two looks at it."""

    def is_dir(self) -> bool:
        return True


def test_a_folder_that_is_removed_meanwhile_counts_nothing(tmp_path: Path) -> None:
    folders = [tmp_path / "kept", RemovedMeanwhile(tmp_path / "removed")]
    folders[0].mkdir()
    assert disk.excess(folders, [], MIB) is None


def test_of_a_shared_cache_only_what_is_new_counts(tmp_path: Path) -> None:
    for name in ("archive/old", "archive/older"):
        (tmp_path / name).mkdir(parents=True)
        plain(tmp_path / name)
    began_at = max(path.lstat().st_ctime for path in tmp_path.rglob("*")) + 1e-6
    while os.stat(tmp_path / "archive").st_ctime < began_at:
        (tmp_path / "archive" / "new").mkdir(exist_ok=True)
        (tmp_path / "archive" / "new").rmdir()
    (tmp_path / "archive" / "new").mkdir()
    plain(tmp_path / "archive" / "new")
    (tmp_path / ".tmpAbC").mkdir()
    plain(tmp_path / ".tmpAbC")

    assert 6 * MIB <= disk.held(disk.changed_since(tmp_path, began_at)) < 7 * MIB
