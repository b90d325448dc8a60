"""Control groups of graph hosts, in a folder with the same files as the kernel's cgroup file system."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.support.waiting import until
from workers.isolation import cgroups
from workers.isolation.cgroups import ControlGroup

MEMBERSHIP = "9:pids:/\n0::/system.slice/runyard.service\n"
MOUNTS = (
    "25 1 0:1 / /proc rw - proc proc rw\n"
    "36 25 0:31 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw,nsdelegate\n"
)


def fill(folder: Path, **files: str) -> Path:
    """Create the files of a group as the kernel shows them. Only a group other than the root has a type."""
    folder.mkdir(parents=True)
    content = {
        "cgroup.controllers": "cpuset cpu io memory pids",
        "cgroup.subtree_control": "",
        "cgroup.type": "domain",
        "cgroup.procs": "",
    }
    for name, text in (content | {name.replace("_", "."): text for name, text in files.items()}).items():
        (folder / name).write_text(text)
    return folder


def test_its_own_group_is_found_where_it_is_mounted() -> None:
    assert cgroups.service_folder(MEMBERSHIP, MOUNTS) == Path(
        "/sys/fs/cgroup/unified/system.slice/runyard.service"
    )
    mounts = "36 25 0:31 /docker/1 /sys/fs/cgroup rw - cgroup2 cgroup rw\n"
    assert cgroups.service_folder("0::/docker/1/inner\n", mounts) == Path("/sys/fs/cgroup/inner")


@pytest.mark.parametrize(
    ("membership", "mounts"), [("9:pids:/\n", MOUNTS), (MEMBERSHIP, "25 1 0:1 / /proc rw - proc proc rw\n")]
)
def test_without_cgroup_v2_there_is_none(membership: str, mounts: str) -> None:
    with pytest.raises(FileNotFoundError):
        cgroups.service_folder(membership, mounts)


def test_a_group_without_the_controllers_or_that_nobody_handed_over_is_left_alone(tmp_path: Path) -> None:
    own = fill(tmp_path / "own", cgroup_controllers="hugetlb pids")
    with pytest.raises(PermissionError, match="no controllers for cpu, memory"):
        cgroups.take(own)
    session = fill(fill(tmp_path / "user") / "session", cgroup_procs="1\n")
    with pytest.raises(PermissionError, match="was not handed over"):
        cgroups.take(session)
    assert (session / "cgroup.subtree_control").read_text() == ""
    assert not (session / cgroups.SERVICE).exists()


def test_the_controllers_of_a_group_that_was_handed_over_are_passed_on(tmp_path: Path) -> None:
    own = fill(tmp_path / "own")

    cgroups.take(own)

    assert (own / "cgroup.subtree_control").read_text() == "+cpu +memory +pids"
    assert (own / cgroups.SERVICE).is_dir()

    left = fill(tmp_path / "left", cgroup_subtree_control="cpu memory pids")
    (left / f"{cgroups.HOST}1-1").mkdir()
    in_use = fill(left / f"{cgroups.HOST}2-1")

    cgroups.take(left)

    until(lambda: not (left / f"{cgroups.HOST}1-1").exists())
    assert in_use.exists()


def test_a_process_that_was_moved_before_makes_its_groups_beside_its_own(tmp_path: Path) -> None:
    own = fill(tmp_path / "own", cgroup_subtree_control="cpu memory pids")
    fill(own / cgroups.SERVICE)

    group = cgroups.take(own / cgroups.SERVICE).make(tasks=1024, memory_bytes=1 << 30)

    assert group is not None
    folder = own / f"{cgroups.HOST}{os.getpid()}-1"
    assert (folder / "pids.max").read_text() == "1024"
    assert (folder / "memory.max").read_text() == str(1 << 30)
    assert (folder / "memory.oom.group").read_text() == "1"

    groups = cgroups.ControlGroups(tmp_path / "gone")
    assert groups.make(tasks=1, memory_bytes=1) is None


def test_a_group_knows_whether_the_kernel_ended_its_host(tmp_path: Path) -> None:
    group = ControlGroup(tmp_path / "host", tasks=1, memory_bytes=1)
    assert not group.ran_out_of_memory()
    (tmp_path / "host" / "memory.events").write_text("low 0\nhigh 0\nmax 9\noom 1\noom_kill 3\n")
    assert group.ran_out_of_memory()

    group.end()
    assert (tmp_path / "host" / "cgroup.kill").read_text() == "1"
