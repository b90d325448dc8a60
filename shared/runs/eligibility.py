"""Which pending runs are eligible, in which order they are claimed, and when one is notified of again.

A run waits for the earlier runs of its thread, for its time, and for a free slot: in its pool, under its
deployment's limit (`shared/runs/deployment_limits.py`) and under its key's (`shared/runs/key_limits.py`).
`shared/runs/claims.py` executes the statements that claim them.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from uuid import UUID

from sqlalchemy import Connection, text

from shared.models import is_due, is_live, waiting_since


def has_waited(alias: str) -> str:
    """A pending run, called so in the statement, could have been claimed `waited` seconds ago."""
    return f"{waiting_since(alias)} < now() - make_interval(secs => %(waited)s)"


# OFFSET keeps the condition on a run's thread a look along the index: as a join it is planned by statistics, and
# those of a quiet hour make it read all that waits, for each of them.
_ELIGIBLE = """{0}.cancel_requested IS NULL AND {due}
    AND NOT EXISTS (SELECT 1 FROM run e WHERE e.deployment_id = {0}.deployment_id
      AND e.thread_id = {0}.thread_id AND e.created_seq < {0}.created_seq
      AND {live} OFFSET 0)"""


def eligible(alias: str) -> str:
    """A pending run, called so in the statement, that nothing but limits and full runners keep from starting."""
    return _ELIGIBLE.format(alias, due=is_due(alias), live=is_live("e"))


# A notification from the future was sent before the clock was put back: it may have been lost as any other.
_NOTIFICATION_LOST = """({0}.notified_at IS NULL OR {0}.notified_at NOT BETWEEN
    now() - make_interval(secs => least(2 * ({0}.notifications + 1), 30)) AND now() + interval '10 seconds')"""


def notification_lost(alias: str) -> str:
    """A pending run, called so in the statement, whose last notification nobody has followed for a while."""
    return _NOTIFICATION_LOST.format(alias)


# In an UPDATE of runs that are notified of after the commit.
NOTIFIED_AGAIN = "notified_at = now(), notifications = notifications + 1"
NOTIFIED_FIRST = "notified_at = now(), notifications = 0"

# Runs of these are claimed by shared/runs/deployment_limits.py and shared/runs/key_limits.py: here they would be in others' way.
_FREE_DEPLOYMENT = (
    "{0}.deployment_id NOT IN (SELECT id FROM deployment WHERE max_concurrent_runs IS NOT NULL)"
)
_FREE_KEY = "{0}.key_id NOT IN (SELECT id FROM api_key WHERE max_concurrent_runs IS NOT NULL)"


def free_deployment(alias: str) -> str:
    """A run, called so in the statement, of a deployment without limit."""
    return _FREE_DEPLOYMENT.format(alias)


def unlimited(alias: str) -> str:
    """The same, and created with a key without limit."""
    return f"{free_deployment(alias)} AND {_FREE_KEY.format(alias)}"


# It starts now, and not when a transaction began that has waited for its deployment or its key since: whoever looks
# at the times would find more runs at once than there may be.
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


# Who waits in a pool: each pair of deployment and key once. Found by leaping over the index, one leap a pair,
# however many runs wait in each.
LANES = """
    (SELECT l.deployment_id, l.key_id FROM run l WHERE l.status = 'pending' AND l.pool = {pool}
     ORDER BY l.deployment_id, l.key_id LIMIT 1)
    UNION ALL
    SELECT n.deployment_id, n.key_id FROM lane l CROSS JOIN LATERAL (
        SELECT m.deployment_id, m.key_id FROM run m WHERE m.status = 'pending' AND m.pool = {pool}
          AND (m.deployment_id, m.key_id) > (l.deployment_id, l.key_id)
        ORDER BY m.deployment_id, m.key_id LIMIT 1) n
