"""Other lines of the protocols' clients, each in its own environment: A2A 0.3 and MCP's second line."""

from __future__ import annotations

import pytest

from tests.support.other_clients import checks, outcomes
from tests.support.stack import Stack

PROGRAMS = ("a2a_03.py", "mcp_2.py")


@pytest.mark.parametrize(
    ("program", "check"), [(program, check) for program in PROGRAMS for check in checks(program)]
)
def test_it_works(stack: Stack, agency: str, program: str, check: str) -> None:
    failed = outcomes(program, f"{stack.url}/d/{agency}", stack.api_key)[check]
    assert failed is None, failed
