"""Budgets in a runner: which runs may begin, what running runs use, and which of them must stop.

A runner reads all limits once per second. A run without a limit therefore costs no query; one with a limit for the day
costs one query before it begins, and one after each model call.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from decimal import Decimal
from typing import Any

from shared.errors import Unavailable
from shared.figures import budgets, usage
from shared.figures.budgets import COST, Budgets, Subject
from shared.figures.usage import MOST_TOKENS
from shared.infra.postgres import driver
from shared.runs import configurable
from shared.runs.claims import Claimed

Models = Mapping[str, Any]  # token counts by model


class Spending:
    """The runner's copy of all budgets."""

    def __init__(self) -> None:
        self.budgets = Budgets()

    def learn(self) -> None:
        """Read all budgets."""
        with driver() as conn:
            self.budgets = Budgets.read(conn)

    def of(self, run: Claimed) -> RunSpending:
        user = usage.user_name(configurable.user_of({"kwargs": run.kwargs}))
        return RunSpending(self, run, Subject(run.deployment_id, run.key_id, run.thread_id, user))


class RunSpending:
    """The use of one attempt of a run. The host reports its sums after each model call."""

    def __init__(self, spending: Spending, run: Claimed, subject: Subject) -> None:
        self._spending = spending
        self._run = run
        self._subject = subject
        self._tokens = 0
        self._cost = Decimal(0)

    @property
    def is_limited(self) -> bool:
        """Whether any budget applies to the run."""
        limits = self._spending.budgets
        return bool(
            limits.daily(self._subject) or limits.of_run(self._subject) or self._run.kwargs.get("replay")
        )

    def refusal(self) -> str | None:
        """Return the reason why the run must not begin; None if it may. An unreachable database refuses no run.

        Reads the budgets again before it refuses a run, because one may have been raised for it.
        """
        with contextlib.suppress(Unavailable):
            if self._used_up() is not None:
                self._spending.learn()
                return self._used_up()
        return None

    def _used_up(self) -> str | None:
        limits = self._spending.budgets.daily(self._subject)
        if not limits:
            return None
        with driver() as conn:
            reached = budgets.used_up(conn, limits)
        if reached is None:
            return None
        limit, spent = reached
        return limit.exceeded(spent)

    def over(self, tokens: int, models: Models) -> str | None:
        """Return the reason why the run must stop after it has used so much in total; None if it may continue."""
        tokens = min(tokens, MOST_TOKENS)
        for limit in self._spending.budgets.of_run(self._subject):
            used = usage.exact_cost(models)[0] if limit.unit == COST else Decimal(tokens)
            if used > limit.most:
                return limit.exceeded_by_run(used)
        return _over_replay(self._run, models)

    def count(self, tokens: int, models: Models) -> str | None:
        """Add what the run has used since the last report to the budgets of the day.

        `tokens` and `models` are the sums of the attempt. Returns the reason why the run must stop, or None if it may
        continue. An unreachable database stops no run.
        """
        limits = self._spending.budgets.daily(self._subject)
        run_limits = self._spending.budgets.of_run(self._subject)
        cost, unpriced = usage.exact_cost(models)
        if not limits and not (unpriced and any(limit.unit == COST for limit in run_limits)):
            return None
        more_tokens = max(min(tokens, MOST_TOKENS) - self._tokens, 0)
        more_cost = max(cost - self._cost, Decimal(0))
        self._tokens += more_tokens
        self._cost += more_cost
        if not more_tokens and not more_cost:
            return None
        try:
            with driver() as conn:
                spent = budgets.spend(
                    conn,
                    limits,
                    more_tokens,
                    more_cost,
                    deployment_id=self._run.deployment_id,
                    run_id=self._run.run_id,
                    unpriced=unpriced,
                    run_limits=run_limits,
                )
        except Unavailable:
            return None
        limit = budgets.passed(limits, spent)
        return None if limit is None else limit.exceeded(spent[limit.account])


def _over_replay(run: Claimed, models: Models) -> str | None:
    """Return the reason why the case of a replay must stop after this usage by model; None if it may continue."""
    most = (run.kwargs.get("replay") or {}).get("max_cost")
    used = usage.cost(models) if most is not None else None
    if most is None or used is None or used <= most:
        return None
    return f"the case cost {used:,.6g}: its replay may cost {most:,.6g} (max_cost)"
