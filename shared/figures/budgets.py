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

from sqlalchemy import Connection

from shared.errors import TooMany
from shared.infra.postgres import Driver, database_time
from shared.sql import Conn, statement

DEPLOYMENT, KEY = "deployment", "key"
NAMES = ("max_tokens_per_day", "max_run_tokens")
KNOWN_SECONDS = 1.0  # how long the set of used-up budgets is cached
KEPT_DAYS = 2

Account = tuple[str, str]  # DEPLOYMENT or KEY, and its id

_BUDGETS = statement("figures.budgets")
_SPEND = statement("figures.spend")
_SPEND_FIRST = statement("figures.spend_first")
_BEGIN = statement("figures.begin_budget")
_REMOVE_SPENT = statement("figures.remove_spent")


@dataclass(frozen=True, slots=True)
class Budget:
    """The budget of a deployment or key, and the tokens its runs have used today."""

    max_tokens_per_day: int | None
    max_run_tokens: int | None
    spent: int

    @property
    def is_used_up(self) -> bool:
        return self.max_tokens_per_day is not None and self.spent >= self.max_tokens_per_day


def listed(conn: Conn) -> dict[Account, Budget]:
    """Return the budgets of all deployments and keys that have one."""
    return {
        (row["kind"], row["id"]): Budget(row["max_tokens_per_day"], row["max_run_tokens"], row["spent"])
        for row in _BUDGETS.rows(conn)
    }


def spend(conn: Driver, account: Account, count: int) -> int:
    """Add tokens to today's sum of an account and return the new sum."""
    kind, id = account
    row = _SPEND.row(conn, kind=kind, id=id, tokens=count) or _SPEND_FIRST.row(
        conn, kind=kind, id=id, tokens=count
    )
    assert row is not None
    return row["tokens"]


def begin(conn: Conn, account: Account) -> None:
    """Start to count for a new budget, from the figures' sum of the day or the counted sum, whichever is greater."""
    kind, id = account
    _BEGIN.count(conn, kind=kind, id=id)
    forget()


def exceeded(account: Account, most: int) -> str:
    """Return the error text for a used-up daily budget, with the time when runs may continue."""
    return (
        f"The {_named(account)} has used its budget of {most} tokens a day (max_tokens_per_day): it may run again"
        f" from {_tomorrow().isoformat()}."
    )


def exceeded_by_run(account: Account, most: int, used: int) -> str:
    """Return the error text for a run that used more tokens than its limit."""
    return f"the run used {used} tokens: the {_named(account)} allows {most} per run (max_run_tokens)"


def _named(account: Account) -> str:
    return "deployment" if account[0] == DEPLOYMENT else f"API key {account[1]}"


def _tomorrow() -> datetime:
    return database_time().replace(hour=0, minute=0, second=0, microsecond=0) + timedelta(days=1)


_used_up: dict[Account, int] = {}  # used-up accounts at the last lookup, with their daily limits
_looked_up_at = float("-inf")


def require(conn: Conn, deployment_id: UUID, key_id: str) -> None:
    """Raise TooMany, with the seconds until the next day, if a daily budget of the deployment or key is used up."""
    global _used_up, _looked_up_at
    if time.monotonic() - _looked_up_at > KNOWN_SECONDS:
        _used_up = {
            account: budget.max_tokens_per_day or 0
            for account, budget in listed(conn).items()
            if budget.is_used_up
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
    return _REMOVE_SPENT.count(conn, days=KEPT_DAYS)
