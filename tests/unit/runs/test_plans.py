"""Query plans: frequent statements use indexes. PostgreSQL's own counters tell how many rows each statement reads."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from uuid import UUID

import pytest
from sqlalchemy import Connection, text

from shared import assistants
from shared import store as stored_items
from shared.deployments import deployments
from shared.deployments.deployments import DeploymentRef
from shared.infra.postgres import connection
from shared.models import RunStatus, ThreadStatus
from shared.removal import expiry, history
from shared.runs import backlog, claims, finish, limits, nesting, read
from shared.runs import read as run_search
from shared.runs.claims import Terms
from shared.runs.drafts import RunRequest
from shared.runs.finish import Finish
from shared.sql import pages
from shared.threads import checkpoint_reads, records, state
from tests.support import factories
from tests.support.creating import insert_run

pytestmark = pytest.mark.usefixtures("db")

THREADS, STEPS, FEW = 8_000, 500, 2_000
# Creation times are derived from run ids, and the ids below are random. This limit is older than any of them.
LONG_AGO = datetime(1970, 1, 2, tzinfo=UTC)

FILL = (
    """
    INSERT INTO thread (deployment_id, thread_id, metadata, created_at, updated_at)
    SELECT :deployment_id, gen_random_uuid(), jsonb_build_object('user', n % 400, 'tenant', n % 10),
        now() - make_interval(secs => n), now() - make_interval(secs => n)
    FROM generate_series(1, :threads) AS n
    """,
    """
    INSERT INTO run (run_id, deployment_id, thread_id, assistant_id, revision_id, graph_id, status, kwargs, pool,
        created_seq)
    SELECT gen_random_uuid(), :deployment_id, :thread_id, gen_random_uuid(), gen_random_uuid(), 'agent', 'success',
        '{}', 'default', n
    FROM generate_series(1, :steps) AS n
    """,
    """
    INSERT INTO run (run_id, deployment_id, thread_id, assistant_id, revision_id, graph_id, status, kwargs, pool,
        created_seq, ended_at)
    SELECT gen_random_uuid(), :deployment_id, :thread_id, gen_random_uuid(), gen_random_uuid(), 'agent', 'error',
        '{}', 'default', :steps + n, now()
    FROM generate_series(1, 20) AS n
    """,
    "UPDATE thread SET last_seq = 2 * :steps WHERE thread_id = :thread_id",
    """
    INSERT INTO checkpoint (deployment_id, thread_id, checkpoint_ns, checkpoint_id, type, data, blobs)
    SELECT :deployment_id, :thread_id, '', lpad(CAST(n AS text), 8, '0'), 'msgpack', '',
        json_build_object('messages', n)
    FROM generate_series(1, :steps) AS n
    """,
    """
    INSERT INTO checkpoint_blob (deployment_id, thread_id, checkpoint_ns, channel, version, type, data)
    SELECT :deployment_id, :thread_id, '', 'messages', n, 'msgpack', '' FROM generate_series(1, :steps) AS n
    """,
    """
    INSERT INTO checkpoint_write (deployment_id, thread_id, checkpoint_ns, checkpoint_id, task_id, idx, channel,
        type, data)
    SELECT :deployment_id, :thread_id, '', lpad(CAST(n AS text), 8, '0'), 'task', 0, 'messages', 'msgpack', ''
    FROM generate_series(1, :steps) AS n
    """,
    """
    INSERT INTO thread (deployment_id, thread_id, status, is_listed)
    SELECT :deployment_id, gen_random_uuid(), status, false
    FROM unnest(ARRAY['busy', 'idle', 'interrupted']) AS status, generate_series(1, 500) AS n
    """,
    "ANALYZE thread, run, checkpoint, checkpoint_blob, checkpoint_write",
)
FILL_OTHERS = (
    """
    INSERT INTO assistant (deployment_id, assistant_id, created_at)
    SELECT :deployment_id, gen_random_uuid(), now() - make_interval(secs => n) FROM generate_series(1, :number) AS n
    """,
    """
    INSERT INTO assistant_version (deployment_id, assistant_id, version, graph_id, name)
    SELECT deployment_id, assistant_id, 1, 'agent', 'assistant' FROM assistant ON CONFLICT DO NOTHING
    """,
    """
    INSERT INTO store_item (deployment_id, path, key, value)
    SELECT :deployment_id, 'items.', CAST(n AS text), '{}' FROM generate_series(1, :number) AS n
    """,
    "ANALYZE assistant, assistant_version, store_item",
)
MORE_DEPLOYMENTS = """
INSERT INTO deployment (id, organization_id, name, source, status, created_at)
SELECT gen_random_uuid(), organization_id, 'other-' || n, source, status, now() - make_interval(secs => n)
FROM deployment, generate_series(1, :number) AS n WHERE id = :deployment_id
"""
READ = text("""
SELECT coalesce(sum(seq_tup_read), 0) AS by_scan, coalesce(sum(idx_tup_fetch), 0) AS by_index
FROM pg_stat_xact_user_tables
WHERE relname IN ('thread', 'run', 'checkpoint', 'checkpoint_blob', 'checkpoint_write', 'assistant', 'assistant_version',
    'store_item', 'deployment')
