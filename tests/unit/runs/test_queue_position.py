"""Why a run waits, while it is claimed."""

from __future__ import annotations

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
