"""Functions in the database: several statements of a hot path in one call, each planned once a session.

A release calls a function by a name with its version, and a migration makes it: a function that changes gets the next
version, since the release before goes on calling its own. `tests/unit/test_expanding.py` holds the two together.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from shared.infra import arrays

_PARAMETER = re.compile(r"%\((\w+)\)s")


@dataclass(frozen=True, slots=True)
class Routine:
    """A function in PL/pgSQL; its body names parameters as statements do, `%(name)s`.

    What it declares and returns must be named as no column of its statements is.
    """

    name: str
    parameters: Mapping[str, str]  # their types
    returns: str
    body: str
    declares: str = ""

    @property
    def definition(self) -> str:
        """The statement that makes it.

        Its plans are made without looking at the parameters: they hold for all calls of a session. By itself
        PostgreSQL would plan a statement that gets lists anew each time, since it sees that they are short. A plan
        may be made while tables are empty and is kept while they grow, so it must be one along indexes.
        """
        places = {name: f"${place}" for place, name in enumerate(self.parameters, 1)}
        body = _PARAMETER.sub(lambda found: places[found[1]], self.body)
        declares = f"DECLARE\n    {self.declares}\n" if self.declares else ""
        return (
            f"CREATE OR REPLACE FUNCTION {self.name}({', '.join(self.parameters.values())})\n"
            f"RETURNS {self.returns} LANGUAGE plpgsql SET plan_cache_mode = force_generic_plan\n"
            "SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off AS $$\n"
            f"{declares}BEGIN\n{body.strip()}\nEND $$"
        )

    @property
    def call(self) -> str:
        """Return the call of the function, as a statement contains it."""
        given = ", ".join(f"CAST(%({name})s AS {type})" for name, type in self.parameters.items())
        return f"{self.name}({given})"

    def values(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """The parameters of a call, lists as arrays of the types that the function takes."""
        return {
            name: arrays.PACK[type](given[name]) if type in arrays.PACK else given[name]
            for name, type in self.parameters.items()
        }