""")

Work = Callable[[Connection], object]


def fill(deployment: DeploymentRef) -> UUID:
    """Insert THREADS threads, and one with STEPS runs and checkpoints. Returns its id."""
    thread_id = factories.thread(deployment.id)
    key = {"deployment_id": deployment.id, "thread_id": thread_id, "threads": THREADS, "steps": STEPS}
    with connection() as conn:
        for statement in FILL:
            conn.execute(text(statement), key)
    return thread_id


WAIT = """
    INSERT INTO run (run_id, deployment_id, thread_id, assistant_id, revision_id, graph_id, status, kwargs, pool,
        created_seq, notified_at, notifications)
    SELECT gen_random_uuid(), :deployment_id, thread_id, gen_random_uuid(), gen_random_uuid(), 'agent', 'pending',
        '{}', 'default', 1, CASE WHEN :is_rung THEN now() END, 10
    FROM thread WHERE deployment_id = :deployment_id
"""


def read_by(work: Work) -> tuple[int, int]:
    """Return how many rows the work read, as `(by sequential scan, through indexes)`."""
    with connection() as conn:
        before = conn.execute(READ).one()
        work(conn)
        after = conn.execute(READ).one()
        return int(after.by_scan - before.by_scan), int(after.by_index - before.by_index)


def assert_read(cases: Mapping[str, tuple[Work, int]], *, by_scan: int) -> None:
    """Assert that no work reads more rows than its limit through indexes, or more than `by_scan` by sequential scan."""
    counted = {name: read_by(work) for name, (work, _) in cases.items()}
    assert {name: scanned for name, (scanned, _) in counted.items() if scanned > by_scan} == {}
    assert {name: count for name, (_, count) in counted.items() if count > cases[name][1]} == {}


def test_nothing_that_is_asked_often_reads_what_it_does_not_need(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pages, "MOST_COUNTED", 20)
    deployment = factories.deployment()
    thread_id = fill(deployment)
    with connection() as conn:
        for statement in FILL_OTHERS:
            conn.execute(text(statement), {"deployment_id": deployment.id, "number": FEW})

    def search(conn: Connection, **filters: object) -> None:
        records.search(conn, deployment.id, limit=10, offset=0, **filters)

    def history(conn: Connection) -> None:
        ask = {"op": "list", "thread_id": str(thread_id), "checkpoint_ns": "", "limit": 10, "filter": {}}
        checkpoint_reads.answer(conn, deployment.id, ask, thread_id=thread_id)

    def failed(conn: Connection) -> None:
        run_search.search(conn, deployment.id, {}, limit=10, offset=0)

    def newest(conn: Connection, **filters: object) -> None:
        wanted = {"status": list(RunStatus), **filters}
        run_search.search(conn, deployment.id, wanted, limit=10, offset=0)

    def run(conn: Connection) -> None:
        run_id = insert_run(conn, deployment, RunRequest(assistant_id="agent"), thread_id=thread_id).run_id
        own = conn.connection.driver_connection
        ((claimed, _),) = claims.claim(own, [run_id], Terms("me", 30.0, 3600.0))
        end = Finish(claimed, RunStatus.SUCCESS, ThreadStatus.IDLE, values="{}", state="{}")
        assert run_id in finish.finish_runs(conn, [end], owner="me")

    def committed(conn: Connection) -> None:
        made = [
            insert_run(conn, deployment, RunRequest(assistant_id="agent"), thread_id=one).run_id
            for one in (thread_id, factories.thread(deployment.id))
        ]
        own = conn.connection.driver_connection
        taken = [run for run, _ in claims.claim(own, made, Terms("me", 30.0, 3600.0))]
        ends = [Finish(run, RunStatus.SUCCESS, ThreadStatus.IDLE, values="{}", state="{}") for run in taken]
        writes = [factories.checkpoint(run, "99999999", b"x", new=[("a", "1", "t")]) for run in taken]
        done, fenced = finish.commit(own, ends, writes, owner="me", to_disk=False)
        assert (done.keys(), fenced) == (set(made), set())

    cases: dict[str, tuple[Work, int]] = {
        "a search for one thread in 400": (
            lambda conn: search(conn, metadata={"user": 7}),
            2 * 20,
        ),
        "a search for none": (lambda conn: search(conn, metadata={"user": "nobody"}), 0),
        "a search for one thread in 10": (lambda conn: search(conn, metadata={"tenant": 7}), 1_000),
        "a search for any": (search, 2 * 20),
        "a search by status": (lambda conn: search(conn, sort_by="status"), 2 * 20),
        "a search by creation": (lambda conn: search(conn, sort_by="created_at"), 2 * 20),
        "a search for idle threads": (lambda conn: search(conn, status="idle"), 2 * 20),
        "ten assistants": (lambda conn: assistants.search(conn, deployment, limit=10, offset=0), 3 * 20),
        "ten stored items": (lambda conn: stored_items.search(conn, deployment.id, ("items",)), 20),
        "the newest state": (lambda conn: state.newest(conn, deployment.id, thread_id), 2),
        "ten states of the history": (history, 3 * 11),
        "ten runs": (
            lambda conn: read.list_of_thread(conn, deployment.id, thread_id, limit=10, offset=0),
            10,
        ),
        "ten runs that failed": (failed, 2 * 20),
        "ten runs of any status": (newest, 2 * 20 + 10),
        "the runs of a cron": (lambda conn: newest(conn, metadata={"cron_id": "c"}), 10),
        "ten runs of long ago": (lambda conn: newest(conn, until=LONG_AGO), 10),
        "one more run": (run, 40),
        "two more runs, with their checkpoints": (committed, 80),
    }
    assert_read(cases, by_scan=250)


def test_a_page_of_deployments_does_not_read_all() -> None:
    deployment = factories.deployment()
    with connection() as conn:
        conn.execute(text(MORE_DEPLOYMENTS), {"deployment_id": deployment.id, "number": FEW})
        conn.execute(text("ANALYZE deployment"))

    def search(conn: Connection) -> None:
        deployments.search(conn, deployment.organization_id, filters={}, limit=10, offset=0)

    assert_read({"ten deployments": (search, 2 * 20)}, by_scan=0)


# Copy the long thread's checkpoints, blobs and writes to twenty other threads.
BESIDE = (
    """
    INSERT INTO checkpoint (deployment_id, thread_id, checkpoint_ns, checkpoint_id, type, data, blobs)
    SELECT o.deployment_id, o.thread_id, checkpoint_ns, checkpoint_id, type, data, blobs FROM checkpoint, others o
    """,
    """
    INSERT INTO checkpoint_blob (deployment_id, thread_id, checkpoint_ns, channel, version, type, data)
    SELECT o.deployment_id, o.thread_id, checkpoint_ns, channel, version, type, data FROM checkpoint_blob, others o
    """,
    """
    INSERT INTO checkpoint_write (deployment_id, thread_id, checkpoint_ns, checkpoint_id, task_id, idx, channel,
        type, data)
    SELECT o.deployment_id, o.thread_id, checkpoint_ns, checkpoint_id, task_id, idx, channel, type, data
    FROM checkpoint_write, others o
    """,
)
OTHERS = "WITH others AS (SELECT deployment_id, thread_id FROM thread ORDER BY updated_at LIMIT 20)"
STRONG_LOCKS = text("""
SELECT relation::regclass, mode FROM pg_locks
WHERE pid = pg_backend_pid() AND locktype = 'relation' AND mode NOT IN ('AccessShareLock', 'RowShareLock', 'RowExclusiveLock')
""")


def test_a_long_thread_is_deleted_along_its_index_and_locks_no_table() -> None:
    deployment = factories.deployment()
    thread_id = fill(deployment)
    with connection() as conn:
        for statement in (*(OTHERS + beside for beside in BESIDE), FILL[-1]):
            conn.execute(text(statement))

    def delete(conn: Connection) -> None:
        records.remove(conn, deployment.id, thread_id)
        assert conn.execute(STRONG_LOCKS).all() == []

    by_scan, by_index = read_by(delete)

    assert by_scan <= 2 * STEPS, "no runs but its own are there"
    assert by_index <= 5 * STEPS, "its checkpoints, their blobs and writes"


@pytest.mark.parametrize("is_rung", [True, False])
def test_what_is_done_every_second_does_not_read_all_that_waits(is_rung: bool) -> None:
    deployment = factories.deployment()
    fill(deployment)
    with connection() as conn:
        conn.execute(text(WAIT), {"deployment_id": deployment.id, "is_rung": is_rung})
    refresh_statistics()
    cases: dict[str, tuple[Work, int]] = {
        "pools": (backlog.pools, 10),
        "runs that nobody heard of": (lambda conn: backlog.mark_notified(conn, limit=200), 1_500),
        "runs under a limit that nobody heard of": (limits.mark_notified, 20),
        "runs that missed a move": (backlog.move_stragglers, 10),
        "leases and pauses that no clock of now gave": (
            lambda conn: claims.shorten_leases(conn, lease_seconds=30),
            10,
        ),
        "fifty claims": (claim(0), 500),
    }
    assert_read(cases, by_scan=10)
    if is_rung:
        assert_claims_at_one_depth_do_not_read_what_waits_at_others()


DEEPER = """
UPDATE run SET depth = :depth
WHERE run_id = ANY(ARRAY(SELECT run_id FROM run WHERE status = 'pending' AND depth = 0 ORDER BY run_id LIMIT :number))
"""


def assert_claims_at_one_depth_do_not_read_what_waits_at_others() -> None:
    with connection() as conn:
        for depth, number in ((1, 6_000), (2, 60), (3, 60)):
            conn.execute(text(DEEPER), {"depth": depth, "number": number})
    refresh_statistics()

    def depths(conn: Connection) -> object:
        return nesting.waiting(conn.connection.driver_connection, "default")

    claimed = {f"fifty claims at depth {depth}": (claim(depth), 500) for depth in range(4)}
    assert_read({"at which depths runs wait": (depths, 20), **claimed}, by_scan=10)


def refresh_statistics() -> None:
    with connection() as conn:
        conn.execute(text("SELECT pg_stat_force_next_flush()"))
    with connection() as conn:
        assert backlog.refresh_statistics(conn, pause_seconds=0)


def claim(depth: int) -> Work:
    """Return a work that claims up to fifty runs at this depth."""
    terms = Terms("me", 30.0, 3600.0, "default")
    return lambda conn: claims.claim_round_robin(
        conn.connection.driver_connection, "default", terms, limit=50, served=[], depth=depth
    )


# Runs spread over a year; threads that expire later, were reduced before, or never expire; and a few that are due.
AGED = (
    """
    INSERT INTO run (run_id, deployment_id, thread_id, assistant_id, revision_id, graph_id, status, kwargs, pool,
        created_seq, created_at, ended_at)
    SELECT CAST(lpad(to_hex(CAST(extract(epoch FROM at) * 1000 AS bigint)), 12, '0') || '7'
            || substr(md5(CAST(n AS text)), 1, 19) AS uuid), :deployment_id, :thread_id, gen_random_uuid(),
        gen_random_uuid(), 'agent', 'success', '{}', 'default', 10000 + n, at, at
    FROM generate_series(1, :threads) AS n, LATERAL (SELECT now() - make_interval(mins => CAST(n * 26 AS int)) AS at) AS t
    """,
    """
    UPDATE thread SET ttl_minutes = 1000000, updated_at = now() - interval '1 year'
    WHERE CAST(metadata ->> 'tenant' AS int) < 4
    """,
    """
    UPDATE thread SET ttl_minutes = 1, updated_at = now() - interval '2 years', swept_at = now()
    WHERE CAST(metadata ->> 'tenant' AS int) BETWEEN 4 AND 7
    """,
    """
    UPDATE thread SET ttl_minutes = 1, ttl_strategy = 'delete', updated_at = now() - interval '1 hour'
    WHERE metadata @> '{"user": 9}'
    """,
    "ANALYZE thread, run",
)


def test_what_is_over_is_found_without_reading_what_is_kept() -> None:
    deployment = factories.deployment()
    thread_id = fill(deployment)
    key = {"deployment_id": deployment.id, "thread_id": thread_id, "threads": THREADS}
    with connection() as conn:
        for statement in AGED:
            conn.execute(text(statement), key)

    def remove_runs(conn: Connection) -> None:
        assert history.remove_old_runs(conn, deployment.id, days=30) == history.RUNS_AT_ONCE
        assert conn.execute(STRONG_LOCKS).all() == []

    def sweep(conn: Connection) -> None:
        assert expiry.sweep(conn) == expiry.SWEPT_AT_ONCE
        assert conn.execute(STRONG_LOCKS).all() == []

    # Three rows per run: the run when it is found, the run when it is deleted, and its thread.
    by_scan, by_index = read_by(remove_runs)
    assert by_scan <= 20
    assert by_index <= 3 * history.RUNS_AT_ONCE + 20
    by_scan, by_index = read_by(sweep)
    assert by_scan <= 20
    assert by_index <= 10 * expiry.SWEPT_AT_ONCE
