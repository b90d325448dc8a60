"""Budgets: what the runs of a deployment, key, user or thread may use within a day (UTC), and each run.

A limit counts tokens or US dollars. Runners add what runs report after each model call to one row per account and day,
in one statement for all accounts of the run. The statement also records the shares of a limit that are reached, with
their webhooks. Only accounts with a limit for the day have such a row. That of a deployment or key starts with the day's
sum from the figures.

Before a run is created and before it begins, the rows of its accounts are read. A budget can be exceeded by the model
calls that were in progress when it was reached: one, or a step's, per running run.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from typing import Any, NamedTuple
from uuid import UUID

from sqlalchemy import Connection

from shared.errors import TooMany
from shared.figures import usage
from shared.infra import egress
from shared.infra.arrays import texts
from shared.infra.postgres import Row
from shared.records import COUNT_OR_NULL, TEXT_OR_NULL, JsonSchema, RecordField, one_line
from shared.sql import Conn, Statement, statement

DEPLOYMENT, KEY, USER, THREAD = "deployment", "key", "user", "thread"
TOKENS, COST = "tokens", "cost"
# Limits of a day, with the kind of account that each counts for (None: the deployment or key that has it).
DAILY: Mapping[str, tuple[str | None, str]] = {
    "max_tokens_per_day": (None, TOKENS),
    "max_cost_per_day": (None, COST),
    "max_user_tokens_per_day": (USER, TOKENS),
    "max_user_cost_per_day": (USER, COST),
    "max_thread_tokens_per_day": (THREAD, TOKENS),
    "max_thread_cost_per_day": (THREAD, COST),
}
OF_EACH_RUN: Mapping[str, str] = {"max_run_tokens": TOKENS, "max_run_cost": COST}
WEBHOOK = "budget_webhook"
_OF_BOTH = ("max_tokens_per_day", "max_run_tokens", "max_cost_per_day", "max_run_cost")
NAMES_OF_KEY = (*_OF_BOTH, WEBHOOK)
# The names of a deployment, which also has limits of each user and thread.
NAMES = (*_OF_BOTH, *(name for name, (kind, _) in DAILY.items() if kind is not None), WEBHOOK)
AMOUNTS = {TOKENS: "{} tokens", COST: "${}"}


def _as_number(name: str) -> Callable[[Row], float | None]:
    return lambda row: None if row[name] is None else float(row[name])


def _shown_webhook(row: Row) -> str | None:
    return None if row[WEBHOOK] is None else egress.shown_url(row[WEBHOOK])


AMOUNT_OR_NULL: JsonSchema = {"type": ["number", "null"], "minimum": 0}
FIELDS = {
    name: RecordField(AMOUNT_OR_NULL, value=_as_number(name))
    if "cost" in name
    else RecordField(COUNT_OR_NULL)
    for name in NAMES
} | {WEBHOOK: RecordField(TEXT_OR_NULL, value=_shown_webhook)}
MAX_COST = 10**8  # with six decimals exact as a JSON number
COST_DECIMALS = 6
KNOWN_SECONDS = 1.0  # how long the set of budgets is cached
KEPT_DAYS = 2
MAX_MODEL = 200
# Models without a price that a deployment reports on a day. Callers may choose a run's models.
MOST_UNPRICED = 50

Account = tuple[str, str]  # a kind, and the id of this account

_BUDGETS = statement("figures.budgets")
_SPENT = statement("figures.spent")
_REST_OF_DAY = statement("figures.rest_of_day")
_SPEND = statement("figures.spend", tokens="s.tokens + excluded.tokens", cost="s.cost + excluded.cost")
_BEGIN = statement(
    "figures.spend",
    tokens="greatest(s.tokens, excluded.tokens)",
    cost="greatest(s.cost, excluded.cost)",
)
_USED_TODAY = statement("figures.used_today")
_REMOVE_SPENT = statement("figures.remove_spent")
_REMOVE_ALERTS = statement("figures.remove_alerts")


@dataclass(frozen=True, slots=True)
class Subject:
    """A run as budgets see it: the accounts that it counts for."""

    deployment_id: UUID
    key_id: str
    thread_id: UUID
    user: str | None  # None: no user of the deployment's own authorization

    def account(self, kind: str) -> Account | None:
        """Return the run's account of this kind; None if it has none."""
        if kind == USER:
            return None if self.user is None else (USER, f"{self.deployment_id}:{self.user}")
        ids = {
            DEPLOYMENT: str(self.deployment_id),
            KEY: self.key_id,
            THREAD: f"{self.deployment_id}:{self.thread_id}",
        }
        return kind, ids[kind]


