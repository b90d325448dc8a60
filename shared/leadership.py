"""Which of the processes that could do a job does it: a lease in a row, by the database's clock.

Why not an advisory lock: it ends with its session, and the session of a frozen process lives on. A leader that
does not renew its lease for `LEASE_SECONDS` is replaced by whoever asks next; it learns of that when it asks again.
"""

from __future__ import annotations

from shared.infra.postgres import Driver, query

UPKEEP = "upkeep"
LEASE_SECONDS = 3.0

# Nothing is locked, let alone written, while another process leads. A lease that ends later than any lease can
# was given by a clock that has been put back since: it counts for nothing.
HOLD = """
INSERT INTO leader AS held (role, owner, lease_until)
SELECT %(role)s, %(owner)s, now() + make_interval(secs => %(lease)s)
WHERE NOT EXISTS (SELECT FROM leader WHERE role = %(role)s AND owner <> %(owner)s
    AND lease_until > now() AND lease_until <= now() + make_interval(secs => 2 * %(lease)s))
ON CONFLICT (role) DO UPDATE SET owner = excluded.owner, lease_until = excluded.lease_until
WHERE held.owner = excluded.owner OR held.lease_until <= now()
   OR held.lease_until > now() + make_interval(secs => 2 * %(lease)s)
RETURNING owner
"""


def hold(conn: Driver, role: str, owner: str) -> bool:
    """Take or renew the lease; False while another process holds it."""
    values = {"role": role, "owner": owner, "lease": LEASE_SECONDS}
    return query(conn, HOLD, values).fetchone() is not None


def release(conn: Driver, role: str, owner: str) -> None:
    """Let another process lead at once."""
    query(
        conn,
        "DELETE FROM leader WHERE role = %(role)s AND owner = %(owner)s",
        {"role": role, "owner": owner},
    )
