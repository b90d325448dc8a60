"""MCP's TypeScript client, clients that answer questions and follow tasks, and MCP's conformance kit."""

from __future__ import annotations

import json
import re
import subprocess
import tomllib
from fnmatch import fnmatch
from pathlib import Path

import pytest

from tests.support.javascript import NODE, check, environment, installed, names_of_tests
from tests.support.other_clients import checks, outcomes
from tests.support.stack import Stack

EXPECTED = Path(__file__).with_name("mcp_expected_failures.toml")
KIT = "node_modules/@modelcontextprotocol/conformance/dist/index.js"
KIT_SECONDS = 300
TIME = re.compile(r"-\d{4}-\d\d-\d\dT[^/]*")  # at the end of the name of a folder with results
PASSED = ("SUCCESS", "INFO", "SKIPPED", "WARNING")


@pytest.mark.parametrize("row", names_of_tests("mcp.mjs"))
def test_the_typescript_client_works(stack: Stack, agency: str, row: str) -> None:
    check(row, "mcp", "mcp.mjs", f"{stack.url}/d/{agency}", stack.api_key)


@pytest.mark.parametrize("row", names_of_tests("mcp_questions.mjs"))
def test_the_typescript_client_answers_questions(stack: Stack, conformance: str, row: str) -> None:
    check(row, "mcp", "mcp_questions.mjs", f"{stack.url}/d/{conformance}", stack.api_key)


@pytest.mark.parametrize("name", checks("mcp_2_tasks.py"))
def test_the_python_client_answers_questions_and_follows_tasks(
    stack: Stack, conformance: str, name: str
) -> None:
    failed = outcomes("mcp_2_tasks.py", f"{stack.url}/d/{conformance}", stack.api_key)[name]
    assert failed is None, failed


def failures(url: str, revision: str, folder: Path) -> tuple[set[str], set[str]]:
    """Run the scenarios of a revision. Returns `(failed, passed)` checks, each as `scenario/check`."""
    command = [NODE / "node", installed("mcp") / KIT, "server", "--url", url, "-o", folder]
    subprocess.run(
        [*command, "--requirements", revision],
        env=environment(),
        capture_output=True,
        timeout=KIT_SECONDS,
        check=False,
    )
    failed, passed = set(), set()
    for found in folder.glob("server-*/checks.json"):
        scenario = TIME.sub("", found.parent.name.removeprefix("server-"))
        for one in json.loads(found.read_text()):
            (passed if one["status"] in PASSED else failed).add(f"{scenario}/{one['id']}")
    return failed, passed - failed


def test_the_kit_finds_only_what_is_expected(stack: Stack, conformance: str, tmp_path: Path) -> None:
    patterns = [
        pattern for group in tomllib.loads(EXPECTED.read_text())["expected"] for pattern in group["checks"]
    ]
    all_failed = set()
    for revision, least in (("2026-07-28", 100), ("2025-11-25", 40)):
        failed, passed = failures(f"{stack.url}/d/{conformance}/mcp", revision, tmp_path / revision)
        unexpected = {one for one in failed if not any(fnmatch(one, pattern) for pattern in patterns)}
        assert not unexpected, revision
        assert len(passed) >= least, revision
        all_failed |= failed
    unused = [pattern for pattern in patterns if not any(fnmatch(one, pattern) for one in all_failed)]
    assert not unused