def id_of(account: Account) -> str:
    """Return the id of an account as users know it: a user or thread without its deployment."""
    kind, id = account
    return id.partition(":")[2] if kind in (USER, THREAD) else id


class Spent(NamedTuple):
    """The use of an account today, and when the next day begins."""

    tokens: int
    cost: Decimal
    resets_at: datetime

    def of(self, unit: str) -> Decimal:
        return self.cost if unit == COST else Decimal(self.tokens)


@dataclass(frozen=True, slots=True)
class Limit:
    """A limit of an account for a day, or of each run."""

    account: Account
    name: str
    unit: str
    most: Decimal
    webhook: str | None

    def exceeded(self, spent: Spent) -> str:
        """Return the error text for a used-up limit of a day, with the time when runs may continue."""
        most, used = amount(self.unit, self.most), amount(self.unit, spent.of(self.unit))
        return (
            f"The {_named(self.account)} has used its budget of {most} a day ({self.name}): it may run again from"
            f" {spent.resets_at.isoformat()}. Used: {used}."
        )

    def exceeded_by_run(self, used: Decimal) -> str:
        """Return the error text for a run that used more than its limit."""
        return (
            f"the run used {amount(self.unit, used)}: the {_named(self.account)} allows"
            f" {amount(self.unit, self.most)} per run ({self.name})"
        )


def amount(unit: str, number: Decimal) -> str:
    return AMOUNTS[unit].format(f"{number.normalize():f}")


def _named(account: Account) -> str:
    kind, id = account
    return f"API key {id}" if kind == KEY else kind


class Budgets:
    """The limits of all deployments and keys that have one."""

    def __init__(self, rows: Iterable[Mapping[str, Any]] = ()) -> None:
        self._rows = {(row["kind"], row["id"]): row for row in rows}

    @classmethod
    def read(cls, conn: Conn) -> Budgets:
        return cls(_BUDGETS.rows(conn))

    def daily(self, subject: Subject) -> list[Limit]:
        """Return the limits of a day that a run counts for."""
        return [
            Limit(account, name, unit, Decimal(row[name]), row[WEBHOOK])
            for owner, row in self._of(subject)
            for name, (kind, unit) in DAILY.items()
            if row[name] is not None and (account := subject.account(kind) if kind else owner) is not None
        ]

    def of_run(self, subject: Subject) -> list[Limit]:
        """Return the limits of each run that apply to a run."""
        return [
            Limit(owner, name, unit, Decimal(row[name]), row[WEBHOOK])
            for owner, row in self._of(subject)
            for name, unit in OF_EACH_RUN.items()
            if row[name] is not None
        ]

    def own(self, account: Account) -> list[Limit]:
        """Return the limits of a day of a deployment or key, without those of its users and threads."""
        row = self._rows.get(account, {})
        return [
            Limit(account, name, unit, Decimal(row[name]), row[WEBHOOK])
            for name, (kind, unit) in DAILY.items()
            if kind is None and row.get(name) is not None
        ]

    def _of(self, subject: Subject) -> list[tuple[Account, Mapping[str, Any]]]:
        owners = (subject.account(DEPLOYMENT), subject.account(KEY)) if self._rows else ()
        return [(owner, self._rows[owner]) for owner in owners if owner in self._rows]


def spent_today(conn: Conn, limits: Iterable[Limit]) -> dict[Account, Spent]:
    """Return what the accounts of limits have used today, live runs included."""
    return _by_account(_SPENT.rows(conn, **_accounts(limits)))


def used_up(conn: Conn, limits: Sequence[Limit]) -> tuple[Limit, Spent] | None:
    """Return the first limit of a day that is reached, so that no run may begin, with the use of its account."""
    spent = spent_today(conn, limits)
    reached = ((one, spent[one.account]) for one in limits)
    return next(((one, used) for one, used in reached if used.of(one.unit) >= one.most), None)


def passed(limits: Iterable[Limit], spent: Mapping[Account, Spent]) -> Limit | None:
    """Return the first limit that is exceeded, so that running runs must stop."""
    return next((one for one in limits if spent[one.account].of(one.unit) > one.most), None)


