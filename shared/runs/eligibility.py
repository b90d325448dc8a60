"""Eligibility of pending runs, the order in which they are claimed, and repeated notifications.

A run waits for the earlier runs of its thread, for its start time and for capacity: a slot in its pool, its
deployment's limit (`shared/runs/deployment_limits.py`) and its key's limit (`shared/runs/key_limits.py`).
`shared/runs/claims.py` executes the claim statements defined here.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from uuid import UUID

from sqlalchemy import Connection, text

from shared.models import is_due, is_live, waiting_since


def has_waited(alias: str) -> str:
    """Return SQL that is true for pending runs that have been waiting for `waited` seconds."""
    return f"{waiting_since(alias)} < now() - make_interval(secs => %(waited)s)"


# OFFSET 0 keeps the planner from turning the subquery into a join, so it stays an index lookup by thread. A join is
# planned by statistics, and with statistics of a quiet hour its plan reads the whole backlog for each pending run.
_ELIGIBLE = """{0}.cancel_requested IS NULL AND {due}
    AND NOT EXISTS (SELECT 1 FROM run e WHERE e.deployment_id = {0}.deployment_id
      AND e.thread_id = {0}.thread_id AND e.created_seq < {0}.created_seq
      AND {live} OFFSET 0)"""


def eligible(alias: str) -> str:
    """Return SQL that is true for pending runs that may start, apart from limits and full runners."""
    return _ELIGIBLE.format(alias, due=is_due(alias), live=is_live("e"))


# A notification with a time in the future was sent before the clock was set back. It counts as lost, too.
_NOTIFICATION_LOST = """({0}.notified_at IS NULL OR {0}.notified_at NOT BETWEEN
    now() - make_interval(secs => least(2 * ({0}.notifications + 1), 30)) AND now() + interval '10 seconds')"""


def notification_lost(alias: str) -> str:
    """Return SQL that is true for pending runs whose last notification has had no effect for a while."""
    return _NOTIFICATION_LOST.format(alias)


# SET clauses for an UPDATE of runs, if runners are notified of them after the commit.
NOTIFIED_AGAIN = "notified_at = now(), notifications = notifications + 1"
NOTIFIED_FIRST = "notified_at = now(), notifications = 0"

# Runs under a limit are claimed by shared/runs/deployment_limits.py and shared/runs/key_limits.py. In the statements
# here, runs that a limit keeps waiting would take the place of runs that can start.
_FREE_DEPLOYMENT = (
    "{0}.deployment_id NOT IN (SELECT id FROM deployment WHERE max_concurrent_runs IS NOT NULL)"
)
_FREE_KEY = "{0}.key_id NOT IN (SELECT id FROM api_key WHERE max_concurrent_runs IS NOT NULL)"


def free_deployment(alias: str) -> str:
    """Return SQL that is true for runs of deployments without a limit."""
    return _FREE_DEPLOYMENT.format(alias)


def unlimited(alias: str) -> str:
    """Return SQL that is true for runs whose deployment and key both have no limit."""
    return f"{free_deployment(alias)} AND {_FREE_KEY.format(alias)}"


# The start is the time of the statement, not of the transaction, which may have waited for the lock of a deployment or
# key. With the transaction's time, the recorded times would show more concurrent runs than the limit allows.
_CLAIM = """
UPDATE run r SET status = 'running', attempt = attempt + 1, owner = %(owner)s,
    lease_until = now() + make_interval(secs => %(lease)s), updated_at = statement_timestamp(),
    started_at = coalesce(started_at, statement_timestamp()),
    deadline_at = coalesce(
        deadline_at, now() + make_interval(secs => coalesce(timeout_seconds, %(run_timeout)s))),
    seq_reserved = seq_reserved + %(reserved)s
WHERE {which} AND {pending}
  AND (CAST(%(pool)s AS text) IS NULL OR r.pool = %(pool)s) AND {eligible}
RETURNING run_id, deployment_id, thread_id, assistant_id, revision_id, graph_id, attempt,
    seq_reserved - %(reserved)s AS floor, temporary, metadata, CAST(input AS text) AS input, kwargs,
    last_death, deaths, quarantine, timeout_seconds,
    date_part('epoch', deadline_at - now()) AS seconds_left, key_id, depth
