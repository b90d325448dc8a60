"""Workspaces of revisions on one machine: which are kept, and that none is removed while in use."""

from __future__ import annotations

import dataclasses
import os
import signal
import stat
import subprocess
import sys
from pathlib import Path
from uuid import UUID, uuid4

import gevent
from sqlalchemy import text

from shared.deployments.deployments import DeploymentRef
from shared.infra.postgres import connection
from shared.models import RevisionStatus, RunStatus
from shared.settings import Settings
from tests.support import factories
from tests.support.greened import World, greened
from workers.builder import workspaces


def settings_for(world: World, *, kept: int = 3) -> Settings:
    found = Settings.from_env({"RUNYARD_DATA_DIR": str(world.tmp_path / "data")})
    return dataclasses.replace(found, kept_environments=kept)


def lay(settings: Settings, *ids: UUID) -> None:
    """Create workspaces in the state that a finished build leaves."""
    for id in ids:
        workspace = workspaces.workspace_of(settings, id)
        workspace.root.mkdir(parents=True)
        workspace.ready_marker.touch()
        workspace.lock.touch()


def left(settings: Settings) -> set[str]:
    return {path.stem for path in workspaces.folder(settings).iterdir()}


def revisions(deployment: DeploymentRef, count: int) -> list[UUID]:
    """Insert later deployed revisions of a deployment. Returns their ids, oldest first."""
    return [factories.revision(deployment.id, number=number) for number in range(2, count + 2)]


@greened
def test_only_what_may_serve_is_kept_and_nothing_of_a_deleted_deployment(world: World) -> None:
    settings = settings_for(world)
    deployment = factories.deployment()
    serving = deployment.active_revision_id
    assert serving is not None
    building = factories.revision(deployment.id, number=2, status=RevisionStatus.BUILDING)
    failed = factories.revision(deployment.id, number=3, status=RevisionStatus.BUILD_FAILED)
    stopped = factories.revision(deployment.id, number=4, status=RevisionStatus.INTERRUPTED)
    lay(settings, serving, building, failed, stopped, uuid4())
    other = workspaces.folder(settings) / "not-a-revision-but-36-characters-long"
    other.mkdir()

    assert workspaces.remove_unneeded(settings) == 3

    assert left(settings) == {str(serving), str(building), other.name}
    assert workspaces.remove_unneeded(settings) == 0

    with connection() as conn:
        conn.execute(text("UPDATE deployment SET deleted_at = now()"))
    assert workspaces.remove_unneeded(settings) == 2
    assert left(settings) == {other.name}


@greened
def test_of_old_ones_the_newest_few_stay(world: World) -> None:
    settings = settings_for(world, kept=2)
    deployment = factories.deployment()
    neighbour = factories.deployment("neighbour")
    serving, theirs = deployment.active_revision_id, neighbour.active_revision_id
    assert serving is not None
    assert theirs is not None
    older, old, new = revisions(deployment, 3)
    lay(settings, serving, older, old, new, theirs)

    workspaces.remove_unneeded(settings)

    assert left(settings) == {str(id) for id in (serving, old, new, theirs)}


@greened
def test_a_build_stays_that_a_later_revision_repeats(world: World) -> None:
    settings = settings_for(world, kept=1)
    deployment = factories.deployment()
    first = deployment.active_revision_id
    assert first is not None
    (second,) = revisions(deployment, 1)
    again = factories.revision(deployment.id, number=3, build_id=first)
    with connection() as conn:
        conn.execute(text("UPDATE deployment SET active_revision_id = :id"), {"id": again})
    lay(settings, first, second)

    workspaces.remove_unneeded(settings)

    assert left(settings) == {str(first)}


@greened
def test_what_runs_were_created_for_stays_until_they_end(world: World) -> None:
    settings = settings_for(world, kept=1)
    deployment = factories.deployment()
    older, old, new = revisions(deployment, 3)
    factories.run(deployment, revision_id=older)
    factories.run(deployment, revision_id=old, status=RunStatus.RUNNING)
    lay(settings, older, old, new)

    assert workspaces.remove_unneeded(settings) == 0

    with connection() as conn:
        conn.execute(text("UPDATE run SET status = 'success'"))
    assert workspaces.remove_unneeded(settings) == 2
    assert left(settings) == {str(new)}


@greened
def test_what_is_being_made_is_removed_afterwards(world: World) -> None:
    settings, id = settings_for(world), uuid4()
    workspace = workspaces.workspace_of(settings, id)
    with workspaces.exclusive(workspace):
        workspace.root.mkdir()
        removal = gevent.spawn(workspaces.remove, settings, id)
        gevent.sleep(0)
        assert workspace.root.exists()

    assert removal.get(timeout=10)

    assert left(settings) == set()


@greened
def test_what_a_host_works_in_stays_until_it_is_gone(world: World) -> None:
    settings, id = settings_for(world), uuid4()
    lay(settings, id)
    one, two = (workspaces.lock_shared(workspaces.workspace_of(settings, id)) for _ in range(2))

    assert workspaces.remove_unneeded(settings) == 0
    one.close()
    assert workspaces.remove_unneeded(settings) == 0
    two.close()

    assert workspaces.remove_unneeded(settings) == 1
    assert left(settings) == set()


HOLD = """
import sys, time
from pathlib import Path
from workers.builder import workspaces
held = workspaces.lock_shared(workspaces.Workspace(Path(sys.argv[1])))
print("held", flush=True)
time.sleep(600)
"""


@greened
def test_others_can_neither_list_workspaces_nor_open_their_locks(world: World) -> None:
    settings = settings_for(world)
    workspace = workspaces.workspace_of(settings, uuid4())
    with workspaces.lock_shared(workspace):
        workspace.use.chmod(0o644)  # too permissive a mode, to be corrected

    with workspaces.exclusive(workspace), workspaces.lock_shared(workspace):
        modes = [stat.S_IMODE(path.stat().st_mode) for path in (workspace.lock, workspace.use)]

    assert modes == [0o600, 0o600]
    assert stat.S_IMODE(workspaces.folder(settings).stat().st_mode) == 0o711


@greened
def test_a_runner_that_is_killed_holds_nothing_and_what_it_was_removing_goes(world: World) -> None:
    settings, id = settings_for(world), uuid4()
    lay(settings, id)
    root = workspaces.workspace_of(settings, id).root
    argv = [sys.executable, "-c", HOLD, str(root)]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, cwd=Path(__file__).parents[3]) as runner:
        assert runner.stdout is not None
        assert runner.stdout.readline() == b"held\n"
        assert workspaces.remove_unneeded(settings) == 0
        os.kill(runner.pid, signal.SIGKILL)

    assert workspaces.remove_unneeded(settings) == 1

    settings = settings_for(world)
    half = workspaces.folder(settings) / f"{workspaces.TRASH}{uuid4()}-0"
    (half / "env").mkdir(parents=True)

    workspaces.remove_unneeded(settings)

    assert not half.exists()
