"""Builders that are killed or stop at each step, and machines that lack something: the revision always reaches an end.

The real builder runs in this process. Where the builder must be killed, it runs in its own process.
"""

from __future__ import annotations

import dataclasses
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from typing import Any
from uuid import UUID

import gevent
import psutil
import pytest
from sqlalchemy import text

from cli.machine.procfile import PROJECT
from shared.deployments import revision_events, revisions
from shared.infra import broker, encryption
from shared.infra.postgres import connection
from shared.models import RevisionStatus
from shared.settings import Settings
from tests.support import factories
from tests.support.archived import keep
from tests.support.full_disk import largest_file
from tests.support.greened import World, child, greened
from tests.support.waiting import wait_until
from workers.builder import build_log, environments, workspaces
from workers.builder.builder import Builder

__all__ = ["child"]

CONFIG = '{"dependencies": ["."], "graphs": {"agent": "./agent.py:graph"}}'
CODE = """
{more}
from langgraph.graph import START, MessagesState, StateGraph
graph = StateGraph(MessagesState).add_node("echo", lambda state: {{}}).add_edge(START, "echo").compile()
"""
# Functions at which a builder is killed, in the order of a build.
STEPS = (
    ("workers.builder.environments", "_fetch"),
    ("workers.builder.environments", "unpack_command"),
    ("workers.builder.config.manifest", "read"),
    ("workers.builder.python.installer", "resolve"),
    ("workers.builder.python.toolchain", "create_environment"),
    ("workers.builder.python.toolchain", "compile_bytecode"),
    ("workers.builder.inspection", "inspect"),
    ("workers.builder.inspection", "describe_graphs"),
    ("workers.builder.builder", "_Build._keep"),
    ("workers.builder.builder", "_Build._switch"),
    ("workers.builder.publish", "make_default_assistants"),  # within the transaction that switches
)
AFTER_THE_SWITCH = ("workers.builder.build_log", "BuildLog.end")
BACKEND = (
    "[project]\nname = 'own'\nversion = '1'\n"
    "[build-system]\nrequires = []\nbuild-backend = 'backend'\nbackend-path = ['.']\n"
)


