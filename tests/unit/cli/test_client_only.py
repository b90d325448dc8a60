"""The command line without the extra `server`: with the packages of requirements-cli.lock alone."""

from __future__ import annotations

import re
import subprocess
import sys
from importlib.metadata import packages_distributions

import pytest

from cli.machine.procfile import PROJECT
from tests.support.commands import invoke

pytestmark = pytest.mark.usefixtures("nowhere")

IMPORTING = """
import sys
from collections.abc import Iterator
from importlib.abc import MetaPathFinder

class Absent(MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name in absent:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

absent = set(sys.argv[1:])
sys.meta_path.insert(0, Absent())
import cli.main
"""


def test_the_command_line_is_imported_without_the_service_s_packages() -> None:
    locked = re.findall(r"^([\w.-]+)==", (PROJECT / "requirements-cli.lock").read_text(), re.MULTILINE)
    absent = [
        name
        for name, owners in packages_distributions().items()
        if not {re.sub(r"[-_.]+", "-", owner.lower()) for owner in owners} & {"runyard", *locked}
    ]
    assert {"gunicorn", "sqlalchemy", "watchfiles"} <= set(absent)

    ran = subprocess.run(
        [sys.executable, "-c", IMPORTING, *absent], cwd=PROJECT, capture_output=True, text=True, check=False
    )

    assert ran.returncode == 0, ran.stderr


@pytest.mark.parametrize(
    "command",
    [
        "up", "dev", "demo", "process web", "doctor", "backup", "restore file", "encryption new-key", "encryption list",
        "encryption rotate", "keys create --local",
    ],
)  # fmt: skip
def test_a_command_of_the_service_says_what_to_install(monkeypatch: pytest.MonkeyPatch, command: str) -> None:
    monkeypatch.setattr("cli.SERVER_PACKAGE", "a_package_that_is_nowhere")

    ran = invoke(*command.split())

    assert ran.exit_code == 1
    assert f"`runyard {command.removesuffix(' web').removesuffix(' file')}` needs the packages" in ran.output
    assert "runyard[server]" in ran.output


@pytest.mark.parametrize("name", ["RUNYARD_URL", "LANGGRAPH_HOST_URL"])
def test_a_key_of_a_service_elsewhere_is_never_made_in_the_database_here(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setenv(name, "https://runyard.example.com")

    ran = invoke("keys", "create")

    assert (ran.exit_code, "No API key for https://runyard.example.com" in ran.output) == (1, True)


def test_without_the_service_s_packages_keys_are_made_over_http_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cli.SERVER_PACKAGE", "a_package_that_is_nowhere")

    ran = invoke("keys", "create")

    assert (ran.exit_code, "No API key" in ran.output) == (1, True)
