"""The factories make rows the rules accept."""

from __future__ import annotations

from typing import Any

from shared.infra.postgres import connection
from shared.models import RUN, RunStatus
from tests.support import factories


def test_a_run_waits_on_a_thread_of_a_serving_deployment(db: Any) -> None:
    deployment = factories.deployment(graphs=("agent", "other"))
    run_id = factories.run(deployment)
    with connection() as conn:
        row = conn.execute(RUN.select().where(RUN.c.run_id == run_id)).mappings().one()
    assert (row["status"], row["created_seq"], row["pool"]) == (RunStatus.PENDING, 1, "default")