"""
CLAIMED_COLUMNS = {
    "run_id": "uuid", "deployment_id": "uuid", "thread_id": "uuid", "assistant_id": "uuid", "revision_id": "uuid",
    "graph_id": "text", "attempt": "bigint", "floor": "bigint", "temporary": "boolean", "metadata": "jsonb",
    "input": "text", "kwargs": "json", "last_death": "text", "deaths": "bigint", "quarantine": "bigint",
    "timeout_seconds": "float8", "seconds_left": "float8", "key_id": "text",
    "depth": "bigint",
}  # fmt: skip


def _claim(which: str, pending: str = "r.status = 'pending'") -> str:
    return _CLAIM.format(which=which, pending=pending, eligible=eligible("r"))


# The distinct pairs of deployment and key with pending runs in a pool: the body of a recursive CTE named `lane`. A
# loose index scan: one index lookup for each pair, however many runs wait in it.
LANES = """
    (SELECT l.deployment_id, l.key_id FROM run l WHERE l.status = 'pending' AND l.pool = {pool}
     ORDER BY l.deployment_id, l.key_id LIMIT 1)
    UNION ALL
    SELECT n.deployment_id, n.key_id FROM lane l CROSS JOIN LATERAL (
        SELECT m.deployment_id, m.key_id FROM run m WHERE m.status = 'pending' AND m.pool = {pool}
          AND (m.deployment_id, m.key_id) > (l.deployment_id, l.key_id)
        ORDER BY m.deployment_id, m.key_id LIMIT 1) n
"""
# The distinct triples of pool, deployment and key with pending runs, found like LANES.
ALL_LANES = """
    (SELECT l.pool, l.deployment_id, l.key_id FROM run l WHERE l.status = 'pending'
     ORDER BY l.pool, l.deployment_id, l.key_id LIMIT 1)
    UNION ALL
    SELECT n.pool, n.deployment_id, n.key_id FROM lane l CROSS JOIN LATERAL (
        SELECT m.pool, m.deployment_id, m.key_id FROM run m WHERE m.status = 'pending'
          AND (m.pool, m.deployment_id, m.key_id) > (l.pool, l.deployment_id, l.key_id)
        ORDER BY m.pool, m.deployment_id, m.key_id LIMIT 1) n
