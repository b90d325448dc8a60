"""Database functions: several statements of a hot path in one call, each planned once per session.

A release calls a function by a name that contains its version, and a migration creates it. A changed function gets a
new version, because the previous release still calls the old one. `tests/unit/test_expanding.py` checks this.
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
    """A function in PL/pgSQL. Its body names parameters as statements do, `%(name)s`.

    Names that it declares or returns must differ from all column names of its statements.
    """

    name: str
    parameters: Mapping[str, str]  # name → type
    returns: str
    body: str
    declares: str = ""

    @property
    def definition(self) -> str:
        """Return the statement that creates the function.

        Generic plans hold for all calls of a session. PostgreSQL would otherwise plan a statement with list parameters
        anew at each call, because it sees that the lists are short. A plan may be made while tables are empty and is
        kept while they grow, so only index scans are enabled.
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
        """Return the SQL expression that calls the function."""
        given = ", ".join(f"CAST(%({name})s AS {type})" for name, type in self.parameters.items())
        return f"{self.name}({given})"

    def values(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """Return the parameters of a call, with lists packed as arrays of the declared types."""
        return {
            name: arrays.PACK[type](given[name]) if type in arrays.PACK else given[name]
            for name, type in self.parameters.items()
        }
