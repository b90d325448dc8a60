"""Leadership: a lease in a row, by the database's clock, that lets one process do a job.

An advisory lock would not do: it ends with its session, and the session of a frozen process lives on. A leader that
does not renew its lease for LEASE_SECONDS is replaced by the next process that tries. It learns of that at its next
renewal.
"""

from __future__ import annotations

from shared.infra.postgres import Driver, query

UPKEEP = "upkeep"
LEASE_SECONDS = 3.0

# While another process leads, the statement locks and writes nothing. A lease that ends later than any lease can was
# written before the database's clock was put back, and is ignored.
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
    """Claim or renew the lease. Returns False while another process holds it."""
    values = {"role": role, "owner": owner, "lease": LEASE_SECONDS}
    return query(conn, HOLD, values).fetchone() is not None


def release(conn: Driver, role: str, owner: str) -> None:
    """Release the lease, so that another process can lead at once."""
    query(
        conn,
        "DELETE FROM leader WHERE role = %(role)s AND owner = %(owner)s",
        {"role": role, "owner": owner},
    )
