"""Commits of a runner: ends of runs with their webhooks, and checkpoints, in one database function call.

The statements are those of `shared/runs/finish.py` and `shared/threads/checkpoints.py`. Each statement of the function
has its own snapshot, as in a transaction: after the threads are locked, the next statement sees everything committed
before.
"""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

from shared.infra.postgres import Driver, query
from shared.infra.routines import Routine
from shared.runs import finish, webhooks
from shared.runs.eligibility import Next
from shared.runs.finish import Finish
from shared.threads import checkpoints, records
from shared.threads.checkpoints import Write

_HOOKED = "ARRAY(SELECT unnest(ended_runs) INTERSECT SELECT unnest(CAST(%(hooked)s AS uuid[])))"

COMMIT_RUNS = Routine(
    name="commit_runs_1",
    parameters={
        "owner": "text",
        "deployment_ids": "uuid[]",
        "thread_ids": "uuid[]",
        "hooked": "uuid[]",
        **finish.KEPT_COLUMNS,
        **checkpoints.WRITE_COLUMNS,
    },
    returns="TABLE (ended_run uuid, next_run uuid, next_pool text, held_run uuid)",
    declares="ended_runs uuid[] := '{}';",
    body=f"""
IF cardinality(%(run_ids)s) > 0 THEN
    PERFORM {records.LOCK_ALL.removeprefix("SELECT ")};
    FOR ended_run, next_run, next_pool IN {finish.FINISH}
    LOOP
        ended_runs := ended_runs || ended_run;
        RETURN NEXT;
    END LOOP;
    IF cardinality(%(hooked)s) > 0 THEN
        {webhooks.RECORD.replace("%(run_ids)s", _HOOKED).replace("%(error)s", "NULL")};
    END IF;
END IF;
IF cardinality(%(writing)s) > 0 THEN
    ended_run := NULL; next_run := NULL; next_pool := NULL;
    FOR held_run IN {checkpoints.WRITE_OWNED}
    LOOP
        RETURN NEXT;
    END LOOP;
END IF;""",
)

_COMMIT = f"SELECT * FROM {COMMIT_RUNS.call}"
_COMMIT_TO_DISK = f"SELECT *, set_config('synchronous_commit', 'on', true) FROM {COMMIT_RUNS.call}"


def commit(
    conn: Driver, ends: Sequence[Finish], writes: Sequence[Write], *, owner: str, to_disk: bool
) -> tuple[dict[UUID, Next | None], set[UUID]]:
    """End an owner's runs that keep their threads, and store checkpoints, in one transaction.

    Returns the next run of the thread (or None) for each ended run, and the ids of the runs whose checkpoints were
    dropped because the owner has lost them. The commit waits for the disk if it ends runs or if `to_disk` is set.
    """
    parameters = {
        "owner": owner,
        "deployment_ids": [end.run.deployment_id for end in ends],
        "thread_ids": [end.run.thread_id for end in ends],
        "hooked": [end.run.run_id for end in ends if finish.has_webhook(end)],
        **finish.kept_columns(ends),
        **checkpoints.write_columns(writes, ending=[end.run.run_id for end in ends]),
    }
    done: dict[UUID, Next | None] = {}
    fenced = {item.run_id for item in writes}
    statement = _COMMIT_TO_DISK if ends or to_disk else _COMMIT
    for row in query(conn, statement, COMMIT_RUNS.values(parameters)):
        run_id, next_run = row["ended_run"], row["next_run"]
        if run_id is None:
            fenced.discard(row["held_run"])
        else:
            done[run_id] = None if next_run is None else Next(next_run, row["next_pool"])
    return done, fenced
