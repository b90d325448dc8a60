"""Budgets: how many tokens the runs of a deployment or key may use within a day (UTC), and each run.

Runners add the tokens that runs report after each model call to one row per budget and day. Only deployments and keys
with a budget have such a row. It starts with the day's sum from the figures.

A budget can be exceeded by the model calls that were in progress when it was reached (one, or a step's, per running
run) and by the first calls of runs that start within the next second.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from uuid import UUID

from sqlalchemy import Connection, text

from shared.errors import TooMany
from shared.figures.folding import DAY
from shared.figures.sums import models, tokens
from shared.infra.postgres import Driver, database_time, query

DEPLOYMENT, KEY = "deployment", "key"
NAMES = ("max_tokens_per_day", "max_run_tokens")
KNOWN_SECONDS = 1.0  # how long the set of used-up budgets is cached
KEPT_DAYS = 2

Account = tuple[str, str]  # DEPLOYMENT or KEY, and its id

_TODAY = "CAST(now() AT TIME ZONE 'UTC' AS date)"


@dataclass(frozen=True, slots=True)
class Budget:
    """The budget of a deployment or key, and the tokens its runs have used today."""

    max_tokens_per_day: int | None
    max_run_tokens: int | None
    spent: int

    @property
    def is_used_up(self) -> bool:
        return self.max_tokens_per_day is not None and self.spent >= self.max_tokens_per_day


LISTED = f"""
WITH budget AS (
    SELECT '{DEPLOYMENT}' AS kind, CAST(id AS text) AS id, max_tokens_per_day, max_run_tokens FROM deployment
    WHERE deleted_at IS NULL AND (max_tokens_per_day IS NOT NULL OR max_run_tokens IS NOT NULL)
    UNION ALL
    SELECT '{KEY}', id, max_tokens_per_day, max_run_tokens FROM api_key
    WHERE max_tokens_per_day IS NOT NULL OR max_run_tokens IS NOT NULL
)
SELECT b.*, coalesce(s.tokens, 0) AS spent
FROM budget b LEFT JOIN spent_tokens s ON s.kind = b.kind AND s.id = b.id AND s.day = {_TODAY}
"""


def listed(conn: Connection | Driver) -> dict[Account, Budget]:
    """Return the budgets of all deployments and keys that have one."""
    return {
        (row["kind"], row["id"]): Budget(row["max_tokens_per_day"], row["max_run_tokens"], row["spent"])
        for row in query(conn, LISTED, {})
    }


# The day's tokens in the figures: folded, and not yet folded.
_OF_DAY = f"""
(SELECT coalesce(sum(input_tokens + output_tokens), 0) FROM figure
   WHERE step_seconds = {DAY} AND at = date_trunc('day', now(), 'UTC') AND CAST({{column}} AS text) = {{id}})
+ (SELECT coalesce(sum({tokens("m.counts", "input_tokens")} + {tokens("m.counts", "output_tokens")}), 0)
   FROM ended_run e CROSS JOIN LATERAL {models("e.usage")} m
   WHERE e.ended_at >= date_trunc('day', now(), 'UTC') AND CAST(e.{{column}} AS text) = {{id}})
"""
_ID = "CAST(%(id)s AS text)"
_BEGUN = {
    DEPLOYMENT: _OF_DAY.format(column="deployment_id", id=_ID),
    KEY: _OF_DAY.format(column="key_id", id=_ID),
}
ADD = f"""
UPDATE spent_tokens SET tokens = tokens + %(tokens)s WHERE kind = %(kind)s AND id = {_ID} AND day = {_TODAY}
RETURNING tokens
"""
_BEGIN = """
INSERT INTO spent_tokens (kind, id, day, tokens) SELECT %(kind)s, {id}, {today}, %(tokens)s + {begun}
ON CONFLICT (kind, id, day) DO UPDATE SET tokens = {on_conflict}
RETURNING tokens
"""


def _begin(kind: str, on_conflict: str) -> str:
    return _BEGIN.format(id=_ID, today=_TODAY, begun=_BEGUN[kind], on_conflict=on_conflict)


def spend(conn: Driver, account: Account, count: int) -> int:
    """Add tokens to today's sum of an account and return the new sum."""
    values = {"kind": account[0], "id": account[1], "tokens": count}
    row = query(conn, ADD, values).fetchone()
    if row is None:
        row = query(conn, _begin(account[0], "spent_tokens.tokens + %(tokens)s"), values).fetchone()
    assert row is not None
    return row["tokens"]


def begin(conn: Connection | Driver, account: Account) -> None:
    """Start to count for a new budget, from the figures' sum of the day or the counted sum, whichever is greater."""
    values = {"kind": account[0], "id": account[1], "tokens": 0}
    query(conn, _begin(account[0], "greatest(spent_tokens.tokens, excluded.tokens)"), values)
    forget()


def exceeded(account: Account, most: int) -> str:
    """Return the error text for a used-up daily budget, with the time when runs may continue."""
    return (
        f"The {_called(account)} has used its budget of {most} tokens a day (max_tokens_per_day): it may run again"
        f" from {_tomorrow().isoformat()}."
    )


def exceeded_by_run(account: Account, most: int, used: int) -> str:
    """Return the error text for a run that used more tokens than its limit."""
    return f"the run used {used} tokens: the {_called(account)} allows {most} per run (max_run_tokens)"


def _called(account: Account) -> str:
    return "deployment" if account[0] == DEPLOYMENT else f"API key {account[1]}"


def _tomorrow() -> datetime:
    return database_time().replace(hour=0, minute=0, second=0, microsecond=0) + timedelta(days=1)


_used_up: dict[Account, int] = {}  # used-up accounts at the last lookup, with their daily limits
_looked_up_at = float("-inf")


def require(conn: Connection | Driver, deployment_id: UUID, key_id: str) -> None:
    """Raise TooMany, with the seconds until the next day, if a daily budget of the deployment or key is used up."""
    global _used_up, _looked_up_at
    if time.monotonic() - _looked_up_at > KNOWN_SECONDS:
        found = listed(conn)
        _used_up = {
            account: budget.max_tokens_per_day or 0 for account, budget in found.items() if budget.is_used_up
        }
        _looked_up_at = time.monotonic()
    for account in accounts(deployment_id, key_id):
        if account in _used_up:
            seconds = int((_tomorrow() - database_time()).total_seconds()) + 1
            raise TooMany(exceeded(account, _used_up[account]), retry_after_seconds=seconds)


def forget() -> None:
    """Invalidate the cache of used-up budgets."""
    global _looked_up_at
    _looked_up_at = float("-inf")


def accounts(deployment_id: UUID, key_id: str) -> Sequence[Account]:
    """Return the accounts whose budgets a run counts for."""
    return (DEPLOYMENT, str(deployment_id)), (KEY, key_id)


def remove_old(conn: Connection) -> int:
    """Remove the sums of days before yesterday. Returns the number of removed rows."""
    removed = conn.execute(
        text(f"DELETE FROM spent_tokens WHERE day < {_TODAY} - CAST(:days AS int)"), {"days": KEPT_DAYS}
    )
    return removed.rowcount