class Case:
    """A serving deployment, and a new revision of it to build."""

    def __init__(self, world: World, *, more: str = "", **files: str) -> None:
        self.env = {
            **{name: value for name, value in os.environ.items() if not name.startswith("RUNYARD_")},
            "RUNYARD_DATA_DIR": str(world.tmp_path / "data"),
            "RUNYARD_CACHE_DIR": str(PROJECT / ".cache"),
            "RUNYARD_ENCRYPTION_KEYS": "m7s9XoBzihOKl32TazItp-kUic2iWeDTXQ15tbQsSlk=",
            "DATABASE_URL": world.database_url,
            "REDIS_URL": world.redis_url,
        }
        self.settings = Settings.from_env(self.env)
        encryption.configure(self.settings.encryption_keys)
        deployment = factories.deployment()
        self.deployment_id = deployment.id
        self.serving = deployment.active_revision_id
        self.revision_id = self.revise(more=more, **files)

    def revise(self, *, more: str = "", **files: str) -> UUID:
        """Insert a revision that waits for its builder. Returns its id."""
        given = {name.replace("_", "."): content for name, content in files.items()}
        digest = keep({"langgraph.json": CONFIG, "agent.py": CODE.format(more=more), **given})
        with connection() as conn:
            query = text("SELECT coalesce(max(number), 0) + 1 FROM revision WHERE deployment_id = :id")
            number = conn.execute(query, {"id": self.deployment_id}).scalar_one()
        return factories.revision(
            self.deployment_id,
            number=number,
            status=RevisionStatus.AWAITING_BUILD,
            graphs=(),
            archive_digest=digest,
            requirements=None,
        )

    def build(self, **settings: Any) -> Any:
        """Build the revision in this process. Returns its row."""
        Builder(dataclasses.replace(self.settings, **settings)).build(self.revision_id)
        return self.row

    def die_at(self, *steps: tuple[str, str]) -> Iterator[None]:
        """Build the revision once for each step, with a builder that is killed there. Yields after each."""
        argv = [sys.executable, "-m", "tests.fault.killed_builder"]
        with subprocess.Popen(
            argv, cwd=PROJECT, env=self.env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as builders:
            assert builders.stdin is not None
            assert builders.stdout is not None
            for module, function in steps:
                builders.stdin.write(f"{self.revision_id} {module} {function}\n")
                builders.stdin.flush()
                assert builders.stdout.readline() == f"{-signal.SIGKILL}\n", function
                yield

    def expire(self) -> None:
        """Expire the lease of a dead builder, and handle it as upkeep does."""
        with connection() as conn:
            conn.execute(
                text("UPDATE revision SET lease_until = now() - interval '1 s' WHERE owner IS NOT NULL")
            )
            revision_events.announce(revisions.expire(conn))

    @property
    def row(self) -> Any:
        with connection() as conn:
            return revisions.get(conn, self.deployment_id, self.revision_id)

    @property
    def active(self) -> UUID:
        with connection() as conn:
            query = text("SELECT active_revision_id FROM deployment WHERE id = :id")
            return conn.execute(query, {"id": self.deployment_id}).scalar_one()

    def fails(self, **settings: Any) -> str:
        """Build the revision and return its error. Checks that the serving revision stays and no files are left."""
        row = self.build(**settings)
        assert row["status"] == "BUILD_FAILED", row["status_message"]
        assert self.active == self.serving
        assert not workspaces.workspace_of(self.settings, self.revision_id).root.exists()
        return str(row["status_message"])


@greened
def test_a_build_completes_whatever_step_its_builders_died_at(world: World) -> None:
    case = Case(world)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(revisions, "MAX_ATTEMPTS", len(STEPS) + 1)
        dying = case.die_at(*STEPS, AFTER_THE_SWITCH)
        for _, step in zip(STEPS, dying, strict=False):
            assert case.row["status"] in ("BUILDING", "DEPLOYING"), step
            assert case.active == case.serving, step
            case.expire()
        assert [*dying] == [None]

    # The last one completed the build and died after the switch: nothing is left to do.
    row = case.row
    assert (row["status"], row["attempt"]) == ("DEPLOYED", len(STEPS) + 1), row["status_message"]
    assert case.active == case.revision_id
    assert _said(case, "loading 1 graph"), "its log is whole"
    root = workspaces.workspace_of(case.settings, case.revision_id).root
    assert {path.name for path in root.parent.iterdir()} == {root.name, f"{root.name}.lock"}
    case.expire()
    assert (case.build()["attempt"], case.active) == (len(STEPS) + 1, case.revision_id)


@greened
def test_a_builder_that_stops_or_loses_its_revision_leaves_it_to_others(world: World) -> None:
    case = Case(world, more="import time; time.sleep(60)")
    builder = Builder(case.settings)
    before = {process.pid for process in psutil.Process().children(recursive=True)}
    building = gevent.spawn(builder.build, case.revision_id)
    wait_until(lambda: _said(case, "loading 1 graph"), 60)
    started = [each for each in psutil.Process().children(recursive=True) if each.pid not in before]
    assert started

    builder.stop()
    building.get(timeout=30)

    row = case.row
    assert (row["status"], row["attempt"]) == ("AWAITING_BUILD", 1)
    with connection() as conn:
        assert conn.execute(text("SELECT count(*) FROM revision WHERE owner IS NOT NULL")).scalar_one() == 0
    assert _said(case, "this builder stops: another one begins anew")
    _, left = psutil.wait_procs(started, timeout=10)
    assert not left, "what it ran is gone"
    assert case.active == case.serving
    builder.build(case.revision_id)
    assert case.row["status"] == "AWAITING_BUILD", "a builder that stops takes nothing more"

    building = gevent.spawn(case.build, lease_seconds=3)
    wait_until(lambda: _said(case, "loading 1 graph") == 2, 60)
    with connection() as conn:
        revisions.lock_deployment(conn, case.deployment_id)
        revisions.interrupt(conn, case.deployment_id, case.revision_id, reason="stopped")
    building.get(timeout=30)

    assert case.row["status"] == "INTERRUPTED", "a builder that lost its revision changes nothing"
    assert case.active == case.serving


@greened
def test_a_builder_that_an_operator_drained_passes_its_messages_on(world: World) -> None:
    case, notified = Case(world), []
    broker.notifier.notify = lambda *message: notified.append(message)  # type: ignore[method-assign]
    builder = Builder(case.settings)
    builder.is_drained = True

    builder.build(case.revision_id)

    assert case.row["status"] == "AWAITING_BUILD"
    assert [(queue, id) for _, queue, id in notified] == [(broker.BUILDS, case.revision_id)]


def _said(case: Case, message: str) -> int:
    """Return how often a line is in the revision's build log."""
    with connection() as conn:
        query = text("SELECT count(*) FROM log_line WHERE revision_id = :id AND message = :message")
        return conn.execute(query, {"id": case.revision_id, "message": message}).scalar_one()


@greened
def test_a_full_disk_fails_the_build_with_the_step_s_name(world: World) -> None:
    with largest_file(1000):
        reason = Case(world, big_txt=os.urandom(40_000).hex()).fails()
    assert reason == "files: cannot write the environment: File too large"

    # A build step writes to a full device, which is a real ENOSPC.
    backend = (
        "def get_requires_for_build_editable(config=None): return []\n"
        "def build_editable(folder, config=None, metadata=None):\n"
        "    with open('/dev/full', 'wb', 0) as file:\n        file.write(b'x')\n"
    )
    reason = Case(world, pyproject_toml=BACKEND, backend_py=backend).fails()
    assert reason.startswith("install: Failed to build ")
    assert reason.endswith("No space left on device")


@greened
def test_what_cannot_be_resolved_is_said_in_the_installer_s_words(world: World) -> None:
    case = Case(world, requirements_txt="iniconfig==1.0.0\niniconfig==2.0.0\n")
    assert "you require iniconfig==1.0.0 and iniconfig==2.0.0" in case.fails()

    reason = Case(world, requirements_txt="langgraph==0.2.0\n").fails()
    assert "this server runs graphs with langgraph>=1.0.10" in reason

    case = Case(world, requirements_txt="# another\niniconfig\n")
    unreachable = {
        **case.settings.passed_on,
        "UV_DEFAULT_INDEX": "http://127.0.0.1:1/simple",
        "UV_HTTP_RETRIES": "0",
    }
    reason = case.fails(passed_on=unreachable)
    assert reason.startswith("requirements: the package index cannot be reached: ")
    assert "127.0.0.1:1" in reason


@greened
def test_graphs_that_take_too_long_to_load_fail_the_build(world: World) -> None:
    case = Case(world, more="import time; time.sleep(60)")

    reason = case.fails(host_start_seconds=2)

    assert reason == "graphs: the graph host was not ready within 2 s"


@greened
def test_loading_graphs_may_take_no_more_memory_than_serving_them(world: World) -> None:
    case = Case(world, more="hoard = bytearray(400 * 2**20); import time; time.sleep(60)")

    reason = case.fails(host_memory_mb=300)

    assert reason.startswith("graphs: the process that loads them used ")
    assert reason.endswith("MiB, more than 300 MiB")


@greened
def test_a_log_that_grows_too_long_is_cut_off_and_shows_no_secret(world: World) -> None:
    case = Case(world, more="import os\nprint('x' * 90)\nfor n in range(50): print(n, os.environ['WORD'])")
    with connection() as conn:
        values = {"id": case.revision_id, "value": encryption.encrypt("a-secret-word")}
        conn.execute(
            text("INSERT INTO secret (revision_id, name, value) VALUES (:id, 'WORD', :value)"), values
        )

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(build_log, "MAX_LOG_BYTES", 900)
        assert case.build()["status"] == "DEPLOYED"

    with connection() as conn:
        query = text("SELECT message FROM log_line WHERE revision_id = :id ORDER BY at")
        lines = conn.execute(query, {"id": case.revision_id}).scalars().all()
    assert lines[-1] == "the build log is cut off at 0 MiB"
    assert sum(map(len, lines)) < 1000
    assert not [line for line in lines if "a-secret-word" in line]


@greened
def test_unchanged_source_is_built_and_loaded_once(world: World) -> None:
    case = Case(world)
    first, built = case.revision_id, case.build()
    assert built["status"] == "DEPLOYED"

    case.revision_id = case.revise()
    again = case.build()

    assert (again["status"], again["build_id"]) == ("DEPLOYED", first)
    assert again["requirements"] == built["requirements"]
    assert again["manifest"] == built["manifest"]
    assert _said(case, "its graphs have been loaded before, with the same variables")
    assert _graphs(case.revision_id) == _graphs(first) != []

    case.revision_id = case.revise()
    with connection() as conn:
        values = {"id": case.revision_id, "value": encryption.encrypt("x")}
        conn.execute(
            text("INSERT INTO secret (revision_id, name, value) VALUES (:id, 'NEW', :value)"), values
        )
    assert case.build()["status"] == "DEPLOYED"
    assert _said(case, "loading 1 graph"), "other variables may make other graphs"

    case.revision_id = case.revise(more="# other code")
    other = case.build()
    assert other["build_id"] is None
    assert _said(case, "the requirements are those of the last revision, and so are their versions")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(environments, "FRESH", environments.FRESH * 0)
        case.revision_id = case.revise(more="# other code")
        assert case.build()["build_id"] is None, "after a day, what has been released since counts"
        assert _said(case, "resolving requirements")


def _graphs(revision_id: UUID) -> list[Any]:
    with connection() as conn:
        query = text("SELECT graph_id, drawings, schemas, subgraphs FROM graph WHERE revision_id = :id")
        return [tuple(row) for row in conn.execute(query, {"id": revision_id})]
