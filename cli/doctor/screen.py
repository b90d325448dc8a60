"""The command `runyard doctor`: runs every check, prints a line each, and sets the exit code."""

from __future__ import annotations

import os
import traceback
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict

import typer
from rich.table import Table
from rich.text import Text

from cli.commands import command
from cli.doctor import bus, database, machine, sign_in
from cli.doctor.findings import Finding, State, fails
from cli.errors import FAILED
from cli.output import Output, printable
from shared.setting_values import BadSetting
from shared.settings import VARIABLES, Settings

STYLES = {State.OK: "green", State.WARNING: "yellow", State.FAILS: "bold red"}


@command(needs_server=True)
def doctor(out: Output) -> None:
    """Check settings, servers, keys, disk and isolation, and print what to do about each problem.

    The checks use the environment of this shell: call the command with that of the processes. It starts and changes
    nothing. Exit code 1: the service would fail. Warnings do not change the exit code.
    """
    findings = list(examine(os.environ))
    out.show(as_document(findings), lambda: _table(findings))
    if not is_well(findings):
        raise typer.Exit(FAILED)


def examine(environment: Mapping[str, str]) -> Iterator[Finding]:
    """Run every check in the order of the output. An invalid setting becomes a finding; the checks use its default."""
    yield machine.python()
    settings, usable, bad = readable(environment)
    yield from bad
    yield from machine.variables(usable)
    yield from guarded("data directory", machine.data_directory(settings))
    yield machine.port(settings)
    yield machine.open_files(settings)
    yield from guarded("PostgreSQL", database.check(settings))
    yield from guarded("Redis", bus.check(settings))
    yield from guarded("isolation", machine.user_code(settings, usable))
    yield from guarded("sign-in", sign_in.check(settings))
    yield machine.git()
    yield machine.proxies(usable)


def guarded(name: str, checks: Iterator[Finding]) -> Iterator[Finding]:
    """Yield findings. An error that the checks do not expect becomes a finding, and the checks after it still run."""
    try:
        yield from checks
    except OSError as error:
        advice = "Check that this user may reach RUNYARD_DATA_DIR and the files in it."
        yield fails(name, f"cannot be examined: {error.strerror or type(error).__name__}", advice)
    except Exception as error:  # only the traceback's locations are shown: the text may quote a password
        typer.echo("".join(traceback.format_tb(error.__traceback__)), err=True)
        yield fails(name, f"cannot be examined: {type(error).__name__}", "Report this as a defect.")


def readable(environment: Mapping[str, str]) -> tuple[Settings, dict[str, str], list[Finding]]:
    """Read the settings, ignoring invalid variables.

    Returns `(settings, the environment without invalid variables, a finding per invalid variable)`.
    """
    usable, bad = dict(environment), []
    while True:
        try:
            return Settings.from_env(usable), usable, bad
        except BadSetting as error:
            name = _variable_of(str(error))
            removed = [each for each in (name, f"{name}_FILE") if usable.pop(each, None) is not None]
            if not removed:
                raise  # the error names no variable of the environment, which is a bug
            bad.append(
                fails(name, str(error), "Mend it or take it away: docs/reference/settings.md has them all.")
            )


def _variable_of(message: str) -> str:
    """Return the variable that the message of a BadSetting begins with; empty if there is none."""
    return max((name for name in VARIABLES.values() if message.startswith(name)), key=len, default="")


def is_well(findings: Sequence[Finding]) -> bool:
    """Whether no finding is a failure; warnings are allowed."""
    return all(finding.state is not State.FAILS for finding in findings)


def as_document(findings: Sequence[Finding]) -> dict[str, object]:
    """Return the findings as the JSON that `--json` prints."""
    return {"ok": is_well(findings), "checks": [asdict(finding) for finding in findings]}


def _table(findings: Sequence[Finding]) -> Table:
    table = Table(box=None, pad_edge=False, show_header=False)
    for _ in range(2):
        table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for finding in findings:
        text = Text(printable(finding.found))
        if finding.advice:
            text.append(f"\n→ {printable(finding.advice)}", style="bold")
        table.add_row(Text(finding.name), Text(finding.state, style=STYLES[finding.state]), text)
    return table
