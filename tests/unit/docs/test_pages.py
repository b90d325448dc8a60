"""The files and settings that the README and the pages of docs/ name exist, and generated pages match the code."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from docs import generate
from shared import __version__, store_vectors
from shared.models import METADATA
from shared.settings import VARIABLES, names_of
from tests.support import shared_stack
from tests.support.commands import invoke

PROJECT = Path(__file__).parents[3]
README = PROJECT / "README.md"
CONTRIBUTING = PROJECT / "CONTRIBUTING.md"
ARCHITECTURE = PROJECT / "docs" / "concepts" / "architecture.md"
PAGES = [
    README,
    PROJECT / "CONTRIBUTING.md",
    PROJECT / "CHANGELOG.md",
    PROJECT / "SECURITY.md",
    PROJECT / "CODE_OF_CONDUCT.md",
    *sorted((PROJECT / "docs").rglob("*.md")),
]
# The version in the name of a wheel, in a tag of the repository or the image, or in a chart.
VERSION = re.compile(
    r"""(?:runyard-|runyard:|/v|@v|ref:\ v|newTag:\ "?v?|^(?:appVersion|version):\ "?)(\d+\.\d+\.\d+)""",
    re.MULTILINE | re.VERBOSE,
)
BY_NAME = re.compile(
    r"""(?:pip install|pipx install|tool install|uvx)[^\n`]*?["' ]runyard(?:\[[\w,]+\])?(?! @)(?=["'`=<>~]| -|$)""",
    re.MULTILINE,
)
FENCED = re.compile(r"```.*?```", re.DOTALL)

each_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(PROJECT).as_posix())


def section(page: Path, title: str) -> str:
    return page.read_text().partition(f"\n## {title}\n")[2].partition("\n## ")[0]


def test_the_readme_is_read_in_one_go_and_leads_to_the_other_pages() -> None:
    assert len(README.read_text().splitlines()) <= 120

    linked = {
        (PROJECT / target).resolve() for target in re.findall(r"\]\(([\w/.]+\.md)\)", README.read_text())
    }

    assert {*PROJECT.glob("*.md"), PROJECT / "docs" / "index.md"} - {README} <= linked


def test_every_folder_and_file_of_the_map_exists() -> None:
    folder = ""
    for line in section(CONTRIBUTING, "The map").partition("```\n")[2].partition("```")[0].splitlines():
        indent, name = len(line) - len(line.lstrip()), line.split()[0]
        folder = name if not indent and name.endswith("/") else folder if indent else ""
        assert (PROJECT / (folder + name if indent else name)).exists(), line


def test_every_room_is_on_the_map() -> None:
    drawn = re.findall(r"^  (\w+)/", section(CONTRIBUTING, "The map"), re.MULTILINE)
    rooms = {
        path.parent.name
        for package in ("web", "workers", "shared")
        for path in (PROJECT / package).glob("*/__init__.py")
    }

    assert set(drawn) == rooms


@each_page
def test_every_file_and_setting_that_a_page_names_exists(page: Path) -> None:
    named = re.findall(
        r"`((?:shared|web|workers|cli|docs|examples|bench|tests)/[\w/.]+)(?::\w+)?`", page.read_text()
    )

    assert [path for path in named if not (PROJECT / path).exists()] == []

    settings_named = set(re.findall(r"`(RUNYARD_[A-Z_]+)`", page.read_text()))

    # Variables of the command line, the GitLab job, graph hosts and the tests
    of_others = {"RUNYARD_ORG", "RUNYARD_CONTEXT", "RUNYARD_PACKAGE", "RUNYARD_REPLAY", "RUNYARD_FAIL_ON"}
    of_others |= {"RUNYARD_PROMOTE", "RUNYARD_GITLAB_TOKEN", "RUNYARD_STARTED_BY"}
    of_others |= {shared_stack.URL, shared_stack.KEY}
    assert settings_named - of_others <= {name for field in VARIABLES for name in names_of(field)}


def test_every_function_that_the_architecture_names_exists() -> None:
    named = re.findall(r"`([\w/]+\.(?:py|sql)):(\w+)`", ARCHITECTURE.read_text())

    missing = [
        (path, name)
        for path, name in named
        if not re.search(rf"\b(?:def|class|FUNCTION) {name}\b", (PROJECT / path).read_text())
    ]
    assert named
    assert missing == []


def test_nothing_installs_the_package_from_an_index_by_its_name() -> None:
    assert all(
        BY_NAME.search(f"pip install {text}") for text in ("runyard", "'runyard[server]'", "-U runyard==1.0")
    )
    places = (
        *PAGES,
        *(PROJECT / "deploy").rglob("*"),
        *(PROJECT / "examples").rglob("*.md"),
        *PROJECT.glob(".github/**/*"),
    )

    found = {
        str(path): match[0]
        for path in places
        if path.is_file() and path.suffix != ".pyc" and (match := BY_NAME.search(path.read_text()))
    }
    assert found == {}


def test_pages_and_manifests_name_the_version_that_is_in_the_tree() -> None:
    files = [README, *(PROJECT / "docs").rglob("*.md"), *(PROJECT / "deploy").rglob("*.y*ml")]

    versions = {
        path.relative_to(PROJECT).as_posix(): set(VERSION.findall(path.read_text()))
        for path in files
        if VERSION.search(path.read_text())
    }
    assert {
        "docs/operating/install.md",
        "deploy/github/example-workflow.yml",
        "deploy/kubernetes/overlays/production/kustomization.yaml",
    } <= versions.keys()
    assert {path: found for path, found in versions.items() if found != {__version__}} == {}

    assert invoke("--version").output == f"{__version__}\n"


def test_the_forms_for_issues_are_ones_that_github_shows() -> None:
    forms = sorted((PROJECT / ".github" / "ISSUE_TEMPLATE").glob("[!c]*.yml"))

    assert [form.stem for form in forms] == ["bug", "feature"]
    for form in forms:
        described = yaml.safe_load(form.read_text())
        assert described.keys() == {"name", "description", "labels", "body"}
        ids = [field["id"] for field in described["body"] if field["type"] != "markdown"]
        assert len(ids) == len(set(ids)) > 1
        for field in described["body"]:
            assert field["type"] in ("markdown", "textarea", "input", "dropdown")
            assert field["attributes"].get("label" if field["type"] != "markdown" else "value")


def test_generated_pages_match_the_code() -> None:
    different = [path.name for path, expected in generate.pages() if path.read_text() != expected]

    assert not different, "make docs"


def test_the_page_of_settings_has_every_setting() -> None:
    listed = re.findall(
        r"^\| `([A-Z_]+)` \|", (PROJECT / "docs/reference/settings.md").read_text(), re.MULTILINE
    )
    of_dev = {name for name in VARIABLES.values() if name.startswith("RUNYARD_DEV_")}
    assert (set(listed), len(listed)) == (set(VARIABLES.values()) - of_dev, len(VARIABLES) - len(of_dev))


def test_the_site_has_every_page() -> None:
    listed = set(re.findall(r"^ +- ([\w/-]+\.md)$", (PROJECT / "mkdocs.yml").read_text(), re.MULTILINE))

    assert {
        page.relative_to(PROJECT / "docs").as_posix() for page in (PROJECT / "docs").rglob("*.md")
    } <= listed


@pytest.mark.parametrize(
    ("default", "expected"),
    [(None, ""), ("", ""), (30.0, "`30`"), (0.5, "`0.5`"), (("a", "b"), "`a,b`"), (False, "`False`")],
)
def test_a_default_is_shown_as_an_operator_writes_it(default: object, expected: str) -> None:
    assert generate.shown(default) == expected


def test_what_grows_names_each_table() -> None:
    page = (PROJECT / "docs" / "operating" / "sizing.md").read_text()
    section = page.partition("## What grows\n")[2].partition("\n## ")[0]
    first_cells = re.findall(r"^\| (`[^|]+) \|", section, re.MULTILINE)
    named = [name for cell in first_cells for name in re.findall(r"`(\w+)`", cell)]

    assert sorted(named) == sorted([*METADATA.tables, store_vectors.NAME])
