"""Why a run waits, while it is claimed."""

from __future__ import annotations

from shared.deployments import limits
from shared.deployments.deployments import DeploymentRef
from shared.infra.postgres import connection
from shared.models import RunStatus
from shared.runs import queue_position
from tests.support import factories


def test_a_run_that_is_claimed_while_its_position_is_counted_has_one(deployment: DeploymentRef) -> None:
    just_claimed = factories.run(deployment, status=RunStatus.RUNNING, key_id="own")
    factories.run(deployment, key_id="own")
    factories.run(deployment, key_id="other")

    with connection() as conn:
        assert queue_position._first_of_thread(conn, deployment.id, just_claimed)[0] == 1


def test_a_run_waits_behind_runs_of_its_own_depth(deployment: DeploymentRef) -> None:
    for depth in (0, 0, 0, 1, 2):
        factories.run(deployment, key_id="own", depth=depth)
    factories.run(deployment, key_id="other")
    nested, root = factories.run(deployment, key_id="own", depth=1), factories.run(deployment, key_id="own")

    with connection() as conn:
        positions = [
            queue_position._first_of_thread(conn, deployment.id, run_id)[0] for run_id in (nested, root)
        ]
    assert positions == [2, 5]


def test_the_queue_of_a_deployment_judges_each_depth_by_what_runs_there(deployment: DeploymentRef) -> None:
    with connection() as conn:
        limits.change(conn, deployment.id, {"max_concurrent_runs": 1})
    factories.run(deployment, status=RunStatus.RUNNING)
    factories.run(deployment, status=RunStatus.RUNNING, depth=2)
    for depth in (0, 0, 1, 2):
        factories.run(deployment, depth=depth)

    with connection() as conn:
        queue = queue_position.of_deployment(conn, deployment)
    assert (queue["running"], queue["pool"]["running"]) == (2, 2)
    assert {said["reason"]: said["runs"] for said in queue["waiting"]} == {
        queue_position.DEPLOYMENT_LIMIT: 3,
        "no runner of pool default": 1,
    }
