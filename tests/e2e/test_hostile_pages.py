"""A hostile deployment against a signed-in console in a real browser: its pages, its API document, its redirects.

The rows are in `tests/js/hostile.mjs` and `hostile_dev.mjs`, the attacks in `tests/projects/hostile`.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from tests.support.javascript import check, chromium, names_of_tests
from tests.support.stack import Stack

NAME = "hostile"
PROJECT = Path(__file__).parent.parent / "projects" / NAME
START = f"""
import sys
from dataclasses import replace
from cli.machine import serve
sys.exit(serve.serve(replace(serve.settings_for(None, None), dev_deployment="{NAME}")))
"""


def check_page(row: str, file: str, stack: Stack, url: str) -> None:
    check(row, "browser", file, url, stack.api_key, SERVICE_URL=stack.url, TMPDIR=str(chromium()))


@pytest.fixture(scope="module")
def shared(stack: Stack) -> str:
    """The address of the deployment, whose origin is the console's."""
    return f"{stack.url}/d/{stack.deploy(PROJECT, name=NAME)}"


@pytest.mark.parametrize("row", names_of_tests("hostile.mjs"))
def test_a_deployment_gets_nothing_of_the_console(stack: Stack, shared: str, row: str) -> None:
    check_page(row, "hostile.mjs", stack, shared)


class Developing(Stack):
    """A platform with the project at the root beside the console, as `runyard dev` serves it."""

    @property
    def command(self) -> Sequence[str]:
        return [sys.executable, "-c", START]


@pytest.fixture(scope="module")
def developing() -> Iterator[Stack]:
    with Developing() as stack:
        stack.deploy(PROJECT, name=NAME)
        yield stack


@pytest.mark.parametrize("row", names_of_tests("hostile_dev.mjs"))
def test_a_project_under_dev_gets_no_key_of_the_console(developing: Stack, row: str) -> None:
    check_page(row, "hostile_dev.mjs", developing, developing.url)
