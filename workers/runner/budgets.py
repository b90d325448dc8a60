"""Token budgets of deployments and keys, as one runner knows them, and the tokens used of them.

A runner reads all budgets once per second. A run whose deployment and key have no budget therefore costs no query.
"""

from __future__ import annotations

from shared.errors import Unavailable
from shared.figures import budgets
from shared.figures.budgets import Account, Budget
from shared.infra.postgres import driver
from shared.runs.claims import Claimed


class Budgets:
    """The runner's copy of all budgets."""

    def __init__(self) -> None:
        self._known: dict[Account, Budget] = {}

    def learn(self) -> None:
        """Read all budgets and the tokens used of them today."""
        with driver() as conn:
            self._known = budgets.listed(conn)

    def refusal(self, run: Claimed) -> str | None:
        """Return the reason why a run must not begin; None if it may."""
        for account, budget in self._of(run):
            if budget.is_used_up and budget.max_tokens_per_day is not None:
                return budgets.exceeded(account, budget.max_tokens_per_day)
        return None

    def over(self, run: Claimed, used: int) -> str | None:
        """Return the reason why a run that has used so many tokens must stop; None if it may continue."""
        for account, budget in self._of(run):
            if budget.max_run_tokens is not None and used > budget.max_run_tokens:
                return budgets.exceeded_by_run(account, budget.max_run_tokens, used)
        return None

    def counts_days_of(self, run: Claimed) -> bool:
        """Whether the tokens of this run count towards a daily budget."""
        return any(budget.max_tokens_per_day is not None for _, budget in self._of(run))

    def spend(self, run: Claimed, tokens: int) -> str | None:
        """Add the tokens that a run has used to its daily budgets.

        Returns the reason why the run must stop, or None if it may continue. An unreachable database stops no run.
        """
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
        accounts = budgets.accounts(run.deployment_id, run.key_id)
        return [(account, self._known[account]) for account in accounts if account in self._known]
