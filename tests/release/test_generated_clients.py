"""Clients generated from the API document: complete, and able to create a thread."""

from __future__ import annotations

import re

import pytest

from tests.support import javascript, other_clients
from tests.support.stack import Stack

PYTHON = "generated_python.py"
TYPESCRIPT = re.findall(r'^  test\("([^"]+)"', (javascript.JS / "generated.mjs").read_text(), re.MULTILINE)


@pytest.mark.parametrize("check", other_clients.checks(PYTHON))
def test_openapi_python_client(stack: Stack, kitchen: str, check: str) -> None:
    failed = other_clients.outcomes(PYTHON, f"{stack.url}/d/{kitchen}", stack.api_key)[check]
    assert failed is None, failed


@pytest.mark.parametrize("row", TYPESCRIPT)
def test_openapi_typescript(stack: Stack, kitchen: str, row: str) -> None:
    failures = javascript.outcomes("generated", "generated.mjs", f"{stack.url}/d/{kitchen}", stack.api_key)
    assert row in failures, "it was not run"
    assert failures[row] is None, failures[row]