"""
# The same of all pools.
ALL_LANES = """
    (SELECT l.pool, l.deployment_id, l.key_id FROM run l WHERE l.status = 'pending'
     ORDER BY l.pool, l.deployment_id, l.key_id LIMIT 1)
    UNION ALL
    SELECT n.pool, n.deployment_id, n.key_id FROM lane l CROSS JOIN LATERAL (
        SELECT m.pool, m.deployment_id, m.key_id FROM run m WHERE m.status = 'pending'
          AND (m.pool, m.deployment_id, m.key_id) > (l.pool, l.deployment_id, l.key_id)
        ORDER BY m.pool, m.deployment_id, m.key_id LIMIT 1) n
"""
# Round robin: every key's oldest run, then every key's second; of equals first who was served longest ago.
# A few more are looked at than are wanted, because other runners may be taking the same ones. A key with a
# limit is in no more rounds than it has capacity. Runs of one depth at a time (`shared/runs/nesting.py`).
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


# An array is made once: a subquery with LIMIT and FOR UPDATE may be run again for every row of a join.
_WAITING = """r.run_id = ANY(ARRAY(
            SELECT w.run_id FROM run w WHERE w.status = 'pending' AND w.pool = %(pool)s AND w.depth = 0 AND {which}
              AND {eligible}
            ORDER BY w.run_id LIMIT %(limit)s FOR UPDATE SKIP LOCKED))"""
# Created in the future: before the clock was put back.
_OVERLOOKED = f"{waiting_since('w')} NOT BETWEEN now() - make_interval(secs => %(waited)s) AND now()"
# Not as the indexes of waiting runs have it: a plan that is kept would go through all that wait, for each that is claimed.
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
    """The pending run that a finished run was in the way of."""

    run_id: UUID
    pool: str


def next_of(conn: Connection, deployment_id: UUID, thread_id: UUID) -> Next | None:
    """The pending run of a thread that comes next."""
    row = conn.execute(
        text(
            "SELECT run_id, pool FROM run WHERE deployment_id = :deployment_id AND thread_id = :thread_id"
            " AND status = 'pending' ORDER BY created_seq LIMIT 1"
        ),
        {"deployment_id": deployment_id, "thread_id": thread_id},
    ).one_or_none()
    return None if row is None else Next(row.run_id, row.pool)


def pools(conn: Connection) -> list[str]:
    """The pools in which runs wait."""
    query = text(f"WITH RECURSIVE lane AS ({ALL_LANES}) SELECT DISTINCT pool FROM lane")
    return list(conn.execute(query).scalars())


# Of each pair of deployment and key only its oldest: however many more wait, the look costs the same. Runners look for
# nested runs themselves (`shared/runs/nesting.py`).
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
    """Eligible runs, of all but these pools, whose last notification nobody acted on; each is marked as notified."""
    rows = conn.execute(TO_NOTIFY, {"full_pools": list(full_pools), "limit": limit})
    return [Next(row.run_id, row.pool) for row in rows]


# By itself PostgreSQL looks again when a tenth of all runs ever kept has changed.
IS_OUTDATED = text("""
SELECT n_mod_since_analyze > 5000
    AND coalesce(greatest(last_analyze, last_autoanalyze), '-infinity') < now() - make_interval(secs => :pause)
FROM pg_stat_user_tables WHERE relid = CAST('run' AS regclass)
""")
# A sample of 3,000 rows shows what waits, and other steps of upkeep are due: one of 30,000 takes up to seconds.
COARSELY = text("SET LOCAL default_statistics_target = 10")


def refresh_statistics(conn: Connection, *, pause_seconds: float = 60.0) -> bool:
    """Let PostgreSQL learn how many runs wait, when it may be wrong about that; whether it had to.

    Planned for none that wait, each claim reads all of them.
    """
    is_outdated = bool(conn.execute(IS_OUTDATED, {"pause": pause_seconds}).scalar_one())
    if is_outdated:
        conn.execute(COARSELY)
        conn.execute(text("ANALYZE run"))
    return is_outdated
