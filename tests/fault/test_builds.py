"""Builders that are killed midway, and malicious archives: the revision reaches an end and nothing is left."""

from __future__ import annotations

import gzip
import io
import os
import signal
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from cli.client.client import Client
from cli.deployments.deploy import deploy_project
from cli.deployments.project import Project
from tests.support.one_file import write
from tests.support.stack import Stack
from tests.support.waiting import wait_until

CODE = """
import time
from langgraph.graph import START, MessagesState, StateGraph
time.sleep(SECONDS)
graph = StateGraph(MessagesState).add_node("echo", lambda state: {}).add_edge(START, "echo").compile()
"""
BUILD_SECONDS = 90


@pytest.fixture(scope="module")
def stack() -> Iterator[Stack]:
    """Platform of this module, with short leases."""
    with Stack(env={"RUNYARD_LEASE_SECONDS": "3"}) as own:
        yield own


def project(folder: Path, seconds: float = 0) -> Path:
    return write(folder, CODE.replace("SECONDS", str(seconds)))


def newest(stack: Stack, name: str) -> tuple[str, dict[str, Any]]:
    """Return the deployment's id and its newest revision. Returns an empty id while the web process is unavailable."""
    try:
        return stack.record(name)["id"], stack.revisions(name)[0]
    except (httpx.HTTPError, ValueError, KeyError):
        return "", {"status": None}


def reaches(stack: Stack, name: str, *statuses: str) -> dict[str, Any]:
    wait_until(lambda: newest(stack, name)[1]["status"] in statuses, BUILD_SECONDS, what=f"{statuses}")
    return newest(stack, name)[1]


def start(stack: Stack, folder: Path, name: str) -> None:
    with Client(stack.url, stack.api_key) as client:
        deploy_project(client, Project.read(folder), name, print, wait=False)


def children_of_builder(stack: Stack) -> list[psutil.Process]:
    return [child for pid in stack.pids("builder") for child in psutil.Process(pid).children(recursive=True)]


def log_lines(stack: Stack, name: str) -> list[str]:
    deployment_id, revision = newest(stack, name)
    path = f"/v1/projects/{deployment_id}/revisions/{revision['id']}/build_logs"
    return [line["message"] for line in stack.client.post(path, json={"order": "asc"}).json()["logs"]]


def says(stack: Stack, name: str, line: str) -> None:
    """Wait for a line of a build's log."""

    def is_said() -> bool:
        lines = log_lines(stack, name)
        assert newest(stack, name)[1]["status"] not in ("BUILD_FAILED", "DEPLOY_FAILED"), "\n".join(lines)
        return line in lines

    wait_until(is_said, BUILD_SECONDS, what=line)


def test_a_build_goes_on_when_its_builder_is_killed(stack: Stack, tmp_path: Path) -> None:
    name = "killed"
    start(stack, project(tmp_path, seconds=2), name)
    says(stack, name, "loading 1 graph")
    steps = children_of_builder(stack)

    for pid in stack.pids("builder"):
        os.kill(pid, signal.SIGKILL)

    _, left = psutil.wait_procs(steps, timeout=20)
    assert not [process for process in left if process.is_running()], "what it ran dies with it"
    revision = reaches(stack, name, "DEPLOYED", "BUILD_FAILED", "DEPLOY_FAILED")
    assert revision["status"] == "DEPLOYED"
    assert stack.sdk(name).runs.wait(None, "agent", input={"messages": []}) == {"messages": []}
    assert {path.stem for path in (stack.data_dir / "revisions").iterdir()} <= served(stack)


def test_a_build_is_handed_over_when_its_builder_shuts_down(stack: Stack, tmp_path: Path) -> None:
    start(stack, project(tmp_path, seconds=3), "stopped")
    says(stack, "stopped", "loading 1 graph")

    for pid in stack.pids("builder"):
        os.kill(pid, signal.SIGTERM)

    assert reaches(stack, "stopped", "DEPLOYED", "BUILD_FAILED")["status"] == "DEPLOYED"
    assert "this builder stops: another one begins anew" in log_lines(stack, "stopped")


def served(stack: Stack) -> set[str]:
    rows = stack.client.get("/v2/deployments").json()["resources"]
    return {row["active_revision_id"] for row in rows}


def test_a_builder_that_was_frozen_does_not_disturb_its_successor(stack: Stack, tmp_path: Path) -> None:
    start(stack, project(tmp_path, seconds=3), "frozen")
    says(stack, "frozen", "loading 1 graph")
    pids = stack.pids("builder")
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        wait_until(lambda: newest(stack, "frozen")[1]["status"] == "AWAITING_BUILD", BUILD_SECONDS)
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGCONT)

    assert reaches(stack, "frozen", "DEPLOYED", "BUILD_FAILED")["status"] == "DEPLOYED"


def upload(stack: Stack, name: str, archive: bytes) -> None:
    """Create a deployment and upload these bytes as its source."""
    with Client(stack.url, stack.api_key) as client:
        found = client.create(
            {
                "name": name,
                "source": "internal_source",
                "source_config": {"deployment_type": "dev"},
                "source_revision_config": {},
                "secrets": [],
            }
        )
        path = client.upload(found["id"], io.BytesIO(archive), len(archive))
        config = {"source_tarball_path": path, "langgraph_config_path": "langgraph.json"}
        client.change(
            found["id"],
            {"revision_source": "internal_source", "source_revision_config": config, "secrets": []},
        )


def packed(name: str, kind: bytes, data: bytes) -> bytes:
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w:gz") as tar:
        info = tarfile.TarInfo(name)
        info.type, info.linkname, info.size = kind, "/etc/passwd", len(data)
        tar.addfile(info, io.BytesIO(data))
    return made.getvalue()


def test_archives_that_want_to_do_harm_are_refused(stack: Stack) -> None:
    archives = {
        "bomb": (packed("zeros", tarfile.REGTYPE, bytes(64 * 2**20)), "it unpacks to more than 200 times"),
        "link": (packed("a", tarfile.SYMTYPE, b""), "'a' is neither a regular file nor a directory"),
        "escape": (packed("../../a", tarfile.REGTYPE, b"x"), "'../../a' leaves the archive"),
        "zip": (b"PK\x03\x04" + bytes(200), "it is not a whole gzip tar archive"),
        "torn": (gzip.compress(os.urandom(5000))[:3000], "it is not a whole gzip tar archive"),
    }
    for name, (archive, _) in archives.items():
        upload(stack, name, archive)
    for name, (_, reason) in archives.items():
        revision = reaches(stack, name, "BUILD_FAILED", "CREATE_FAILED", "DEPLOYED")

        assert revision["status"] == "BUILD_FAILED"
        assert revision["status_message"].startswith(f"unpack: the source archive is refused: {reason}")
        wait_until(lambda built=revision: not list((stack.data_dir / "revisions").glob(f"{built['id']}*")))
