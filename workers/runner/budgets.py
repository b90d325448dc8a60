"""The budgets of tokens that a runner's runs count for: which there are, and what has been used of them.

A runner asks every second which budgets there are, so that a run of a deployment and key without one costs nothing.
"""

from __future__ import annotations

from shared.errors import Unavailable
from shared.figures import budgets
from shared.figures.budgets import Account, Budget
from shared.infra.postgres import driver
from shared.runs.claims import Claimed


class Budgets:
    """What one runner knows of all budgets."""

    def __init__(self) -> None:
        self._known: dict[Account, Budget] = {}

    def learn(self) -> None:
        """Ask which there are, and what was used of them."""
        with driver() as conn:
            self._known = budgets.listed(conn)

    def refusal(self, run: Claimed) -> str | None:
        """Why a run may not begin; None when it may."""
        for account, budget in self._of(run):
            if budget.is_used_up and budget.max_tokens_per_day is not None:
                return budgets.exceeded(account, budget.max_tokens_per_day)
        return None

    def over(self, run: Claimed, used: int) -> str | None:
        """Why a run that has used so many tokens must stop; None when it may go on."""
        for account, budget in self._of(run):
            if budget.max_run_tokens is not None and used > budget.max_run_tokens:
                return budgets.exceeded_by_run(account, budget.max_run_tokens, used)
        return None

    def counts_days_of(self, run: Claimed) -> bool:
        """Whether what this run uses must be added up."""
        return any(budget.max_tokens_per_day is not None for _, budget in self._of(run))

    def spend(self, run: Claimed, tokens: int) -> str | None:
        """Add what a run has used; why it must stop, None when it may go on, as when the database is away."""
        reason = None
        for account, budget in self._of(run):
            most = budget.max_tokens_per_day
            if most is None:
                continue
            try:
                with driver() as conn:
                    spent = budgets.spend(conn, account, tokens)
            except Unavailable:
                continue
            self._known[account] = Budget(most, budget.max_run_tokens, spent)
            if spent > most:
                reason = reason or budgets.exceeded(account, most)
        return reason

    def _of(self, run: Claimed) -> list[tuple[Account, Budget]]:
        if not self._known:
            return []
        found = budgets.accounts(run.deployment_id, run.key_id)
        return [(account, self._known[account]) for account in found if account in self._known]