def spend(
    conn: Conn,
    limits: Sequence[Limit],
    tokens: int,
    cost: Decimal,
    *,
    deployment_id: UUID,
    run_id: UUID | None = None,
    unpriced: Sequence[str] = (),
    run_limits: Sequence[Limit] = (),
) -> dict[Account, Spent]:
    """Add tokens and cost to today's sums of the accounts of limits. Returns the new sums.

    Shares of a limit that are reached for the first time are reported at the deployment; so are models without a price,
    if a limit of the day or the run is a cost.
    """
    return _count(_SPEND, conn, limits, tokens, cost, deployment_id, run_id, unpriced, run_limits)


def begin(conn: Conn, account: Account, deployment_id: UUID | None = None) -> None:
    """Start to count for the new limits of a deployment or key.

    The count starts from the figures' sum of the day or the counted sum, whichever is greater. A share of the limit that
    has been reached is reported at the deployment, or with the next model call of a key.
    """
    limits = Budgets.read(conn).own(account)
    if limits:
        kind, id = account
        used = {row["model"]: row for row in _USED_TODAY.rows(conn, kind=kind, id=id)}
        tokens = sum(row["input_tokens"] + row["output_tokens"] for row in used.values())
        cost, unpriced = usage.exact_cost(used)
        _count(_BEGIN, conn, limits, tokens, cost, deployment_id, None, unpriced)
    forget()


def _count(
    counting: Statement,
    conn: Conn,
    limits: Sequence[Limit],
    tokens: int,
    cost: Decimal,
    deployment_id: UUID | None,
    run_id: UUID | None,
    unpriced: Sequence[str],
    run_limits: Sequence[Limit] = (),
) -> dict[Account, Spent]:
    reported = limits if deployment_id is not None else ()
    costs = [one for one in (*reported, *run_limits) if one.unit == COST]
    rows = counting.rows(
        conn,
        **_accounts(limits),
        tokens=tokens,
        cost=str(cost),
        deployment_id=deployment_id,
        run_id=run_id,
        limit_kinds=texts([one.account[0] for one in reported]),
        limit_ids=texts([one.account[1] for one in reported]),
        names=texts([one.name for one in reported]),
        units=texts([one.unit for one in reported]),
        mosts=texts([str(one.most) for one in reported]),
        urls=texts([one.webhook for one in reported]),
        unpriced=texts(sorted({one_line(model)[:MAX_MODEL] for model in unpriced}) if costs else []),
        most_unpriced=MOST_UNPRICED,
        unpriced_url=next((one.webhook for one in costs if one.webhook), None),
    )
    return _by_account(rows)


def _accounts(limits: Iterable[Limit]) -> dict[str, Any]:
    accounts = sorted({one.account for one in limits})
    return {"kinds": texts([kind for kind, _ in accounts]), "ids": texts([id for _, id in accounts])}


def _by_account(rows: Iterable[Mapping[str, Any]]) -> dict[Account, Spent]:
    return {(row["kind"], row["id"]): Spent(row["tokens"], row["cost"], row["resets_at"]) for row in rows}


_known = Budgets()
_read_at = float("-inf")


def require(conn: Conn, subject: Subject) -> None:
    """Raise TooMany, with the seconds until the next day, if a limit of the day is used up.

    A run without a limit costs no query but the reading of all limits once in KNOWN_SECONDS. The limits are read again
    before a run is refused, because they may have been raised for it.
    """
    reached = _reached(conn, subject)
    if reached is None:
        return
    forget()
    reached = _reached(conn, subject)
    if reached is not None:
        limit, spent = reached
        # On this connection: requests that wait for a second one each could exhaust the pool.
        (rest,) = _REST_OF_DAY.rows(conn)
        raise TooMany(limit.exceeded(spent), retry_after_seconds=int(rest["seconds"]) + 1)


def _reached(conn: Conn, subject: Subject) -> tuple[Limit, Spent] | None:
    global _known, _read_at
    if time.monotonic() - _read_at > KNOWN_SECONDS:
        _known, _read_at = Budgets.read(conn), time.monotonic()
    limits = _known.daily(subject)
    return used_up(conn, limits) if limits else None


def forget() -> None:
    """Invalidate the cache of limits."""
    global _read_at
    _read_at = float("-inf")


def remove_old(conn: Connection) -> int:
    """Remove the sums and alerts of days before yesterday. Returns the number of removed rows."""
    return _REMOVE_SPENT.count(conn, days=KEPT_DAYS) + _REMOVE_ALERTS.count(conn, days=KEPT_DAYS)
