"""The README says what the code says: settings and their defaults, states, and the folders it names."""

from __future__ import annotations

import re
from dataclasses import MISSING, fields
from pathlib import Path

import pytest

from shared.models import RevisionStatus, RunStatus, ThreadStatus
from shared.settings import VARIABLES, Settings

PROJECT = Path(__file__).parents[2]
README = (PROJECT / "README.md").read_text()
ROWS = dict(re.findall(r"^\| `([A-Z_]+)` \|([^|]*)\| [^|]+ \|$", README, re.MULTILINE))
COMPUTED = {"RUNYARD_CACHE_DIR", "RUNYARD_URL"}  # from other settings: described in words
# An archive that is missing, and a state nobody can tell, are not drawn: nothing here leads there.
NOT_DRAWN = {RevisionStatus.CREATE_FAILED, RevisionStatus.UNKNOWN}


def section(title: str) -> str:
    return README.partition(f"\n## {title}\n")[2].partition("\n## ")[0]


def test_every_setting_is_described_and_nothing_else() -> None:
    assert set(ROWS) == set(VARIABLES.values())


@pytest.mark.parametrize("field", [f for f in fields(Settings) if f.name in VARIABLES], ids=lambda f: f.name)
def test_a_setting_has_its_default_in_the_table(field: object) -> None:
    variable = VARIABLES[field.name]  # type: ignore[attr-defined]
    default = field.default  # type: ignore[attr-defined]
    if variable in COMPUTED:
        return
    assert default is not MISSING
    if isinstance(default, float) and default.is_integer():
        default = int(default)
    if isinstance(default, tuple):
        default = ",".join(default)
    expected = "" if default in (None, "") else f"`{default}`"
    assert ROWS[variable].strip() == expected


@pytest.mark.parametrize("states", [RunStatus, ThreadStatus, RevisionStatus])
def test_every_state_is_drawn(states: type[RunStatus] | type[ThreadStatus] | type[RevisionStatus]) -> None:
    drawings = section("States")

    assert [s for s in states if s not in NOT_DRAWN and str(s) not in drawings] == []


def test_every_folder_and_file_of_the_map_exists() -> None:
    folder = ""
    for line in section("The map").partition("```\n")[2].partition("```")[0].splitlines():
        indent, name = len(line) - len(line.lstrip()), line.split()[0]
        folder = name if not indent and name.endswith("/") else folder if indent else ""
        assert (PROJECT / (folder + name if indent else name)).exists(), line


def test_every_module_it_names_exists() -> None:
    named = re.findall(r"`((?:shared|web|workers|cli|examples|tests)/[\w/.]+)`", README)

    assert [path for path in named if not (PROJECT / path).exists()] == []


def test_every_link_within_it_leads_to_a_heading() -> None:
    headings = re.findall(r"^#+ (.+)$", re.sub(r"```.*?```", "", README, flags=re.DOTALL), re.MULTILINE)
    anchors = {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}

    assert set(re.findall(r"\]\(#([^)]+)\)", README)) <= anchors