"""
# Round robin: the oldest run of each key, then the second of each key. Within a round, the key served longest ago comes
# first. The statement considers a few more runs than the limit, because other runners may be claiming the same runs. A
# key with a limit takes part in as many rounds as it has capacity. One statement claims runs of one depth
# (`shared/runs/nesting.py`).
_ROUND_ROBIN = """r.run_id = ANY(ARRAY(
    WITH RECURSIVE lane AS ({lanes}), ranked AS (
        SELECT c.run_id, l.key_id, row_number() OVER (PARTITION BY l.key_id ORDER BY c.run_id) AS round
        FROM lane l CROSS JOIN LATERAL (
            SELECT w.run_id FROM run w WHERE w.status = 'pending' AND w.pool = %(pool)s
              AND w.deployment_id = l.deployment_id AND w.key_id = l.key_id AND w.depth = %(depth)s AND {eligible}
            ORDER BY w.run_id LIMIT %(limit)s + 8) c
        WHERE {of}
    ), chosen AS (
        SELECT run_id, row_number() OVER (ORDER BY round,
            coalesce(array_position(CAST(%(served)s AS text[]), key_id), 0), run_id) AS position
        FROM ranked WHERE round <= coalesce((CAST(%(capacities)s AS bigint[]))[
            array_position(CAST(%(limited_keys)s AS text[]), key_id)], %(limit)s + 8)
        ORDER BY position LIMIT %(limit)s + 8
    )
    SELECT w.run_id FROM run w JOIN chosen c ON c.run_id = w.run_id WHERE w.status = 'pending'
    ORDER BY c.position LIMIT %(limit)s FOR UPDATE OF w SKIP LOCKED))"""


def _round_robin(of: str) -> str:
    lanes = LANES.format(pool="%(pool)s")
    return _claim(_ROUND_ROBIN.format(lanes=lanes, eligible=eligible("w"), of=of))


# ARRAY(…) is evaluated once. PostgreSQL may execute a plain subquery with LIMIT and FOR UPDATE once per row of a join.
_WAITING = """r.run_id = ANY(ARRAY(
            SELECT w.run_id FROM run w WHERE w.status = 'pending' AND w.pool = %(pool)s AND w.depth = 0 AND {which}
              AND {eligible}
            ORDER BY w.run_id LIMIT %(limit)s FOR UPDATE SKIP LOCKED))"""
# A run with a time in the future was created before the clock was set back.
_OVERLOOKED = f"{waiting_since('w')} NOT BETWEEN now() - make_interval(secs => %(waited)s) AND now()"
# coalesce() keeps the planner from the partial indexes of pending runs. A cached generic plan would otherwise scan the
# whole backlog for each claimed run.
CLAIM = _claim(
    f"r.run_id = ANY(%(ids)s) AND {free_deployment('r')} AND (NOT %(some_key_is_limited)s OR {_FREE_KEY.format('r')})",
    pending="coalesce(r.status, '') = 'pending'",
)
CLAIM_WAITING = _claim(_WAITING.format(which=f"{unlimited('w')} AND {_OVERLOOKED}", eligible=eligible("w")))
CLAIM_ROUND_ROBIN = _round_robin(unlimited("l"))
CLAIM_LIMITED = _round_robin("l.deployment_id = %(deployment_id)s")
CLAIM_OF_KEY = _round_robin(f"l.key_id = %(key_id)s AND {free_deployment('l')}")


@dataclass(frozen=True, slots=True)
class Next:
    """A pending run that runners are to be notified of, such as the next run of a thread after one has ended."""

    run_id: UUID
    pool: str


def next_of(conn: Connection, deployment_id: UUID, thread_id: UUID) -> Next | None:
    """Return the oldest pending run of a thread, or None."""
    row = conn.execute(
        text(
            "SELECT run_id, pool FROM run WHERE deployment_id = :deployment_id AND thread_id = :thread_id"
            " AND status = 'pending' ORDER BY created_seq LIMIT 1"
        ),
        {"deployment_id": deployment_id, "thread_id": thread_id},
    ).one_or_none()
    return None if row is None else Next(row.run_id, row.pool)


def pools(conn: Connection) -> list[str]:
    """Return the pools with pending runs."""
    query = text(f"WITH RECURSIVE lane AS ({ALL_LANES}) SELECT DISTINCT pool FROM lane")
    return list(conn.execute(query).scalars())


# Considers only the oldest runs of each pair of deployment and key, so the cost does not grow with the backlog. Nested
# runs are left out: runners poll for them (`shared/runs/nesting.py`).
TO_NOTIFY = text(f"""
UPDATE run SET {NOTIFIED_AGAIN} WHERE run_id = ANY(ARRAY(
    WITH RECURSIVE lane AS ({ALL_LANES}), eligible AS (
        SELECT c.run_id FROM lane l CROSS JOIN LATERAL (
            SELECT w.run_id, w.notified_at, w.notifications FROM run w WHERE w.status = 'pending' AND w.pool = l.pool
              AND w.deployment_id = l.deployment_id AND w.key_id = l.key_id AND w.depth = 0 AND {eligible("w")}
            ORDER BY w.run_id LIMIT 2 * :limit) c
        WHERE l.pool <> ALL(:full_pools) AND {unlimited("l")}
          AND {notification_lost("c")}
        ORDER BY c.run_id LIMIT :limit)
    SELECT r.run_id FROM run r WHERE r.run_id = ANY(ARRAY(SELECT run_id FROM eligible))
    FOR UPDATE SKIP LOCKED))
RETURNING run_id, pool
""")


def to_notify(conn: Connection, *, full_pools: Collection[str] = (), limit: int = 200) -> list[Next]:
    """Mark eligible runs whose last notification had no effect as notified again, and return them.

    Skips the runs of `full_pools`.
    """
    rows = conn.execute(TO_NOTIFY, {"full_pools": list(full_pools), "limit": limit})
    return [Next(row.run_id, row.pool) for row in rows]


# Autovacuum analyzes the table only after a tenth of all stored runs has changed.
IS_OUTDATED = text("""
SELECT n_mod_since_analyze > 5000
    AND coalesce(greatest(last_analyze, last_autoanalyze), '-infinity') < now() - make_interval(secs => :pause)
FROM pg_stat_user_tables WHERE relid = CAST('run' AS regclass)
""")
# A sample of 3,000 rows is enough to estimate the backlog. The default of 30,000 rows takes up to seconds and would
# delay the other steps of upkeep.
COARSELY = text("SET LOCAL default_statistics_target = 10")


def refresh_statistics(conn: Connection, *, pause_seconds: float = 60.0) -> bool:
    """Analyze the run table if its statistics may be outdated. Returns whether it did.

    If the statistics show no pending runs, the plan of each claim reads the whole backlog.
    """
    is_outdated = bool(conn.execute(IS_OUTDATED, {"pause": pause_seconds}).scalar_one())
    if is_outdated:
        conn.execute(COARSELY)
        conn.execute(text("ANALYZE run"))
    return is_outdated
